"""The first schema. A database has it already, or is made with the newest tables: nothing has to be done."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do nothing."""
