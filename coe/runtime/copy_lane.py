"""The threads that bring experts and take them away: one reads the disk for all devices, others copy to a device each.

What is carried next is decided by `coe.scheduler.load_queue`, as in the simulator.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from coe.core import Expert
from coe.errors import DeviceLost, sentence_of
from coe.runtime.device import Device
from coe.scheduler.costs import Tier
from coe.scheduler.events import (
    Event,
    Evict,
    Evicted,
    Fetched,
    Fill,
    Filled,
    FillFailed,
    Load,
    Loaded,
    LoadFailed,
    Lost,
)
from coe.scheduler.load_queue import READER, LoadQueue


class Disk:
    """The disk: with `bytes_per_s`, a load takes at least its bytes divided by that, as arithmetic.

    `file_bytes` are, by expert, the sizes of what a load reads. Loads are read one after another, and idle time earns
    no credit (a token bucket without depth). It does not sleep, lock or read a clock: the loader waits.
    """

    def __init__(self, file_bytes: Mapping[str, int], bytes_per_s: float | None = None) -> None:
        self._file_bytes, self._bytes_per_s = file_bytes, bytes_per_s
        self._free_s = float("-inf")

    def least_s(self, expert: str, now: float) -> float:
        """Begin to read an expert's file at `now` (which never decreases); return the least seconds that it takes."""
        if self._bytes_per_s is None:
            return 0.0
        self._free_s = max(self._free_s, now) + self._file_bytes[expert] / self._bytes_per_s
        return self._free_s - now


class CopyLanes:
    """Carries out loads, evictions and fills, and reports each as an event.

    A device's evictions go before its loads, because loads wait for them; the thread of its copy lane carries them out
    or, if it has none, the disk reader. `pools` holds the device of each pool.

    `tell` gets the events. `crash` gets errors that must not happen: a failed eviction, or memory that is not given
    back. The books would be wrong from then on, so the thread ends. Both must not wait: they are called under a lock.
    """

    def __init__(
        self,
        devices: Mapping[str, Device],
        pools: Mapping[str, str],
        experts: Mapping[str, Expert],
        disk: Disk,
        *,
        tell: Callable[[Event], None],
        crash: Callable[[BaseException], None],
    ) -> None:
        self._devices, self._pools, self._experts, self._disk = dict(devices), pools, experts, disk
        self._tell, self._crash = tell, crash
        self._lanes = LoadQueue(pools, [name for name, device in devices.items() if device.has_lane])
        self._evictions: dict[str | None, deque[Evict]] = {place: deque() for place in self._lanes.places}
        self._began: dict[tuple[str, str], float] = {}
        self._turn = threading.Condition()
        self._closed = threading.Event()

    def thread_functions(self) -> dict[str, Callable[[], None]]:
        """Return the function of each thread, by the name of the thread."""
        names = {place: "coe-disk" if place is READER else f"coe-lane-{place}" for place in self._lanes.places}
        return {name: partial(self._work, place) for place, name in names.items()}

    def put(self, command: Load | Evict | Fill) -> None:
        """Queue a command."""
        with self._turn:
            if isinstance(command, Evict):
                device = self._pools[command.pool]
                self._evictions[device if device in self._evictions else READER].append(command)
            else:
                self._lanes.put(command)
            self._turn.notify_all()

    def close(self) -> None:
        """End the threads after their current commands; queued commands are dropped."""
        self._closed.set()
        with self._turn:
            self._turn.notify_all()

    def release(self) -> None:
        """Let go of the devices, once the threads have ended."""
        self._devices.clear()

    def _work(self, place: str | None) -> None:
        try:
            while (command := self._next(place)) is not None:
                if isinstance(command, Evict):
                    self._evict(command)
                elif isinstance(command, Fill):
                    self._fill(command)
                else:
                    self._carry(command, place)
            for name, device in self._devices.items():
                if place == (name if device.has_lane else READER):
                    device.leave()
        except BaseException as error:
            self._crash(error)

    def _next(self, place: str | None) -> Load | Evict | Fill | None:
        with self._turn:
            while not self._closed.is_set():
                if self._evictions[place]:
                    return self._evictions[place].popleft()
                if (load := self._lanes.begin(place)) is not None:
                    return load
                self._turn.wait()
        return None

    def _evict(self, command: Evict) -> None:
        name = self._pools[command.pool]
        with self._losing(name):
            for copy in command.drops:
                self._devices[name].forget(copy)
            expert = self._experts[command.expert]
            self._devices[name].evict(command.pool, expert, keep_copy=command.keep_copy)
        self._tell(Evicted(command.pool, command.expert))

    def _carry(self, load: Load, place: str | None) -> None:
        """Carry an expert as far as one place does: into host memory, or into its pool."""
        began, name = time.perf_counter(), self._pools[load.pool]
        since_s = self._began.setdefault((load.pool, load.expert), began)
        reads = place is READER and load.source is Tier.DISK
        least_s = self._disk.least_s(load.expert, began) if reads else 0.0
        reason = self._tried(name, partial(self._bring, load, place))
        if reason is None:
            if not self._waits(name):
                # Memory left over from evictions counts as free: a batch may need it now.
                with self._losing(name):
                    self._devices[name].trim()
            # `close` comes when every image has its reply: then no image waits for this expert any more.
            self._closed.wait(max(0.0, began + least_s - time.perf_counter()))
        with self._turn:
            # Told before another thread goes on with the load, so that events come in the order of what happened.
            if self._lanes.end(place, failed=reason is not None):
                del self._began[load.pool, load.expert]
                failed = None if reason is None else LoadFailed(load.pool, load.expert, reason)
                self._tell(failed or Loaded(load.pool, load.expert, time.perf_counter() - since_s))
            else:
                self._tell(Fetched(load.pool, load.expert))
            self._turn.notify_all()

    def _fill(self, fill: Fill) -> None:
        """Read an expert into host memory, on the thread of the disk reader."""
        began = time.perf_counter()
        least_s = self._disk.least_s(fill.expert, began)
        reason = self._tried(fill.device, lambda: self._devices[fill.device].fill(self._experts[fill.expert]))
        if reason is None:
            self._closed.wait(max(0.0, began + least_s - time.perf_counter()))
        failed = None if reason is None else FillFailed(fill.device, fill.expert, reason)
        with self._turn:
            self._lanes.end(READER, failed=failed is not None)
            self._tell(failed or Filled(fill.device, fill.expert, time.perf_counter() - began))
            self._turn.notify_all()

    def _tried(self, device: str, work: Callable[[], None]) -> str | None:
        """Do work for a device, and report if it is lost; return why the work failed, if it did."""
        try:
            work()
        except BaseException as error:
            if isinstance(error, DeviceLost):
                self._tell(Lost(device, sentence_of(error)))
            return sentence_of(error)
        return None

    def _bring(self, load: Load, place: str | None) -> None:
        device, expert = self._devices[self._pools[load.pool]], self._experts[load.expert]
        if place is READER:
            for copy in load.drops:
                device.forget(copy)
        if place is READER and device.has_lane:
            device.read(load.pool, expert)
        else:
            device.load(load.pool, expert, keep_copy=load.keep_copy)

    def _waits(self, device: str) -> bool:
        with self._turn:
            evictions = (command for queue in self._evictions.values() for command in queue)
            return self._lanes.waits(device) or any(self._pools[evict.pool] == device for evict in evictions)

    @contextmanager
    def _losing(self, device: str) -> Iterator[None]:
        """Report a lost device, and go on: its memory is lost with it."""
        try:
            yield
        except DeviceLost as error:
            self._tell(Lost(device, sentence_of(error)))
