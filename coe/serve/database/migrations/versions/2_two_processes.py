"""Two processes, `web` and `worker`: what the others said and suffered is theirs now."""

from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    """Rename the processes of open faults, of the newest states and of heartbeats."""
    for statement in (
        "UPDATE fault SET process = 'web' WHERE process IN ('gate', 'bridge', 'supervisor')",
        "UPDATE state_change SET changed_by = 'worker' WHERE changed_by = 'supervisor'",
        "DELETE FROM heartbeat WHERE process IN ('bridge', 'supervisor')",
        "UPDATE heartbeat SET process = 'web' WHERE process = 'gate'",
        "UPDATE heartbeat SET pid = 0",  # the service does not run while its database is migrated
    ):
        op.execute(statement)
