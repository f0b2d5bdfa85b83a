"""The copy lane of a device: one load or eviction at a time, by urgency; among equals, first come, first served."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from coe.core import Expert
from coe.errors import DeviceLost, sentence_of
from coe.runtime.device import Device
from coe.runtime.throttle import Throttle
from coe.scheduler.costs import Tier
from coe.scheduler.events import Event, Evict, Evicted, Fill, Filled, FillFailed, Load, Loaded, LoadFailed, Lost

_FIRST, _END = -1, -2
"""Evictions go before all loads, because loads wait for them; the end goes before everything."""


class Disk:
    """The one disk that all lanes read from. With a throttle, reads from the page cache are no faster than the disk."""

    def __init__(self, file_bytes: Mapping[str, int], throttle: Throttle | None) -> None:
        self._file_bytes, self._throttle = file_bytes, throttle
        self._lock = threading.Lock()

    def least_s(self, expert: str, now: float) -> float:
        """Begin to read an expert's file at `now`; return the least number of seconds that the read takes."""
        if self._throttle is None:
            return 0.0
        with self._lock:
            return self._throttle.delay_s(self._file_bytes[expert], now)


class Lane:
    """Carries out loads and evictions on a device, and reports each as an event.

    `tell` gets the events. `crash` gets errors that must not happen: a failed eviction, or memory that is not given
    back. The books would be wrong from then on, so the lane ends. Both are called on the thread that runs `work`.
    """

    def __init__(
        self,
        name: str,
        device: Device,
        experts: Mapping[str, Expert],
        disk: Disk,
        *,
        tell: Callable[[Event], None],
        crash: Callable[[BaseException], None],
    ) -> None:
        self._name, self._device, self._experts, self._disk = name, device, experts, disk
        self._tell, self._crash = tell, crash
        self._queue: queue.PriorityQueue[tuple[int, int, Load | Evict | Fill | None]] = queue.PriorityQueue()
        self._turn = itertools.count()
        self._closed = threading.Event()

    def put(self, command: Load | Evict | Fill) -> None:
        """Queue a command."""
        urgency = _FIRST if isinstance(command, Evict) else command.why.urgency
        self._queue.put((urgency, next(self._turn), command))

    def close(self) -> None:
        """End `work` after its current command; queued commands are dropped."""
        self._closed.set()
        self._queue.put((_END, next(self._turn), None))

    def work(self) -> None:
        """Carry out commands until `close`."""
        try:
            while (command := self._queue.get()[2]) is not None:
                if isinstance(command, Evict):
                    self._evict(command)
                elif isinstance(command, Fill):
                    self._fill(command)
                else:
                    self._load(command)
        except BaseException as error:
            self._crash(error)

    def _evict(self, command: Evict) -> None:
        with self._losing():
            self._forget(command.drops)
            self._device.evict(command.pool, self._experts[command.expert], keep=command.keep)
        self._tell(Evicted(command.pool, command.expert))

    def _load(self, command: Load) -> None:
        began = time.perf_counter()
        least_s = self._disk.least_s(command.expert, began) if command.source is Tier.DISK else 0.0
        try:
            self._forget(command.drops)
            self._device.load(command.pool, self._experts[command.expert], keep=command.keep)
        except BaseException as error:
            if isinstance(error, DeviceLost):
                self._tell(Lost(self._name, sentence_of(error)))
            self._tell(LoadFailed(command.pool, command.expert, sentence_of(error)))
            return
        if self._queue.empty():
            # Memory left over from evictions counts as free: a batch may need it now.
            with self._losing():
                self._device.trim()
        # `close` comes when every image has its reply: then no image waits for this expert any more.
        self._closed.wait(max(0.0, began + least_s - time.perf_counter()))
        self._tell(Loaded(command.pool, command.expert, time.perf_counter() - began))

    def _fill(self, command: Fill) -> None:
        began = time.perf_counter()
        least_s = self._disk.least_s(command.expert, began)
        try:
            self._device.fill(self._experts[command.expert])
        except BaseException as error:
            if isinstance(error, DeviceLost):
                self._tell(Lost(self._name, sentence_of(error)))
            self._tell(FillFailed(command.device, command.expert, sentence_of(error)))
            return
        self._closed.wait(max(0.0, began + least_s - time.perf_counter()))
        self._tell(Filled(command.device, command.expert, time.perf_counter() - began))

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Report a lost device, and go on: its memory is lost with it."""
        try:
            yield
        except DeviceLost as error:
            self._tell(Lost(self._name, sentence_of(error)))

    def _forget(self, experts: Iterable[str]) -> None:
        for expert in experts:
            self._device.forget(expert)
