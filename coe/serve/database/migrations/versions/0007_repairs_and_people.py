"""What became of defects at the repair station; badges and PINs of people."""

import sqlalchemy as sa
from alembic import op

from coe.serve.database.columns import WHOLE
from coe.serve.database.migration import protecting

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add a table, whose rows are never changed, and two columns."""
    op.create_table(
        "repair",
        sa.Column("id", WHOLE, autoincrement=True, nullable=False),
        sa.Column("call_id", WHOLE, nullable=False),
        sa.Column("supersedes", WHOLE, nullable=True),
        sa.Column("outcome", sa.String(length=40), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("repaired_us", sa.BigInteger(), nullable=False),
        sa.Column("repaired_by", sa.String(length=200), nullable=False),
        sa.ForeignKeyConstraint(["call_id"], ["call.id"], name="fk_repair_call_id"),
        sa.ForeignKeyConstraint(["supersedes"], ["repair.id"], name="fk_repair_supersedes"),
        sa.PrimaryKeyConstraint("id", name="pk_repair"),
        sa.UniqueConstraint("supersedes", name="uq_repair_supersedes"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_repair_call_id", "repair", ["call_id"])
    op.create_index("ix_repair_repaired_us", "repair", ["repaired_us"])
    for statement in protecting(op.get_context().dialect.name, "repair", "supersedes = NEW.supersedes"):
        op.execute(statement)
    op.add_column("api_key", sa.Column("badge_hash", sa.String(length=64), nullable=True))
    op.add_column("api_key", sa.Column("pin_hash", sa.String(length=64), nullable=True))
    op.create_index("ix_api_key_badge_hash", "api_key", ["badge_hash"], unique=True)
