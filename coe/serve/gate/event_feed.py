"""New events for all clients that wait. However many wait, one task asks the database.

The newest events stay in memory. A client that was away longer reads the database until it has caught up, so a slow
client costs no memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from itertools import takewhile

from coe.serve.database import event_log
from coe.serve.database.connecting import Database, DatabaseError
from coe.serve.database.tables import Event

LOOK_S, IDLE_LOOK_S = 0.05, 1.0
"""How often the database is asked while somebody waits, and while nobody does; after a change by the gate at once."""
KEPT = 2000
"""How many events stay in memory."""
_TOGETHER = 500


class Feed:
    """The events of a database as they are appended, for any number of waiting clients of one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._newest: deque[Event] = deque(maxlen=KEPT)
        self._changed = asyncio.Condition()
        self._hurried = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting = 0
        self._known_from = 0
        self.last_id = 0
        self.closed = False

    def hurry(self) -> None:
        """Ask the database now; from any thread, after something was written."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._hurried.set)

    async def begin(self) -> None:
        """Find the newest event; clients that have seen none get those that come after it. Raises DatabaseError."""
        self._loop = asyncio.get_running_loop()
        self.last_id = self._known_from = await asyncio.to_thread(self._database.read, event_log.newest_id)

    async def run(self) -> None:
        """Look for events until `close`."""
        while not self.closed:
            new: list[Event] = []
            with suppress(DatabaseError):  # clients wait until it is back
                new = await asyncio.to_thread(self._database.read, event_log.after, self.last_id, limit=_TOGETHER)
            if new:
                self._newest.extend(new)
                self.last_id = new[-1].id
                async with self._changed:
                    self._changed.notify_all()
            if len(new) < _TOGETHER:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._hurried.wait(), LOOK_S if self._waiting else IDLE_LOOK_S)
                self._hurried.clear()

    async def after(self, id: int, timeout_s: float) -> list[Event]:
        """Return events after the event of an id, as soon as there are any; none after a time, or after `close`.

        Raises DatabaseError if events that are no longer in memory cannot be read.
        """
        oldest = self._newest[0].id - 1 if len(self._newest) == KEPT else self._known_from
        if id < oldest:
            return await asyncio.to_thread(self._database.read, event_log.after, id)
        self._waiting += 1
        if self._waiting == 1:
            self._hurried.set()
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.last_id > id or self.closed)
        except TimeoutError:
            return []
        finally:
            self._waiting -= 1
        # From the end: thousands of clients may wait, and each has seen all but the last few.
        new = list(takewhile(lambda event: event.id > id, reversed(self._newest)))
        return new[::-1]

    async def close(self) -> None:
        """End all waiting."""
        self.closed = True
        self._hurried.set()
        async with self._changed:
            self._changed.notify_all()
