"""Bringing a database to the newest schema, with triggers that keep some tables append-only, even for our own code."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, UniqueConstraint, inspect

from coe.errors import ConfigError
from coe.serve.database import tables
from coe.serve.database.connecting import WRITES, Database, translated

FOLDER = Path(__file__).with_name("migrations")


def newest() -> str:
    """Return the revision of the newest schema."""
    revision = ScriptDirectory(str(FOLDER)).get_current_head()
    assert revision is not None
    return revision


def revision_of(database: Database) -> str | None:
    """Return the revision of a database's schema; None if it has no tables, or no file, yet. Raises DatabaseError."""
    if database.file is not None and not database.file.exists():
        return None
    return database.read(lambda connection: MigrationContext.configure(connection).get_current_revision())


def migrate(database: Database) -> bool:
    """Bring a database to the newest schema, in one transaction; return whether there was work to do.

    Raises ConfigError for a database of an unknown version of the service, or with tables of another program that have
    the names of ours, and DatabaseError.
    """
    before = revision_of(database)
    _expect_known(database, before)
    if before == newest():
        return False
    if database.file is not None:
        with suppress(OSError):  # opening it says why it cannot be made
            database.file.touch(mode=0o600)  # PINs can be found from their hashes
    with translated(database.url), database.engine.connect() as connection:
        writer = connection.execution_options(**{WRITES: True})
        with writer.begin():
            config = Config()
            config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
            config.attributes["connection"] = writer
            # Another process may have made the tables since: then there is nothing left to do.
            if MigrationContext.configure(writer).get_current_revision() is None:
                _make(writer)
                command.stamp(config, "head")
            else:
                command.upgrade(config, "head")
    return True


def _expect_known(database: Database, revision: str | None) -> None:
    if revision not in {None, *(script.revision for script in ScriptDirectory(str(FOLDER)).walk_revisions())}:
        raise ConfigError(
            f"{database} was written by another version of coe-serve (schema {revision}); install that version, or "
            "restore a backup from before the upgrade"
        )


def _make(writer: Connection) -> None:
    """Make all tables as they are now, and the triggers that protect some of them; raises ConfigError."""
    if others := tables.metadata.tables.keys() & set(inspect(writer).get_table_names()):
        raise ConfigError(
            f"the database has tables of another program ({', '.join(sorted(others))}); give coe-serve one of its own"
        )
    tables.metadata.create_all(writer)
    for table in tables.APPEND_ONLY:
        unique = [one for one in table.constraints if isinstance(one, UniqueConstraint)]
        keys = [" AND ".join(f"{column.name} = NEW.{column.name}" for column in one.columns) for one in unique]
        for statement in protecting(writer.dialect.name, table.name, *sorted(keys)):
            writer.exec_driver_sql(statement)


def expect_newest(database: Database) -> None:
    """Raise ConfigError if a database does not have the newest schema."""
    revision = revision_of(database)
    _expect_known(database, revision)
    if revision is None:
        raise ConfigError(
            f"{database} has no tables: if the station has run before, `data` is wrong, or its disk is not mounted; "
            "if it is new, run `coe-serve migrate`"
        )
    if revision != newest():
        raise ConfigError(
            f"{database} has schema {revision}, and this version needs schema {newest()}; run `coe-serve migrate`"
        )


def protecting(dialect: str, table: str, *keys: str) -> list[str]:
    """Return the statements that keep a table append-only; `keys` are conditions of the same row, beside its id."""
    return append_only(dialect, table) + never_replaced(dialect, table, "id = NEW.id", *keys)


def append_only(dialect: str, table: str) -> list[str]:
    """Return the statements that make a table append-only in a dialect, in SQLite together with `never_replaced`."""
    refusal = f"rows of {table} are never changed"
    if dialect == "sqlite":
        return [
            f'CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON "{table}" '
            f"BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
            for change in ("UPDATE", "DELETE")
        ]
    # PostgreSQL's ON CONFLICT DO UPDATE is an update to this trigger, too.
    return [
        f"CREATE FUNCTION {table}_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{refusal}' USING ERRCODE = 'integrity_constraint_violation'; END $$",
        f'CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON "{table}" '
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_append_only()",
    ]


def never_replaced(dialect: str, table: str, *keys: str) -> list[str]:
    """Return what refuses an insert in the place of a row: SQLite's REPLACE fires no trigger for DELETE."""
    if dialect != "sqlite":
        return []
    same = " OR ".join(f'EXISTS (SELECT 1 FROM "{table}" WHERE {key})' for key in keys)
    return [
        f'CREATE TRIGGER {table}_no_replace BEFORE INSERT ON "{table}" WHEN {same} '
        f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed'); END"
    ]
