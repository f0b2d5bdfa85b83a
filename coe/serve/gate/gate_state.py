"""What all handlers of the gate share. The gate holds no truth of its own; another gate could take its place."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from coe.serve.bounded import Bounds
from coe.serve.clock import now_us
from coe.serve.component_pictures import Cutter
from coe.serve.credentials import SESSIONS, WatchedCertificate, place_of, read_or_make
from coe.serve.database import fault_log
from coe.serve.database.connecting import Database, DatabaseError, DatabaseErrorKind
from coe.serve.database.tables import Fault, Key
from coe.serve.enums import FaultKind
from coe.serve.gate.admissions import Admissions
from coe.serve.gate.event_feed import Feed
from coe.serve.gate.own_faults import DataDisk, OwnFaults
from coe.serve.gate.problems import Problem, ProblemKind, disk_failed
from coe.serve.gate.storage import Storage
from coe.serve.picture_folder import Pictures, Receiving
from coe.serve.service_config import ServeConfig
from coe.serve.teach.teach_work import Works

_T = TypeVar("_T")
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
    faults: OwnFaults = field(init=False)
    place: str = ""
    """The name of its data folder, which no other service has."""
    secret: bytes = b""
    """What signs sessions, as of the last look: pages need no disk for it."""
    certificates: Sequence[WatchedCertificate] = ()
    """Those of the config, as they were at the start."""
    disk: DataDisk | None = None
    """The file system of the data folder at the last look; None if it did not answer."""
    admissions: Admissions = field(default_factory=Admissions)
    places: WaitingPlaces = field(default_factory=lambda: WaitingPlaces(WAITING))

    def __post_init__(self) -> None:
        silent = partial(DatabaseError, DatabaseErrorKind.LOST, self.database.silence)
        self.works.bounds = self.bounds
        self.place = place_of(self.config.data)
        self.queries = Storage("gate", silent)
        self.files = Storage("pictures", partial(disk_failed, "does not answer"))
        self.faults = OwnFaults(lambda: self.now_us(), folders=self.config.folders)  # noqa: PLW0108 - a test replaces it

    async def run(self, work: Callable[[], _T]) -> _T:
        """Do work with the database, or that computes, on a thread; raises DatabaseError."""
        return await self.queries.do(work)

    async def keep(self, work: Callable[[], _T]) -> _T:
        """Do work with files of the service on a thread that nothing else waits for; raises Problem."""
        return await self.files.do(work)

    async def draw(self, work: Callable[[], _T]) -> _T:
        """Do work that decodes or draws a stored picture, on a thread.

        Each may take hundreds of megabytes, so few do at a time.
        """
        self.files.expect()
        async with self._drawing:
            return await self.keep(work)

    def bounds(self) -> Bounds:
        """Return the bounds of a process that begins now."""
        return Bounds(self.config.limits.child_memory, 3600 * self.config.limits.child_hours)

    def read_secret(self) -> bytes:
        """Return the secret that signs sessions; raises OSError."""
        return read_or_make(self.config.data / SESSIONS)

    async def look(self) -> None:
        """Look whether the disk of the service takes pictures, and how much of it is free; its faults tell of it."""
        found = await self.files.look(self._prove)
        if found is None:
            self.disk, found = None, TimeoutError("its disk or server does not answer; see to it")
        if isinstance(found, OSError):
            self.faults.pictures_failed(found)
        else:
            self.faults.look_at(found, self.config.limits.free_share, self.config.limits.body)

    def _prove(self) -> DataDisk | OSError:
        """Return the disk, or why it takes no picture: asyncio would log an error that is raised at each look."""
        self.disk = None
        try:
            self.disk = disk = DataDisk.of(self.config.data)  # first: a full disk says how full it is
            self.secret = self.read_secret()
            self.pictures.prove()
            return disk
        except OSError as error:
            return error

    async def drop(self, receiving: Receiving) -> None:
        """Forget a picture that is not kept; later, if its disk does not answer now. Raises OSError."""
        with suppress(Problem):
            await self.files.do(receiving.drop, surely=True)

    async def read(self, query: Callable[[Connection], _T], most_s: float = math.inf) -> _T:
        """Run a query; raises DatabaseError, also if it takes longer."""
        return await self.queries.do(partial(self._do, self.database.read, query), most_s=most_s)

    async def write(self, query: Callable[[Connection], _T]) -> _T:
        """Run a query in a transaction that is on the disk when this returns; raises DatabaseError."""
        result = await self.run(partial(self._do, self.database.write, query))
        self.feed.hurry()
        return result

    def _do(self, run: Callable[[Callable[[Connection], _T]], _T], query: Callable[[Connection], _T]) -> _T:
        try:
            return run(query)
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

    async def write_faults(self, beat: Callable[[Connection], object] | None = None) -> None:
        """Write what the gate remembers, its own faults and its admissions, if the database takes it.

        With its sign of life, `beat`, it looks whether the database answers.
        """

        def write(connection: Connection) -> list[Callable[[], None]]:
            if beat is not None:
                beat(connection)
            return [self.admissions.write(connection, self.now_us()), self.faults.write(connection)]

        def do() -> bool:
            for written in self._do(self.database.write, write):
                written()
            self.feed.hurry()
            return True

        with suppress(DatabaseError):
            if not await (self.run(do) if beat is None else self.queries.look(do)):
                self.faults.database_failed(DatabaseError(DatabaseErrorKind.LOST, self.database.silence))

    def open_faults(self, connection: Connection) -> list[Fault]:
        """Return the open faults, first those that are not in the database yet."""
        kept = fault_log.open_faults(connection)
        known = {(fault.process, fault.kind, fault.about) for fault in kept}
        new = [one for one in self.faults.unwritten() if (one.process, one.kind, one.about) not in known]
        return [*new, *kept]

    def close(self) -> None:
        """End its threads and its connections."""
        self.works.close()
        self.queries.close()
        self.files.close()
        self.database.close()
