"""The copy lane of a device: one load or eviction at a time, by urgency, and first come, first served within one."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from coe.core import Expert
from coe.costs import Tier
from coe.errors import CoeError, DeviceLost
from coe.events import Event, Evict, Evicted, Load, Loaded, LoadFailed, Lost
from coe.runtime.device import Device
from coe.runtime.throttle import Throttle

_FIRST, _END = -1, -2
"""Evictions go before all loads, which wait for them; an end goes before everything."""


def reason_of(error: BaseException) -> str:
    """Return what is said of an error to users: a sentence of ours as it is, else the error's type too."""
    return str(error) if isinstance(error, CoeError) else f"{type(error).__name__}: {error}"


class Disk:
    """The one disk that all lanes read from. With a throttle it is never faster than that, whatever memory caches."""

    def __init__(self, file_bytes: Mapping[str, int], throttle: Throttle | None) -> None:
        self._file_bytes, self._throttle = file_bytes, throttle
        self._lock = threading.Lock()

    def least_s(self, expert: str, now: float) -> float:
        """Begin to read an expert's file at `now`; return how many seconds that takes at least."""
        if self._throttle is None:
            return 0.0
        with self._lock:
            return self._throttle.delay_s(self._file_bytes[expert], now)


class Lane:
    """Carries out loads and evictions on the device of that name and tells what became of them.

    `tell` gets the events; `crash` gets what must not happen. Both are called on the lane's thread, which is that of
    `work`.
    """

    def __init__(
        self,
        name: str,
        device: Device,
        experts: Mapping[str, Expert],
        disk: Disk,
        *,
        tell: Callable[[Event], None],
        crash: Callable[[Exception], None],
    ) -> None:
        self._name, self._device, self._experts, self._disk = name, device, experts, disk
        self._tell, self._crash = tell, crash
        self._queue: queue.PriorityQueue[tuple[int, int, Load | Evict | None]] = queue.PriorityQueue()
        self._turn = itertools.count()
        self._closed = threading.Event()

    def put(self, command: Load | Evict) -> None:
        """Queue a command."""
        urgency = command.why.urgency if isinstance(command, Load) else _FIRST
        self._queue.put((urgency, next(self._turn), command))

    def close(self) -> None:
        """End `work` after what it does now; what is queued is left undone."""
        self._closed.set()
        self._queue.put((_END, next(self._turn), None))

    def work(self) -> None:
        """Carry out commands until `close`."""
        while (command := self._queue.get()[2]) is not None:
            if isinstance(command, Evict):
                self._evict(command)
            else:
                self._load(command)

    def _evict(self, command: Evict) -> None:
        try:
            self._forget(command.drops)
            self._device.evict(command.pool, self._experts[command.expert], keep=command.keep)
        except Exception as error:
            self._crash(error)
        else:
            self._tell(Evicted(command.pool, command.expert))

    def _load(self, command: Load) -> None:
        began = time.perf_counter()
        least_s = self._disk.least_s(command.expert, began) if command.source is Tier.DISK else 0.0
        try:
            self._forget(command.drops)
            self._device.load(command.pool, self._experts[command.expert], keep=command.keep)
        except Exception as error:
            if isinstance(error, DeviceLost):
                self._tell(Lost(self._name, str(error)))
            self._tell(LoadFailed(command.pool, command.expert, reason_of(error)))
            return
        if self._queue.empty():
            # What evictions left over counts as free: a batch may want it now.
            self._device.trim()
        # `close` comes when every reply is in: then nobody waits for this expert any more.
        self._closed.wait(max(0.0, began + least_s - time.perf_counter()))
        self._tell(Loaded(command.pool, command.expert, time.perf_counter() - began))

    def _forget(self, experts: Iterable[str]) -> None:
        for expert in experts:
            self._device.forget(expert)
