"""Counts of boards and calls by the hour, and indexes, so that no page and no sweep reads all boards."""

import sqlalchemy as sa
from alembic import op

from coe.serve.database.columns import WHOLE

revision = "0002"
down_revision = "0001"

HOUR = "(board.decided_us - board.decided_us % 3600000000)"
"""The beginning of the hour of a board's decision, in UTC microseconds."""


def upgrade() -> None:
    """Make the tables, and count the boards that are there."""
    op.create_table(
        "board_count",
        sa.Column("hour_us", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("recipe_id", WHOLE, autoincrement=False, nullable=False),
        sa.Column("first_pass", sa.Boolean(), nullable=False),
        sa.Column("verdict", sa.String(length=40), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("boards", "clean", "late", "verified", "good")),
        sa.ForeignKeyConstraint(["recipe_id"], ["recipe.id"], name="fk_board_count_recipe_id"),
        sa.PrimaryKeyConstraint("hour_us", "recipe_id", "first_pass", "verdict", name="pk_board_count"),
    )
    op.create_table(
        "call_count",
        sa.Column("hour_us", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("recipe_id", WHOLE, autoincrement=False, nullable=False),
        *(sa.Column(name, sa.String(length=200), nullable=False) for name in ("component", "expert", "label")),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("outcome", sa.String(length=40), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["recipe_id"], ["recipe.id"], name="fk_call_count_recipe_id"),
        sa.PrimaryKeyConstraint(
            "hour_us", "recipe_id", "component", "expert", "label", "kind", "outcome", name="pk_call_count"
        ),
    )
    op.execute(_boards())
    op.execute(_calls())
    op.add_column("board", sa.Column("swept_us", sa.BigInteger()))
    op.drop_index("ix_board_verdict", "board")
    op.create_index("ix_board_unswept", "board", ["swept_us", "state", "verdict", "decided_us"])
    op.create_index("ix_view_received_us", "view", ["received_us"])
    op.drop_index("ix_call_component_opened_us", "call")
    op.create_index("ix_call_lender", "call", ["component", "kind", "reason", "id"])


def _boards() -> str:
    confirmed = (
        "EXISTS (SELECT 1 FROM call JOIN verification ON verification.id = call.verification_id "
        "WHERE call.board_id = board.id AND verification.outcome = 'confirmed')"
    )
    numbers = {
        "boards": "1 = 1",
        "clean": "board.calls = 0 AND board.verdict = 'OK'",
        "late": "board.late",
        "verified": "board.state = 'verified'",
        "good": f"board.state = 'verified' AND NOT {confirmed}",
    }
    sums = ", ".join(f"SUM(CASE WHEN {which} THEN 1 ELSE 0 END)" for which in numbers.values())
    return (
        f"INSERT INTO board_count (hour_us, recipe_id, first_pass, verdict, {', '.join(numbers)}) "
        f"SELECT {HOUR}, board.recipe_id, board.pass_number = 1, board.verdict, {sums} FROM board "
        f"WHERE board.decided_us IS NOT NULL GROUP BY {HOUR}, board.recipe_id, board.pass_number = 1, board.verdict"
    )


def _calls() -> str:
    label = "COALESCE(NULLIF(verification.label, ''), call.label)"
    outcome = "COALESCE(verification.outcome, '')"
    key = f"{HOUR}, board.recipe_id, call.component, call.expert, {label}, call.kind, {outcome}"
    return (
        "INSERT INTO call_count (hour_us, recipe_id, component, expert, label, kind, outcome, calls) "
        f"SELECT {key}, COUNT(*) FROM board JOIN call ON call.board_id = board.id "
        "LEFT JOIN verification ON verification.id = call.verification_id "
        f"WHERE board.decided_us IS NOT NULL AND board.pass_number = 1 GROUP BY {key}"
    )
