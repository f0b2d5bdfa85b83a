"""Triggers that keep tables append-only. Law: not even our own code can overwrite a person's word."""

from __future__ import annotations


def append_only(dialect: str, table: str) -> list[str]:
    """Return the statements that make a table append-only in a dialect, `sqlite` or `postgresql`."""
    refusal = f"rows of {table} are never changed"
    if dialect == "sqlite":
        return [
            f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
            for change in ("UPDATE", "DELETE")
        ]
    return [
        f"CREATE FUNCTION {table}_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{refusal}' USING ERRCODE = 'integrity_constraint_violation'; END $$",
        f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_append_only()",
    ]
