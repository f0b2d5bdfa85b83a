"""What all handlers of the gate share. The gate holds no truth of its own; another gate could take its place."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import TypeVar

from sqlalchemy import Connection

from coe.serve.clock import now_us
from coe.serve.component_pictures import Cutter
from coe.serve.credentials import SESSIONS, WatchedCertificate, place_of, read_or_make
from coe.serve.database import audit, call_rows, event_log, fault_log, keys
from coe.serve.database.connecting import Database, DatabaseError, DatabaseErrorKind
from coe.serve.database.tables import Event, Fault, Key
from coe.serve.enums import FaultKind, Role
from coe.serve.gate.problems import Problem, ProblemKind, disk_failed
from coe.serve.gate.storage import DataDisk, OwnFaults, Storage
from coe.serve.picture_folder import Pictures, Receiving
from coe.serve.service_config import ServeConfig
from coe.serve.teach.teach_work import Bounds, Works

_T = TypeVar("_T")
WAITING = 1000  # how many requests may wait for events at a time, unless the server has fewer connections
DRAWN = 2  # how many requests may decode a picture at a time


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


LOOK_S, IDLE_LOOK_S = 0.05, 1.0  # while somebody waits, and while nobody does; after a change by the gate at once
KEPT = 2000  # how many events stay in memory
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
        """Return the events after an id once there are any; none after a time or `close`. Raises DatabaseError."""
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


EVERY_S = 60.0  # how often wrong keys are written into the audit chain, if there were any
MOST_SENDERS = 20  # how many senders of wrong keys are named in one minute; the others are counted together
MOST_TRIES, LOCKED_S = 5, 300.0  # after so many wrong badges of a place or PINs of a name, for so long
_MOST_HELD = 1000


@dataclass(frozen=True, slots=True)
class HeldSession:
    """A session that began at `began_us` from an address, and that the database does not know yet."""

    name: str
    key: Key
    sender: str
    began_us: int
    ends_us: int


class Admissions:
    """Sessions that began or ended while the database took nothing, and wrong keys; any thread may use it."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s, self._lock = now_s, threading.Lock()
        self._held: dict[str, HeldSession] = {}
        self._ended: dict[str, str] = {}
        self._wrong: Counter[str] = Counter()
        self._next_s = 0.0
        self._tries: dict[str, tuple[int, float]] = {}
        self.guessing = asyncio.Lock()
        """Held from the look at earlier tries until this one counts: of many at a time each would be the first."""

    def begin(self, session: HeldSession) -> None:
        """Begin a session; of too many that wait for the database, the oldest ends."""
        with self._lock:
            if len(self._held) >= _MOST_HELD:
                del self._held[next(iter(self._held))]
            self._held[session.name] = session

    def end(self, name: str, by: str) -> None:
        """End a session, whoever knows it."""
        with self._lock:
            self._held.pop(name, None)
            self._ended[name] = by

    def key_of(self, connection: Connection, name: str, now_us: int, longest_us: Callable[[Role], int]) -> Key | None:
        """Return the key of a session, if both are valid now, whether the database knows the session or not."""
        with self._lock:
            held = self._held.get(name)
            if name in self._ended:
                return None
        if held is not None:
            return keys.by_id(connection, held.key.id, now_us) if now_us < held.ends_us else None
        return keys.of_session(connection, name, now_us, longest_us)

    def wait_s(self, who: str) -> float:
        """Return for how many seconds nobody may try a badge or a PIN of these; 0 if somebody may."""
        with self._lock:
            times, last_s = self._tries.get(who, (0, 0.0))
        return max(0.0, last_s + LOCKED_S - self._now_s()) if times >= MOST_TRIES else 0.0

    def tried(self, who: str, *, is_right: bool) -> None:
        """Note a try; a right one, or a pause, makes earlier wrong ones forgotten."""
        now_s = self._now_s()
        with self._lock:
            tries = {one: (times, at_s) for one, (times, at_s) in self._tries.items() if now_s < at_s + LOCKED_S}
            times, _ = tries.pop(who, (0, 0.0))
            if not is_right:
                tries[who] = (times + 1, now_s)
            self._tries = tries

    def refuse(self, sender: str) -> None:
        """Count a wrong key from an address."""
        with self._lock:
            known = sender in self._wrong or len(self._wrong) < MOST_SENDERS
            self._wrong[sender if known else "others"] += 1

    def write(self, connection: Connection, now_us: int) -> Callable[[], None]:
        """Write what is new; call what this returns once the transaction is on the disk."""
        now_s = self._now_s()
        with self._lock:
            held, ended = list(self._held.values()), dict(self._ended)
            wrong = Counter(self._wrong if now_s >= self._next_s else {})
        for one in held:
            # A write that was given up, or another at the same moment, may have added it.
            if keys.begin_session(connection, one.key, one.name, now_us=one.began_us, ends_us=one.ends_us):
                audit.append(connection, one.key.name, "sign in", one.sender, now_us=one.began_us)
        for name, by in ended.items():
            keys.end_session(connection, name)
            call_rows.free(connection, name)
            audit.append(connection, by, "sign out", "session", now_us=now_us)
        for sender, times in wrong.items():
            audit.append(connection, "nobody", "wrong key", sender, now_us=now_us, detail={"times": times})

        def written() -> None:
            with self._lock:
                for one in held:
                    self._held.pop(one.name, None)
                for name in ended:
                    self._ended.pop(name, None)
                self._wrong -= wrong
                if wrong:
                    self._next_s = now_s + EVERY_S

        return written


@dataclass(eq=False)
class Gate:
    """The parts that handlers use; one for each gate process."""

    config: ServeConfig
    database: Database
    pictures: Pictures
    feed: Feed
    now_us: Callable[[], int] = now_us
    cutter: Cutter = field(default_factory=Cutter)
    held_bytes: int = 0  # the bytes of bodies that are in memory now
    works: Works = field(default_factory=Works)  # the commands that run for boards which people teach
    _drawing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DRAWN))
    faults: OwnFaults = field(init=False)
    place: str = ""  # the name of its data folder, which no other service has
    secret: bytes = b""  # what signs sessions, as of the last look: pages need no disk for it
    certificates: Sequence[WatchedCertificate] = ()  # those of the config, as they were at the start
    disk: DataDisk | None = None  # the file system of the data folder at the last look; None if it did not answer
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
        """Do work that decodes or draws a picture on a thread; few at a time, as each takes hundreds of megabytes."""
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
            self.disk, found = None, TimeoutError("its disk or server does not answer; check it")
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
        """Write the gate's faults and admissions, and with `beat` its sign of life, if the database answers."""

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
