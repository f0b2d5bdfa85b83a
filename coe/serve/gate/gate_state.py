"""What all handlers of the gate share. The gate holds no truth of its own; another gate could take its place."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from coe.serve.clock import now_us
from coe.serve.component_pictures import Cutter
from coe.serve.database import fault_log
from coe.serve.database.connecting import Database
from coe.serve.database.database_errors import DatabaseError
from coe.serve.database.fault_log import Fault
from coe.serve.database.keys import Key
from coe.serve.enums import FaultKind
from coe.serve.gate.admissions import Admissions
from coe.serve.gate.event_feed import Feed
from coe.serve.gate.own_faults import DataDisk, OwnFaults
from coe.serve.gate.problems import Problem, ProblemKind
from coe.serve.picture_folder import Pictures
from coe.serve.service_config import ServeConfig
from coe.serve.teach.teach_work import Works

_T = TypeVar("_T")
THREADS = 8
"""How many requests may use the database and the disk at a time; the others wait for their turn."""
WAITING = 1000
"""How many requests may wait for events at a time, unless the server has fewer connections."""
DRAWN = 2
"""How many requests may decode a picture at a time."""


class WaitingPlaces:
    """Places for requests that wait for events: `most` at a time, half of them for one key; used by one thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._taken: Counter[int] = Counter()

    @contextmanager
    def taken(self, key: Key | None) -> Iterator[None]:
        """Take a place for the holder of a key; raises Problem if there is none."""
        id = key.id if key else 0
        if self._taken[id] >= self.most // 2 or self._taken.total() >= self.most:
            raise Problem(
                ProblemKind.TOO_MANY,
                f"{self._taken[id]:,} requests of this key and {self._taken.total():,} in all wait for events",
                "close some of them, or share one stream among many readers",
                {"Connection": "close"},
            )
        self._taken[id] += 1
        try:
            yield
        finally:
            self._taken[id] -= 1


@dataclass(eq=False)
class Gate:
    """The parts that handlers use; one for each gate process."""

    config: ServeConfig
    database: Database
    pictures: Pictures
    feed: Feed
    now_us: Callable[[], int] = now_us
    cutter: Cutter = field(default_factory=Cutter)
    held_bytes: int = 0
    """The bytes of bodies that are in memory now."""
    works: Works = field(default_factory=Works)
    """The commands that run for boards which people teach."""
    _drawing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DRAWN))
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "coe-gate"))
    faults: OwnFaults = field(init=False)
    admissions: Admissions = field(default_factory=Admissions)
    places: WaitingPlaces = field(default_factory=lambda: WaitingPlaces(WAITING))

    def __post_init__(self) -> None:
        self.faults = OwnFaults(lambda: self.now_us(), folders=self.config.folders)  # noqa: PLW0108 - a test replaces it

    async def run(self, work: Callable[[], _T]) -> _T:
        """Do work that waits for a disk on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def draw(self, work: Callable[[], _T]) -> _T:
        """Do work that decodes a picture on a thread; each may take hundreds of megabytes, so few do at a time."""
        async with self._drawing:
            return await self.run(work)

    async def read(self, query: Callable[[Connection], _T]) -> _T:
        """Run a query; raises DatabaseError."""
        return await self.run(partial(self._do, self.database.reading, query))

    async def write(self, query: Callable[[Connection], _T]) -> _T:
        """Run a query in a transaction that is on the disk when this returns; raises DatabaseError."""
        result = await self.run(partial(self._do, self.database.writing, query))
        self.feed.hurry()
        return result

    def _do(self, opened: Callable[[], AbstractContextManager[Connection]], query: Callable[[Connection], _T]) -> _T:
        try:
            with opened() as connection:
                return query(connection)
        except DatabaseError as error:
            self.faults.database_failed(error)
            raise

    async def note_fault(self, kind: FaultKind, message: str, about: str = "") -> None:
        """Record a fault of the gate; it is shown at once, and written now or when the database is back."""
        self.faults.note(kind, message, about)
        await self.write_faults()

    async def overcome(self, kind: FaultKind, about: str = "") -> None:
        """Clear a fault of the gate, if it was noted, because the same work has now succeeded."""
        if self.faults.overcome(kind, about):
            await self.write_faults()

    async def write_faults(self, also: Callable[[Connection], object] = lambda connection: None) -> None:
        """Write what the gate remembers, its own faults and its admissions, and `also`, if the database takes it."""

        def write(connection: Connection) -> list[Callable[[], None]]:
            also(connection)
            return [self.admissions.write(connection, self.now_us()), self.faults.write(connection)]

        with suppress(DatabaseError):
            for written in await self.write(write):
                written()

    def open_faults(self, connection: Connection) -> list[Fault]:
        """Return the open faults, first those that are not in the database yet."""
        kept = fault_log.open_faults(connection)
        known = {(fault.process, fault.kind, fault.about) for fault in kept}
        new = [one for one in self.faults.unwritten() if (one.process, one.kind, one.about) not in known]
        return [*new, *kept]

    def disk(self) -> DataDisk:
        """Return the file system of the data folder as it is now; raises OSError."""
        return DataDisk.of(self.config.data)

    def close(self) -> None:
        """End its threads and its connections."""
        self.works.close()
        self._threads.shutdown()
        self.database.close()
