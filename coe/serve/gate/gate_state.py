"""What all handlers of the gate share. The gate holds no truth of its own; another gate could take its place."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
from coe.serve.gate.problems import Problem, ProblemKind, disk_failed
from coe.serve.picture_folder import Pictures
from coe.serve.service_config import ServeConfig
from coe.serve.teach.teach_work import Works

_T = TypeVar("_T")
THREADS = 8
"""How many requests may use the database at a time, and how many the pictures; the others wait for their turn."""
ANSWERS_S = 5.0
"""A folder of pictures that takes longer for an empty file does not answer."""
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
    _picture_threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "coe-pictures"))
    _look_thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "coe-disk"))
    _look: Future[DataDisk | OSError] | None = None
    """A look at the disk that has not come back."""
    faults: OwnFaults = field(init=False)
    admissions: Admissions = field(default_factory=Admissions)
    places: WaitingPlaces = field(default_factory=lambda: WaitingPlaces(WAITING))

    def __post_init__(self) -> None:
        self.faults = OwnFaults(lambda: self.now_us(), folders=self.config.folders)  # noqa: PLW0108 - a test replaces it

    async def run(self, work: Callable[[], _T]) -> _T:
        """Do work that waits for a disk on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def keep(self, work: Callable[[], _T]) -> _T:
        """Do work with stored pictures on a thread that nothing else waits for."""
        return await asyncio.get_running_loop().run_in_executor(self._picture_threads, work)

    async def draw(self, work: Callable[[], _T]) -> _T:
        """Do work that decodes a picture on a thread; each may take hundreds of megabytes, so few do at a time."""
        self.expect_pictures()
        async with self._drawing:
            return await self.keep(work)

    def expect_pictures(self) -> None:
        """Raise Problem if the folder of pictures does not answer."""
        if self._look is not None:
            raise disk_failed("does not answer")

    async def look(self) -> None:
        """Look whether the disk of the service takes pictures, and how much of it is free; its faults tell of it."""
        most_s = ANSWERS_S if self._look is None else 0.0
        look = self._look or self._look_thread.submit(self._prove)
        await asyncio.wait({asyncio.wrap_future(look)}, timeout=most_s)
        self._look = None if look.done() else look
        if self._look is not None:
            self.faults.pictures_silent()
            return
        found = look.result()
        if isinstance(found, OSError):
            self.faults.pictures_failed(found)
        else:
            self.faults.look_at(found, self.config.limits.free_share, self.config.limits.body)

    def _prove(self) -> DataDisk | OSError:
        """Return the disk, or why it takes no picture: asyncio would log an error that is raised at each look."""
        try:
            self.pictures.prove()
            return self.disk()
        except OSError as error:
            return error

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
        for threads in (self._threads, self._picture_threads, self._look_thread):
            threads.shutdown()
        self.database.close()
