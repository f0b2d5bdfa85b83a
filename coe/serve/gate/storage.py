"""What may stop answering, a disk or a database, and the threads that wait for it.

A call that hangs in the system cannot be ended. So a look, now and then and on a thread of its own, tells whether
there is an answer; while there is none, whoever waits is told so, and nothing new begins.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection

from coe.helpers import files
from coe.serve.database import fault_log
from coe.serve.database.connecting import BUSY_S, MAX_WAL_BYTES, NO_ROOM_BYTES, DatabaseError, DatabaseErrorKind
from coe.serve.database.tables import Fault, NewFault
from coe.serve.enums import FaultKind, Process

_T = TypeVar("_T")
THREADS = 8  # how many requests may wait for one storage at a time; the others wait for their turn
ANSWERS_S = BUSY_S + 1.0  # what takes longer for a small write does not answer; a locked database says so before
GLANCE_S = 0.5  # how often whoever waits looks whether there will be an answer


class Storage:
    """A disk or a database; `silent` makes the error of those who ask while it does not answer."""

    def __init__(self, name: str, silent: Callable[[], Exception]) -> None:
        self._silent, self.answers_s = silent, ANSWERS_S
        self._threads = ThreadPoolExecutor(THREADS, f"coe-{name}")
        self._look_thread = ThreadPoolExecutor(1, f"coe-{name}-look")
        self._look: Future[Any] | None = None
        """A look that has not come back."""
        self._look_s = 0.0
        self._refusal: BaseException | None = None
        """Why the last look was refused; None if it was not, or for want of room."""
        self.is_silent = False
        """Whether the last look got no answer, or learned after a while that there is nobody to give one."""

    def expect(self) -> None:
        """Raise its error if it does not answer."""
        if self.is_silent:
            raise self._silent()

    async def do(self, work: Callable[[], _T], *, most_s: float = math.inf, surely: bool = False) -> _T:
        """Do work on a thread; raises its error as soon as it does not answer, or when the work takes longer.

        Where the last look was refused, no work may take longer than a look: one is refused where another hangs.

        Work that was begun goes on then, and ends when there is an answer; what is done `surely` begins even then.
        """
        if not surely:
            self.expect()
        begun_s, future = time.monotonic(), _awaited(self._threads.submit(work))
        while not (await asyncio.wait({future}, timeout=min(GLANCE_S, most_s)))[0]:
            waited_s = time.monotonic() - begun_s
            is_late = waited_s >= (min(most_s, self.answers_s) if self._refusal else most_s)
            if (self.is_silent or is_late) and not future.done():
                if not surely:
                    future.cancel()
                raise (None if self.is_silent else self._refusal) or self._silent()
        return future.result()

    async def look(self, work: Callable[[], _T]) -> _T | None:
        """Do a small piece of work; None if there is no answer. While there is none, no further work begins."""
        look: Future[_T] | None = self._look
        if look is None:
            look, self._look_s = self._look_thread.submit(work), time.monotonic()
            # In slices, so that the time counts that this process had: a busy box is no slow disk.
            slice_s, awaited = min(GLANCE_S, self.answers_s), _awaited(look)
            for _ in range(math.ceil(self.answers_s / slice_s)):
                if (await asyncio.wait({awaited}, timeout=slice_s))[0]:
                    break
        if not look.done():
            self._look, self.is_silent = look, True
            return None
        error, self._look = look.exception(), None
        kind = error.kind if isinstance(error, DatabaseError) else None
        self._refusal = error if kind in (DatabaseErrorKind.BUSY, DatabaseErrorKind.LOST) else None
        self.is_silent = kind is DatabaseErrorKind.LOST and time.monotonic() - self._look_s > GLANCE_S
        return look.result()

    def close(self) -> None:
        """End its threads."""
        for threads in (self._threads, self._look_thread):
            threads.shutdown()


def _awaited(work: Future[_T]) -> asyncio.Future[_T]:
    """Return a future of the loop for work on a thread; asyncio does not log an error after which nobody asks."""
    future = asyncio.wrap_future(work)
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return future


# The gate's own faults. They are kept in memory until they are written, because the fault log may be what failed.
HOLD_S = 10.0  # how long a fault of disk or database stays: a small row may fit where a board does not
DATABASE = "database"  # what a full disk is about if the database met it; empty for pictures
ROOM_AGAIN = 1.1  # so many times the share at which it comes, a warning clears itself
_Key = tuple[FaultKind, str]
_NO_DATABASE: _Key = (FaultKind.DATABASE, DATABASE)
_FULL: tuple[_Key, ...] = ((FaultKind.DISK_FULL, DATABASE), (FaultKind.DISK_FULL, ""))
_FAILED: _Key = (FaultKind.DISK_FAILED, "")
_LOW: _Key = (FaultKind.DISK_LOW, "")


@dataclass(frozen=True, slots=True)
class DataDisk:
    """The file system of the data folder, in bytes."""

    total: int
    free: int

    @classmethod
    def of(cls, folder: Path) -> DataDisk:
        """Return that of a folder; raises OSError."""
        usage = shutil.disk_usage(folder)
        return cls(usage.total, usage.free)

    @property
    def free_share(self) -> float:
        """The share that is free, 0..1."""
        return self.free / self.total if self.total else 0.0


@dataclass(slots=True)
class _Noted:
    fault: Fault
    seen_s: float
    is_written: bool = False


class OwnFaults:
    """The open faults of this process; any thread may use it."""

    def __init__(
        self, now_us: Callable[[], int], now_s: Callable[[], float] = time.monotonic, folders: Iterable[str] = ()
    ) -> None:
        self._now_us, self._now_s = now_us, now_s
        self._lock = threading.Lock()
        self._open: dict[_Key, _Noted] = {}
        self._over: set[_Key] = set()
        # They may be open from before this process was started.
        self._unsure: set[_Key] = {_NO_DATABASE, *_FULL, _FAILED, _LOW, (FaultKind.RETENTION, "")}
        self._unsure |= {(FaultKind.FOLDER, name) for name in folders}

    def note(self, kind: FaultKind, message: str, about: str = "") -> None:
        """Note a fault; it is shown from now on, and written by the next `write`."""
        key, now_us = (kind, about), self._now_us()
        with self._lock:
            before = self._open.get(key)
            fault = (
                Fault(Process.WEB, kind, message, about, id=0, raised_us=now_us, seen_us=now_us)
                if before is None
                else replace(before.fault, message=message, seen_us=now_us, times=before.fault.times + 1)
            )
            self._open[key] = _Noted(fault, self._now_s())
            self._over.discard(key)
        if before is None:
            _log(message)

    def database_failed(self, error: DatabaseError) -> None:
        """Note that the database did not do what it was asked."""
        kind = FaultKind.DISK_FULL if error.kind is DatabaseErrorKind.FULL else FaultKind.DATABASE
        self.note(kind, str(error), DATABASE)

    def pictures_failed(self, error: OSError) -> None:
        """Note that the folder of pictures did not take what was written."""
        kind = FaultKind.DISK_FULL if files.is_full(error) else FaultKind.DISK_FAILED
        self.note(kind, f"a picture could not be written: {error.strerror or error}")

    def overcome(self, kind: FaultKind, about: str = "") -> bool:
        """Clear a fault, because the same work has now succeeded; return whether there is something to write."""
        key = (kind, about)
        with self._lock:
            noted = self._open.pop(key, None)
            if noted is None and key not in self._unsure:
                return False
            self._unsure.discard(key)
            self._over.add(key)
        if noted is not None:
            _log(f"over: {noted.fault.message}")
        return True

    def look_at(self, disk: DataDisk, least_share: float, largest_body: int) -> None:
        """Take in a disk that answers: warn before it is full, and see when there is room again."""
        self._pass(_FAILED)
        if disk.free < NO_ROOM_BYTES:
            self.remind(*_FULL[1], "the disk of the service's folder is full; make room")
        elif disk.free > min(MAX_WAL_BYTES + largest_body, disk.total // 2):  # a small disk never has the first
            self._pass(*_FULL)
        if disk.free_share < least_share:
            free = f"under {int(100 * disk.free_share) + 1} % of the disk of the service's folder is free"
            self.remind(*_LOW, f"{free}, less than `limits.free_share`; make room before it is full")
        elif disk.free_share >= ROOM_AGAIN * least_share:
            self.overcome(*_LOW)

    def remind(self, kind: FaultKind, about: str, message: str) -> None:
        """Note a fault that goes on, again whenever there is more to say of it."""
        with self._lock:
            noted = self._open.get((kind, about))
        if noted is None or noted.fault.message != message:
            self.note(kind, message, about)

    def write(self, connection: Connection) -> Callable[[], None]:
        """Write what is new into the fault log; call what this returns once the transaction is on the disk."""
        self._pass(_NO_DATABASE)
        with self._lock:
            new = {key: noted for key, noted in self._open.items() if not noted.is_written}
            over = set(self._over)
        now_us = self._now_us()
        for (kind, about), noted in new.items():
            fault_log.note(connection, NewFault(Process.WEB, kind, noted.fault.message, about), now_us)
        for kind, about in over:
            fault_log.clear_about(connection, Process.WEB, kind, about=about, now_us=now_us)

        def written() -> None:
            with self._lock:
                for noted in new.values():
                    noted.is_written = True
                self._over -= over

        return written

    def unwritten(self) -> list[Fault]:
        """Return the faults that the fault log does not show yet, the newest first."""
        with self._lock:
            faults = [noted.fault for noted in self._open.values() if not noted.is_written]
        return sorted(faults, key=lambda fault: -fault.seen_us)

    def of_storage(self) -> str:
        """Return why nothing can be kept now; empty if it can."""
        with self._lock:
            keys = (_NO_DATABASE, *_FULL, _FAILED)
            return next((self._open[key].fault.message for key in keys if key in self._open), "")

    def _pass(self, *keys: _Key) -> None:
        now_s = self._now_s()
        for key in keys:
            with self._lock:
                noted = self._open.get(key)
            if noted is None or now_s - noted.seen_s >= HOLD_S:
                self.overcome(*key)


def _log(message: str) -> None:
    sys.stderr.write(f"gate: {message}\n")
    sys.stderr.flush()
