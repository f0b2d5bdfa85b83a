"""A GPU made of CPU tensors. It logs its work, and does it as late as its marks allow; on eager streams, at once.

Code that lacks a mark therefore reads data that is not written yet, or is overwritten already, and its verdict differs.

As on a real GPU the host's part of a launch happens at the launch, on one thread at a time, and what was put on a
stream holds no memory: memory that goes before the device has used it is a fault. A graph replays the operations that
were recorded, on the very memory of the capture, and runs no line of Python again. Whatever makes the host wait ends a
capture. What is captured ran before, to warm up.
"""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from coe.errors import DeviceLost
from coe.runtime.cuda.torch_driver import Usage, errors

FEW = (1, 4)
"""Few sizes of graphs, enough for tests with real networks."""

_PRODUCTS = {"addmm_", "addmm", "mm", "bmm", "baddbmm", "matmul", "linear"}
"""Operations for which cuBLAS takes a workspace."""
_WAITING = {
    "item",
    "_local_scalar_dense",
    "is_nonzero",
    "nonzero",
    "nonzero_numpy",
    "masked_select",
    "equal",
    "allclose",
}
_WAITING |= {"_unique", "_unique2", "unique_dim", "unique_consecutive"}
"""Operations whose result the host must know before it goes on."""
_NONSENSE = 4 << 20


@dataclass(frozen=True)
class _Place:
    """A tensor, without holding its memory: `memory` gives the storage as long as somebody holds it."""

    memory: Callable[[], torch.UntypedStorage | None]
    address: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def tensor(self):
        storage = self.memory()
        assert storage is not None, "memory was freed before the device used it"
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.shape, self.strides)


@dataclass(frozen=True)
class _Operation:
    """An operation on tensors; what it returns goes into `into`, which is None where it writes into its arguments."""

    function: Callable[..., Any]
    arguments: Any
    into: Any

    def run(self):
        args, kwargs = tree_map(_held, self.arguments)
        result = self.function(*args, **kwargs)
        if self.into is not None:
            for old, new in zip(tree_leaves(self.into), tree_leaves(result), strict=True):
                if torch.is_tensor(new):
                    _held(old).copy_(new)

    def addresses(self):
        """The memory of the driver that it uses."""
        return {leaf.address for leaf in tree_leaves((self.arguments, self.into)) if isinstance(leaf, _Place)}


def _held(value):
    return value.tensor() if isinstance(value, _Place) else value


class _Recorder(TorchDispatchMode):
    """Records operations. What writes into memory is done now only if `does_now`; the rest is, for its shapes."""

    def __init__(self, driver, *, does_now):
        super().__init__()
        self.operations = []
        self.multiplies = False
        self._driver, self._does_now = driver, does_now
        self._made = {}
        """Tensors that operations of a capture made: its graph holds them."""

    @classmethod
    def _should_skip_dynamo(cls):
        """No: torch would import its compiler with the first operator, which takes over a second."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        masks = name == "index" and any(torch.is_tensor(one) and one.dtype == torch.bool for one in args[1])
        # A number is part of the launch; more are copied from the host, which waits for that.
        copies = (
            self._does_now
            and name == "lift_fresh"
            and args[0].dim() > 0
            and torch.is_tensor(self._driver.place(args[0]))
        )
        if name in _WAITING or masks or copies:
            raise torch.AcceleratorError(f"CUDA error: operation not permitted when stream is capturing ({name})")
        self.multiplies = self.multiplies or name in _PRODUCTS
        named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        written = [
            named[argument.name]
            for argument in func._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name in named
        ]
        if written and not self._does_now:
            self._note(func, args, kwargs, None)
            return written[0] if len(written) == 1 else tuple(written)
        result = func(*args, **kwargs)
        storages = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)}
        if written:
            self._note(func, args, kwargs, None)
        elif any(_storage(leaf) not in storages for leaf in tree_leaves(result) if torch.is_tensor(leaf)):
            self._made |= {_storage(leaf): leaf for leaf in tree_leaves(result) if torch.is_tensor(leaf)}
            self._note(func, args, kwargs, result)
        return result

    def _note(self, func, args, kwargs, into):
        self.operations.append(_Operation(func, *tree_map(self._place, ((args, kwargs), into))))

    def _place(self, value):
        value = self._driver.place(value)
        if not self._does_now or not torch.is_tensor(value) or value.dim() == 0 or _storage(value) in self._made:
            return value
        kept = StorageWeakRef(value.untyped_storage())
        return _place(value, lambda: torch.UntypedStorage._new_with_weak_ptr(kept.cdata))


def _place(value, memory):
    return _Place(memory, _storage(value), value.dtype, tuple(value.shape), value.stride(), value.storage_offset())


def _storage(tensor):
    return tensor.untyped_storage().data_ptr()


_launching = threading.local()
"""The recorder of the launch that the thread is in."""


class FakeMark:
    """A position in the queue of a fake stream."""

    def __init__(self, stream):
        self.stream = stream
        self.past = False

    def wait(self):
        self.stream.driver.answer("wait")
        self.stream.work_until(self)

    def is_past(self):
        return self.past


class FakeStream:
    """A queue of work, done when a caller waits for a mark behind it; an `eager` stream does it at once."""

    def __init__(self, driver, name):
        self.driver, self.name = driver, name
        self._pool = lambda: None
        self._with_workspace = set()
        self._queue = deque()
        self._launches = threading.Lock()
        driver.streams.add(self)

    def do(self, what, work, *, products=False):
        self.driver.answer(what)
        assert self._launches.acquire(blocking=False), f"two threads launch on the stream {self.name}"
        try:
            with torch.inference_mode(), _Recorder(self.driver, does_now=False) as recorder:
                _launching.recorder = recorder
                work()
        finally:
            _launching.recorder = None
            self._launches.release()
        assert products or not recorder.multiplies, f"{what} multiplies matrices and does not say so"
        if recorder.multiplies:
            self._take_workspace()
        self._put(_Work(what, recorder.operations))

    def wait(self, mark):
        self._put(_Work("", [lambda: mark.stream.work_until(mark)]))

    def mark(self):
        mark = FakeMark(self)
        self._put(mark)
        return mark

    def finish(self):
        self.driver.answer("wait")
        self.work_until(None)

    def _put(self, entry):
        with self.driver.lock:
            self._queue.append(entry)
        if self.name in self.driver.eager:
            self.work_until(None)

    def pool(self):
        """Return the memory pool of the stream's graphs; a new pool if the last has gone."""
        pool = self._pool() or FakePool(self.driver)
        self._pool = weakref.ref(pool)
        return pool

    def work_until(self, mark):
        """Do all work before a mark, or all work if `mark` is None."""
        with self.driver.lock, torch.inference_mode():
            while self._queue and not (mark is not None and mark.past):
                first = self._queue.popleft()
                if isinstance(first, FakeMark):
                    first.past = True
                    continue
                first.run()
                if first.what:
                    self.driver.log.append(f"{self.name}: {first.what}")

    def uses(self, address):
        """Return the work that waits and uses memory of the driver; "" if there is none."""
        works = [entry for entry in list(self._queue) if isinstance(entry, _Work)]
        return next((work.what for work in works if address in work.addresses()), "")

    def _take_workspace(self):
        """Reserve a workspace at a thread's first product of matrices on the stream; it stays as long as the stream."""
        thread = threading.get_ident()
        if thread not in self._with_workspace:
            with errors():
                self.driver.reserve(self, self.driver.workspace)
            self._with_workspace.add(thread)


@dataclass(frozen=True)
class _Work:
    """What was put on a stream by one launch."""

    what: str
    steps: list[Any]

    def run(self):
        for step in self.steps:
            if isinstance(step, _Operation):
                step.run()
            elif isinstance(step, weakref.ref):
                graph = step()
                assert graph is not None, f"{self.what}: the graph went before it ran"
                graph.run()
            else:
                step()

    def addresses(self):
        return {address for step in self.steps if isinstance(step, _Operation) for address in step.addresses()}


class FakePool:
    """The memory of a stream's graphs; it is freed with the last graph and the last of their outputs.

    As in torch, the next graph reuses a graph's working memory if that is large enough, but not that of its outputs.
    """

    def __init__(self, driver):
        self._driver = driver
        self._rooms = []

    def take(self, size):
        if not any(room >= size for room in self._rooms):
            self._driver.reserve(self, size)
            self._rooms.append(size)

    def outputs(self, outputs):
        """Return the outputs, copied into memory of the pool."""
        return tree_map(lambda output: self._kept(output) if torch.is_tensor(output) else output, outputs)

    def _kept(self, tensor):
        self._driver.reserve(self, tensor.nbytes)
        memory = self._driver.known(np.zeros(max(1, tensor.nbytes), np.uint8))
        # The pool lives as long as any reference to the memory.
        weakref.finalize(memory, id, self)
        return torch.from_numpy(memory)[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)


class FakeGraph:
    """Repeats the operations of the capture at each replay, and writes the results into its outputs."""

    def __init__(self, pool, operations, made):
        self._pool, self._operations, self._made = pool, operations, made
        self.outputs = pool.outputs(made)

    def replay(self):
        """Put the graph on the stream of the launch that the thread is in."""
        _launching.recorder.operations.append(weakref.ref(self))

    def run(self):
        for operation in self._operations:
            operation.run()
        for old, new in zip(tree_leaves(self.outputs), tree_leaves(self._made), strict=True):
            old.copy_(new)


class _Warmth:
    """Stands for the memory of the warm-up before a capture."""


def _nonsense(size):
    """Memory with nonsense in it, as a real GPU's is; what lies behind its first part is seldom used."""
    memory = np.empty(max(1, size), np.uint8)
    memory[:_NONSENSE] = 0x7F
    return memory


@dataclass
class FakeDriver:
    """A GPU with `total` bytes, of which a context takes `context`; each image of a graph holds `image_bytes`.

    A thread that multiplies matrices outside of graphs takes a `workspace` for its stream, as cuBLAS does on a Hopper.

    Memory is held as long as there are references to it, views included. Then it is `kept`, as by torch's allocator,
    until more is needed or it is trimmed. A garbage collection inside a capture loses the device. `troubles` maps the
    first words of an action to the errors that it raises, one after another. `faults` tells what was freed too soon,
    and fails the next call.
    """

    total: int = 4 << 30
    context: int = 100 << 20
    image_bytes: int = 8 << 20
    workspace: int = 32 << 20
    eager: frozenset[str] = frozenset()
    troubles: dict[str, list[Exception]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    streams: weakref.WeakSet[FakeStream] = field(default_factory=weakref.WeakSet, repr=False)
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
    _memories: dict[int, weakref.ref[np.ndarray[Any, Any]]] = field(default_factory=dict, repr=False)

    def known(self, memory):
        """Take note of memory that streams must not outlive."""
        address = memory.ctypes.data
        self._memories[address] = weakref.ref(memory)
        weakref.finalize(memory, self._gone, address)
        return memory

    def _gone(self, address):
        self._memories.pop(address, None)
        users = [] if self.lost else [(stream.name, stream.uses(address)) for stream in list(self.streams)]
        self.faults += [f"{name}: {what} uses memory that was freed" for name, what in users if what]

    def place(self, value):
        """Return a tensor in the driver's memory as a place that does not hold the memory; all else as it is."""
        if not torch.is_tensor(value) or (memory := self._memories.get(_storage(value))) is None:
            return value

        def storage():
            held = memory()
            return None if held is None else torch.from_numpy(held).untyped_storage()

        return _place(value, storage)

    def answer(self, what):
        """Raise the next error for an action, if there is one."""
        assert not self.faults, self.faults
        if self.lost:
            raise DeviceLost("the GPU has fallen off the bus")
        for beginning, due in self.troubles.items():
            if what.startswith(beginning) and due:
                # A new one each time: an error that is raised again keeps what its first frames held.
                error = copy.copy(due.pop(0))
                self.lost = isinstance(error, DeviceLost)
                raise error

    def usage(self):
        reserved = self.reserved + self.kept
        return Usage(self.total, self.total - self.context - reserved, reserved, self.peak)

    def limit(self, size):
        self._limit = size

    def device_memory(self, size):
        self.answer("memory")
        memory = self.known(_nonsense(size))
        with errors():
            self.reserve(memory, size)
        return torch.from_numpy(memory)[:size]

    def pinned_memory(self, size):
        self.answer("pinned")
        return torch.from_numpy(self.known(_nonsense(size)))[:size]

    def stream(self, name):
        return FakeStream(self, name)

    def leave(self, size):
        """Hold bytes as work of others leaves them: a workspace of cuBLAS, until it is cleared."""
        self._left = _Warmth()
        self.reserve(self._left, size)

    def capture(self, what, stream, work):
        self.answer(what)
        self._left = None
        size = int(what.rpartition("x")[2]) * self.image_bytes
        with self._losing(), errors(), torch.inference_mode():
            warmth = _Warmth()
            self.reserve(warmth, size)
            work()
            del warmth
            # torch gives kept memory back before a capture.
            self.kept = 0
            pool = stream.pool()
            pool.take(size)
            with self._uncollected(), _Recorder(self, does_now=True) as recorder:
                made = work()
            graph = FakeGraph(pool, recorder.operations, made)
        self.log.append(f"{stream.name}: {what}")
        return graph

    @contextmanager
    def _losing(self):
        try:
            yield
        except DeviceLost:
            self.lost = True
            raise

    def trim(self):
        self.answer("trim")
        self._left = None
        self.kept = 0

    def reserve(self, holder, size):
        """Count bytes for as long as `holder` lives."""
        most = min(self._limit, self.total - self.context)
        if self.reserved + size > most:
            raise torch.OutOfMemoryError(f"{size} bytes more than {self.reserved} of {most}")
        self.reserved += size
        self.kept = min(max(0, self.kept - size), most - self.reserved)
        self.peak = max(self.peak, self.reserved + self.kept)
        weakref.finalize(holder, self._free, size)

    def _free(self, size):
        self.reserved -= size
        self.kept += size

    @contextmanager
    def _uncollected(self):
        """Watch a capture for garbage collections; as many objects are made as a network makes, to provoke one."""
        collected = []

        def note(phase, _):
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
