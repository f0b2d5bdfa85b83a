"""Statistics have an index by the hour instead of one by the moment."""

from alembic import op
from sqlalchemy.schema import CreateIndex

from coe.serve.database.tables import hourly

revision = "3"
down_revision = "2"


def upgrade() -> None:
    """Make the index; a database of a newer schema 2 has it."""
    op.execute(CreateIndex(hourly, if_not_exists=True))
    op.execute("DROP INDEX IF EXISTS ix_board_counted")
