"""The first schema of a release. A new database is made with the newest tables: nothing has to be done."""

revision = "1"
down_revision = None


def upgrade() -> None:
    """Do nothing."""
