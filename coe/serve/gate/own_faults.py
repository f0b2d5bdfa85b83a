"""The gate's own faults. They are kept in memory until they are written, because the fault log may be what failed.

A locked database or a full disk is shown at once: on the pages, at the API, in the metrics, by the readiness, and in
the log of the process.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import Connection

from coe.helpers import files
from coe.serve.database import fault_log
from coe.serve.database.connecting import MAX_WAL_BYTES, NO_ROOM_BYTES, DatabaseError, DatabaseErrorKind
from coe.serve.database.tables import Fault, NewFault
from coe.serve.enums import FaultKind, Process

HOLD_S = 10.0
"""How long a fault of disk or database stays after it was last met: a small row may fit where a board does not."""
DATABASE = "database"
"""What a full disk is about if the database met it; empty for pictures."""
ROOM_AGAIN = 1.1
"""The warning clears itself at so many times the share below which it comes, so that it does not come and go."""
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
        """Clear faults that were not met for a while."""
        now_s = self._now_s()
        for key in keys:
            with self._lock:
                noted = self._open.get(key)
            if noted is None or now_s - noted.seen_s >= HOLD_S:
                self.overcome(*key)


def _log(message: str) -> None:
    sys.stderr.write(f"gate: {message}\n")
    sys.stderr.flush()
