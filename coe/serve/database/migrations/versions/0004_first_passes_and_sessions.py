"""Serials of units, decisions as they were made, claims of sessions, faces of audits in the counts, and triggers."""

import sqlalchemy as sa
from alembic import op

from coe.serve.database.columns import WHOLE
from coe.serve.database.migration import append_only, never_replaced

revision = "0004"
down_revision = "0003"

KEYS = {
    "verification": ("supersedes = NEW.supersedes",),
    "audit": ("hash = NEW.hash",),
    "confirmation": ("recipe_id = NEW.recipe_id",),
    "recipe": ("name = NEW.name AND version = NEW.version", "name = NEW.name AND digest = NEW.digest"),
    "escape": (),
}
"""What else than the id a row of each append-only table has alone."""


def upgrade() -> None:
    """Add two tables and a column, and fill them from what is there."""
    dialect = op.get_context().dialect.name
    op.create_table(
        "unit_serial",
        sa.Column("serial", sa.String(length=200), nullable=False),
        sa.Column("board_id", WHOLE, autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["board_id"], ["board.id"], name="fk_unit_serial_board_id"),
        sa.PrimaryKeyConstraint("serial", "board_id", name="pk_unit_serial"),
    )
    op.create_table(
        "decision_count",
        sa.Column("verdict", sa.String(length=40), nullable=False),
        sa.Column("boards", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("verdict", name="pk_decision_count"),
    )
    op.add_column("call", sa.Column("claimed_session", sa.String(length=64), nullable=False, server_default=""))
    op.execute(
        "INSERT INTO decision_count (verdict, boards) "
        "SELECT verdict, SUM(boards) FROM board_count GROUP BY verdict HAVING SUM(boards) > 0"
    )
    op.execute(_units(dialect))
    op.execute("DELETE FROM call_count WHERE kind = 'audit'")
    op.execute(_audits(dialect))
    for table in ("recipe", "escape"):
        for statement in append_only(dialect, table):
            op.execute(statement)
    for table, keys in KEYS.items():
        for statement in never_replaced(dialect, table, "id = NEW.id", *keys):
            op.execute(statement)


def _units(dialect: str) -> str:
    each = "json_each(board.request, '$.serials') AS unit"
    if dialect != "sqlite":
        each = "json_each_text(board.request -> 'serials') AS unit"
    return (
        "INSERT INTO unit_serial (serial, board_id) "
        f"SELECT DISTINCT unit.value, board.id FROM board CROSS JOIN {each} WHERE unit.value <> ''"
    )


def _audits(dialect: str) -> str:
    def seen(name: str) -> str:
        part = f"json_extract(call.face, '$.{name}')" if dialect == "sqlite" else f"call.face ->> '{name}'"
        return f"COALESCE({part}, '')"

    label = f"COALESCE(NULLIF(verification.label, ''), {seen('label')})"
    hour, outcome = "board.decided_us - board.decided_us % 3600000000", "COALESCE(verification.outcome, '')"
    key = f"{hour}, board.recipe_id, call.component, {seen('expert')}, {label}, call.kind, {outcome}"
    return (
        "INSERT INTO call_count (hour_us, recipe_id, component, expert, label, kind, outcome, calls) "
        f"SELECT {key}, COUNT(*) FROM board JOIN call ON call.board_id = board.id "
        "LEFT JOIN verification ON verification.id = call.verification_id "
        "WHERE call.kind = 'audit' AND board.decided_us IS NOT NULL AND board.pass_number = 1 "
        f"GROUP BY {key}"
    )
