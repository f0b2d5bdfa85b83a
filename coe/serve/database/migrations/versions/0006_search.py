"""Indexes by which boards are searched, the newest first."""

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Make the indexes."""
    op.create_index("ix_board_accepted_us", "board", ["accepted_us", "id"])
    op.create_index("ix_board_verdict_accepted_us", "board", ["verdict", "accepted_us", "id"])
    op.create_index("ix_board_state_accepted_us", "board", ["state", "accepted_us", "id"])
    op.create_index("ix_call_kind_board_id", "call", ["kind", "board_id"])
