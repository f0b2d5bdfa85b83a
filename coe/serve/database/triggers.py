"""Triggers that keep tables append-only. Not even our own code can overwrite a person's word."""

from __future__ import annotations

from sqlalchemy import Table, UniqueConstraint


def protecting(dialect: str, table: Table) -> list[str]:
    """Return the statements that keep a new table append-only."""
    unique = [one for one in table.constraints if isinstance(one, UniqueConstraint)]
    keys = sorted(" AND ".join(f"{column.name} = NEW.{column.name}" for column in one.columns) for one in unique)
    return append_only(dialect, table.name) + never_replaced(dialect, table.name, "id = NEW.id", *keys)


def append_only(dialect: str, table: str) -> list[str]:
    """Return the statements that make a table append-only in a dialect, `sqlite` or `postgresql`.

    SQLite needs those of `never_replaced`, too.
    """
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
    """Return the statements that refuse an insert in the place of a row; `keys` are the conditions of the same row.

    SQLite's REPLACE removes the row that is in its way, and no trigger for DELETE hears of that.
    """
    if dialect != "sqlite":
        return []
    same = " OR ".join(f'EXISTS (SELECT 1 FROM "{table}" WHERE {key})' for key in keys)
    return [
        f'CREATE TRIGGER {table}_no_replace BEFORE INSERT ON "{table}" WHEN {same} '
        f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed'); END"
    ]
