"""Faces of blind audits, confirmations of recipes of whole boards, and the experts that are in memory."""

import sqlalchemy as sa
from alembic import op

from coe.serve.database.columns import WHOLE
from coe.serve.database.migration import append_only

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add three columns and a table."""
    dialect = op.get_context().dialect.name
    op.add_column("call", sa.Column("face", sa.JSON()))
    op.add_column("heartbeat", sa.Column("experts", sa.JSON()))
    # Alembic adds the constraint by a statement of its own, which SQLite does not have.
    whole = "INTEGER" if dialect == "sqlite" else "BIGINT"
    op.execute(
        f"ALTER TABLE call ADD COLUMN shown_board_id {whole} CONSTRAINT fk_call_shown_board_id REFERENCES board (id)"
    )
    op.create_index("ix_call_shown_board_id", "call", ["shown_board_id"])
    op.create_table(
        "confirmation",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("recipe_id", WHOLE, nullable=False),
        sa.Column("confirmed_us", sa.BigInteger(), nullable=False),
        sa.Column("confirmed_by", sa.String(length=200), nullable=False),
        sa.Column("picture_sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["recipe_id"], ["recipe.id"], name="fk_confirmation_recipe_id"),
        sa.PrimaryKeyConstraint("id", name="pk_confirmation"),
        sa.UniqueConstraint("recipe_id", name="uq_confirmation_recipe_id"),
        sqlite_autoincrement=True,
    )
    for statement in append_only(dialect, "confirmation"):
        op.execute(statement)
