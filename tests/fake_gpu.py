"""A GPU made of CPU tensors. It logs its work, and does it as late as its marks allow; on eager streams, at once.

Code that lacks a mark therefore reads data that is not written yet, or is overwritten already, and its verdict differs.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from coe.errors import DeviceLost
from coe.runtime.cuda.driver import Usage
from coe.runtime.cuda.torch_errors import errors

FEW = (1, 4)
"""Few sizes of graphs, enough for tests with real networks."""


EAGER_WORK = "activate"
"""Work that is launched outside of graphs, and whose products of matrices therefore take a workspace for good."""


class _Products(TorchDispatchMode):
    """Notes whether matrices are multiplied."""

    met = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.met = self.met or func.overloadpacket in (torch.ops.aten.addmm_, torch.ops.aten.addmm, torch.ops.aten.mm)
        return func(*args, **(kwargs or {}))


class FakeMark:
    """A position in the queue of a fake stream."""

    def __init__(self, stream: FakeStream) -> None:
        self.stream = stream
        self.past = False

    def wait(self) -> None:
        self.stream.driver.answer("wait")
        self.stream.work_until(self)

    def is_past(self) -> bool:
        return self.past


class FakeStream:
    """A queue of work, done when a caller waits for a mark behind it; an `eager` stream does it at once."""

    def __init__(self, driver: FakeDriver, name: str) -> None:
        self.driver, self.name = driver, name
        self._pool: Callable[[], FakePool | None] = lambda: None
        self._with_workspace: set[int] = set()
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

    def pool(self) -> FakePool:
        """Return the memory pool of the stream's graphs; a new pool if the last has gone."""
        pool = self._pool() or FakePool(self.driver)
        self._pool = weakref.ref(pool)
        return pool

    def work_until(self, mark: FakeMark | None) -> None:
        """Do all work before a mark, or all work if `mark` is None."""
        with self.driver.lock:
            while self._queue and not (mark is not None and mark.past):
                first = self._queue.popleft()
                if isinstance(first, FakeMark):
                    first.past = True
                    continue
                what, work = first
                with self._counting_products() if what.startswith(EAGER_WORK) else nullcontext():
                    work()
                if what:
                    self.driver.log.append(f"{self.name}: {what}")

    @contextmanager
    def _counting_products(self) -> Iterator[None]:
        """Reserve a workspace at a thread's first product of matrices on the stream; it stays as long as the stream."""
        with _Products() as products:
            yield
        thread = threading.get_ident()
        if products.met and thread not in self._with_workspace:
            with errors():
                self.driver.reserve(self, self.driver.workspace)
            self._with_workspace.add(thread)

    def _maybe_work(self) -> None:
        if self.name in self.driver.eager:
            self.work_until(None)


class FakePool:
    """The memory of a stream's graphs; it is freed with the last graph and the last of their outputs.

    As in torch, the next graph reuses a graph's working memory if that is large enough, but not that of its outputs.
    """

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver
        self._rooms: list[int] = []

    def take(self, size: int) -> None:
        if not any(room >= size for room in self._rooms):
            self._driver.reserve(self, size)
            self._rooms.append(size)

    def outputs(self, outputs: Any) -> Any:
        """Return the outputs, copied into memory of the pool."""
        return tree_map(lambda output: self._kept(output) if torch.is_tensor(output) else output, outputs)

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        self._driver.reserve(self, tensor.nbytes)
        memory = np.zeros(max(1, tensor.nbytes), np.uint8)
        # The pool lives as long as any reference to the memory.
        weakref.finalize(memory, id, self)
        return torch.from_numpy(memory)[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)


class FakeGraph:
    """Repeats its work at each replay, and writes the results into the outputs of the capture."""

    def __init__(self, pool: FakePool, work: Callable[[], Any], outputs: Any) -> None:
        self._pool, self._work, self.outputs = pool, work, outputs

    def replay(self) -> None:
        with torch.inference_mode():
            for old, new in zip(tree_leaves(self.outputs), tree_leaves(self._work()), strict=True):
                old.copy_(new)


class _Warmth:
    """Stands for the memory of the warm-up before a capture."""


@dataclass
class FakeDriver:
    """A GPU with `total` bytes, of which a context takes `context`; each image of a graph holds `image_bytes`.

    A thread that multiplies matrices outside of graphs takes a `workspace` for its stream, as cuBLAS does on a Hopper.

    Memory is held as long as there are references to it, views included. Then it is `kept`, as by torch's allocator,
    until more is needed or it is trimmed. A garbage collection inside a capture loses the device. `troubles` maps the
    first words of an action to the errors that it raises, one after another.
    """

    total: int = 4 << 30
    context: int = 100 << 20
    image_bytes: int = 8 << 20
    workspace: int = 32 << 20
    eager: frozenset[str] = frozenset()
    troubles: dict[str, list[Exception]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    reserved: int = 0
    kept: int = 0
    peak: int = 0
    lost: bool = False
    search_kernels: bool = True
    measured_as: object = field(default_factory=object)
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _limit: int = 1 << 62
    _left: _Warmth | None = None

    def answer(self, what: str) -> None:
        """Raise the next error for an action, if there is one."""
        if self.lost:
            raise DeviceLost("the GPU has fallen off the bus")
        for beginning, due in self.troubles.items():
            if what.startswith(beginning) and due:
                error = due.pop(0)
                self.lost = isinstance(error, DeviceLost)
                raise error

    def usage(self) -> Usage:
        reserved = self.reserved + self.kept
        return Usage(self.total, self.total - self.context - reserved, reserved, self.peak)

    def limit(self, size: int) -> None:
        self._limit = size

    def device_memory(self, size: int) -> torch.Tensor:
        self.answer("memory")
        # Filled with nonsense, as on a real GPU.
        memory = np.full(size, 0x7F, np.uint8)
        with errors():
            self.reserve(memory, size)
        return torch.from_numpy(memory)

    def pinned_memory(self, size: int) -> torch.Tensor:
        self.answer("pinned")
        return torch.full((size,), 0x7F, dtype=torch.uint8)

    def stream(self, name: str) -> FakeStream:
        return FakeStream(self, name)

    def leave(self, size: int) -> None:
        """Hold bytes as work of others leaves them: a workspace of cuBLAS, until it is cleared."""
        self._left = _Warmth()
        self.reserve(self._left, size)

    def capture(self, what: str, stream: FakeStream, work: Callable[[], Any]) -> FakeGraph:
        self.answer(what)
        self._left = None
        size = int(what.rpartition("x")[2]) * self.image_bytes
        with errors(), torch.inference_mode():
            warmth = _Warmth()
            self.reserve(warmth, size)
            del warmth
            # torch gives kept memory back before a capture.
            self.kept = 0
            pool = stream.pool()
            pool.take(size)
            with self._recorded():
                outputs = pool.outputs(work())
        self.log.append(f"{stream.name}: {what}")
        return FakeGraph(pool, work, outputs)

    def trim(self) -> None:
        self.answer("trim")
        self._left = None
        self.kept = 0

    def reserve(self, holder: Any, size: int) -> None:
        """Count bytes for as long as `holder` lives."""
        most = min(self._limit, self.total - self.context)
        if self.reserved + size > most:
            raise torch.OutOfMemoryError(f"{size} bytes more than {self.reserved} of {most}")
        self.reserved += size
        self.kept = min(max(0, self.kept - size), most - self.reserved)
        self.peak = max(self.peak, self.reserved + self.kept)
        weakref.finalize(holder, self._free, size)

    def _free(self, size: int) -> None:
        self.reserved -= size
        self.kept += size

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """Watch a capture for garbage collections; as many objects are made as a network makes, to provoke one."""
        collected: list[str] = []

        def note(phase: str, _: object) -> None:
            collected.append(phase)

        gc.callbacks.append(note)
        try:
            yield
            objects = [[] for _ in range(1_000)]
            del objects
        finally:
            gc.callbacks.remove(note)
        if collected:
            self.lost = True
            raise DeviceLost("garbage was collected inside a capture")
