"""Trials: recipes that are tried on stored boards."""

import sqlalchemy as sa
from alembic import op

from coe.serve.database.columns import WHOLE

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add their table."""
    op.create_table(
        "trial",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("recipe", sa.String(length=200), nullable=False),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("asked", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=40), nullable=False),
        sa.Column("asked_us", sa.BigInteger(), nullable=False),
        sa.Column("asked_by", sa.String(length=200), nullable=False),
        sa.Column("newest_id", sa.BigInteger(), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_trial"),
        sqlite_autoincrement=True,
    )
