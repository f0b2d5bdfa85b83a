"""Serials that were stored when blanks around them, and how their accents were written, still counted."""

import sqlalchemy as sa
from alembic import op

from coe.spelling import composed

revision = "0009"
down_revision = "0008"

_THERE = "SELECT board_id FROM unit_serial WHERE serial = :new"
_CHANGES = (
    "UPDATE board SET serial = :new WHERE serial = :old",
    f"DELETE FROM unit_serial WHERE serial = :old AND board_id IN ({_THERE})",
    "UPDATE unit_serial SET serial = :new WHERE serial = :old",
)


def upgrade() -> None:
    """Write them as they are written now."""
    connection = op.get_bind()
    stored = connection.execute(sa.text("SELECT serial FROM board UNION SELECT serial FROM unit_serial")).scalars()
    for old in [serial for serial in stored if serial != composed(serial.strip())]:
        for change in _CHANGES:
            connection.execute(sa.text(change), {"old": old, "new": composed(old.strip())})
