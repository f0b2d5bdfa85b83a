"""Sessions of browsers."""

import sqlalchemy as sa
from alembic import op

from coe.serve.database.columns import WHOLE

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add a table; sessions that began before the upgrade are not in it, and people sign in again."""
    op.create_table(
        "session",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("key_id", WHOLE, nullable=False),
        sa.Column("ends_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_key.id"], name="fk_session_key_id"),
        sa.PrimaryKeyConstraint("name", name="pk_session"),
    )
    op.create_index("ix_session_ends_us", "session", ["ends_us"])
