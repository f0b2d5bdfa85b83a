"""A GPU made of CPU tensors: work is done as late as its marks allow, or on eager streams as early, and is logged.

So what lacks a mark reads what was not written yet, or what was overwritten already, and gives another verdict.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from coe.errors import DeviceFull, DeviceLost
from coe.runtime.cuda.driver import Usage


class FakeMark:
    """A place in the queue of a fake stream."""

    def __init__(self, stream: FakeStream) -> None:
        self.stream = stream
        self.past = False

    def wait(self) -> None:
        self.stream.driver.answer("wait")
        self.stream.work_until(self)

    def is_past(self) -> bool:
        return self.past


class FakeStream:
    """Work that waits until somebody asks for a mark behind it; with `eager` it is done as soon as it is put."""

    def __init__(self, driver: FakeDriver, name: str) -> None:
        self.driver, self.name = driver, name
        self._queue: deque[FakeMark | tuple[str, Callable[[], object]]] = deque()

    def do(self, what: str, work: Callable[[], object]) -> None:
        self.driver.answer(what)
        with self.driver.lock:
            self._queue.append((what, work))
        self._maybe_work()

    def wait(self, mark: FakeMark) -> None:
        with self.driver.lock:
            self._queue.append(("", lambda: mark.stream.work_until(mark)))
        self._maybe_work()

    def mark(self) -> FakeMark:
        mark = FakeMark(self)
        with self.driver.lock:
            self._queue.append(mark)
        self._maybe_work()
        return mark

    def work_until(self, mark: FakeMark | None) -> None:
        """Do all that stands before a mark, or everything."""
        with self.driver.lock:
            while self._queue and not (mark is not None and mark.past):
                first = self._queue.popleft()
                if isinstance(first, FakeMark):
                    first.past = True
                    continue
                what, work = first
                work()
                if what:
                    self.driver.log.append(f"{self.name}: {what}")

    def _maybe_work(self) -> None:
        if self.name in self.driver.eager:
            self.work_until(None)


class FakeGraph:
    """Does its work anew at each replay, and writes the results where they were the first time."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        with torch.inference_mode():
            self.outputs = work()

    def replay(self) -> None:
        with torch.inference_mode():
            for old, new in zip(tree_leaves(self.outputs), tree_leaves(self._work()), strict=True):
                old.copy_(new)


@dataclass
class FakeDriver:
    """A GPU with `total` bytes, of which a context takes `context`; each image of a graph holds `image_bytes`.

    Memory that nobody holds any more is `kept`, as by torch's allocator, until more is needed or it is trimmed.

    `troubles` maps the beginning of what is done to the errors that this raises, one after another.
    """

    total: int = 4 << 30
    context: int = 100 << 20
    image_bytes: int = 8 << 20
    eager: frozenset[str] = frozenset()
    troubles: dict[str, list[Exception]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    reserved: int = 0
    kept: int = 0
    peak: int = 0
    lost: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _limit: int = 1 << 62

    def answer(self, what: str) -> None:
        """Raise what is due."""
        if self.lost:
            raise DeviceLost("the GPU has fallen off the bus")
        for beginning, errors in self.troubles.items():
            if what.startswith(beginning) and errors:
                error = errors.pop(0)
                self.lost = isinstance(error, DeviceLost)
                raise error

    def usage(self) -> Usage:
        reserved = self.reserved + self.kept
        return Usage(self.total, self.total - self.context - reserved, reserved, self.peak)

    def limit(self, size: int) -> None:
        self._limit = size

    def device_memory(self, size: int) -> torch.Tensor:
        self.answer("memory")
        # Full of nonsense, as a real one.
        memory = torch.full((size,), 0x7F, dtype=torch.uint8)
        self.reserve(memory, size)
        return memory

    def pinned_memory(self, size: int) -> torch.Tensor:
        self.answer("pinned")
        return torch.full((size,), 0x7F, dtype=torch.uint8)

    def stream(self, name: str) -> FakeStream:
        return FakeStream(self, name)

    def capture(self, what: str, stream: FakeStream, work: Callable[[], Any]) -> FakeGraph:
        self.answer(what)
        graph = FakeGraph(work)
        self.reserve(graph, int(what.rpartition("x")[2]) * self.image_bytes)
        self.log.append(f"{stream.name}: {what}")
        return graph

    def trim(self) -> None:
        self.answer("trim")
        self.kept = 0

    def reserve(self, holder: Any, size: int) -> None:
        """Count bytes for as long as `holder` lives."""
        if self.reserved + size > self._limit:
            raise DeviceFull(f"{size} bytes more than {self.reserved} of {self._limit}")
        self.reserved += size
        self.kept = max(0, self.kept - size)
        self.peak = max(self.peak, self.reserved)
        weakref.finalize(holder, self._free, size)

    def _free(self, size: int) -> None:
        self.reserved -= size
        self.kept += size
