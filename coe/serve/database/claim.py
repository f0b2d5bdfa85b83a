"""The claim of one service to its database. Law: the claim ends with the service, whatever ends the service.

The embedded database lies in the folder of its service, which is locked; a PostgreSQL server is reached from anywhere.
Its lock belongs to a session, so the service keeps a connection open for it.
"""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import Connection, func, select, text

from coe.serve.database.connecting import Database
from coe.serve.database.database_errors import DatabaseError, translated

_KEY = int.from_bytes(b"coeserve", "big")
"""The number of the lock; those of PostgreSQL are of one database, not of the whole server."""
_DETECTION = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
"""The server ends a session whose machine is gone after half a minute; by itself it would keep the lock for hours."""


class Claim:
    """The claim to a database. One thread at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._session: Connection | None = None

    def hold(self) -> bool:
        """Take the claim, or make sure that it is still held; False if another service holds it.

        A server that was restarted has forgotten the claim, which is then taken again. Raises DatabaseError.
        """
        if self._database.is_sqlite:
            return True
        if self._session is not None:
            try:
                with translated():
                    self._session.execute(select(1))
                return True
            except DatabaseError:
                self.release()
        with translated():
            session = self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._session = session
            session.execute(text(_DETECTION))
            if session.scalar(select(func.pg_try_advisory_lock(_KEY))):
                return True
        self.release()
        return False

    def release(self) -> None:
        """Let another service take the claim."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(DatabaseError), translated():
                # The pool would keep the session, and its lock with it.
                session.invalidate()
                session.close()
