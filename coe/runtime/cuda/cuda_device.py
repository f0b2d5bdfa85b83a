"""A GPU as a device: blobs lie in device memory, are activated into each executor's weights, and run as graphs.

All device memory is given out before the pools fill: executors take their memory and capture their graphs, and blobs
get the rest of the budget. A line states at its start what the driver's context takes beside it (docs/gpu.md). The
file is long because what takes memory and what gives it back stand together; each kind of memory has its own file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from coe import config
from coe.config import format_bytes
from coe.core import Expert, Finding
from coe.errors import BoardsClash, ConfigError, DeviceFull, DeviceLost, StoreError
from coe.runtime.cuda.blob_memory import SCRATCH_BYTES, BlobMemory
from coe.runtime.cuda.collector import give_back
from coe.runtime.cuda.gpu_memory import GpuMemory
from coe.runtime.cuda.networks import Networks
from coe.runtime.cuda.pinned_memory import HostMemory, passing_bytes
from coe.runtime.cuda.probe import GpuTrial, GraphMemory, gpu_trial
from coe.runtime.cuda.sizing import PIECES_BYTES, Sizes, Sizing, largest_first
from coe.runtime.cuda.torch_driver import TorchDriver
from coe.runtime.cuda.unpacking import Unpacking
from coe.runtime.cuda.worker import DEPTH, Worker
from coe.runtime.device import Device
from coe.runtime.processor import bound_threads, on_fresh_thread
from coe.runtime.reading import weights
from coe.runtime.runner import findings_of
from coe.runtime.trial import HERE, identity, quick_cost
from coe.scheduler.costs import Cost
from coe.scheduler.load_queue import STAGED
from coe.store.blob_format import PAGE, padded
from coe.store.runnable_kinds import ExpertInput, RunnableKind
from coe.store.store_reader import StoreReader


class CudaDevice(Device):
    """Runs experts of torch kinds on a GPU within `memory_bytes`, for `executors` executors.

    `host_bytes` of pinned memory keep copies, beside the memory that weights pass through. The graphs of each executor
    may hold `batch_bytes`; None is an equal part of the share of a pool that is set aside for batches. `say` gets the
    progress of `prepare`. Raises ConfigError for kinds that open their own files.
    """

    threads = 1
    has_lane = True
    holds_bodies = True
    depth = DEPTH

    def __init__(
        self,
        store: StoreReader,
        kinds: Mapping[str, RunnableKind],
        driver: TorchDriver,
        *,
        executors: int,
        memory_bytes: int,
        host_bytes: int = 0,
        batch_bytes: int | None = None,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.store, self.driver, self._say = store, driver, say
        self.memory_bytes: int | None = memory_bytes
        self.host_bytes, self._budget_bytes = host_bytes, memory_bytes
        self._networks = Networks(store, kinds, driver.device)
        if batch_bytes is None:
            batch_bytes = int(config.WORKSPACE_SHARE * memory_bytes) // executors
        self._sizing = Sizing(store, self._networks, driver, batch_bytes)
        self._lane = driver.stream("lane")
        self.memory: GpuMemory | None = None
        self._spare: list[Worker] = []
        self._workers: dict[str, Worker] = {}
        self._lost: str | None = None
        self._captured: frozenset[tuple[Unpacking, int]] = frozenset()
        self._largest_file = 0
        # What torch merely keeps from a line that is closed is nobody's.
        give_back(driver)
        self._limit(driver.usage().reserved)

    def __repr__(self) -> str:
        return f"<CudaDevice {self.memory!r}>"

    # Before anything runs

    def measure(self, expert: Expert) -> Cost:
        """Time batches and loads, once in this process. The memory of batches is part of `fixed_bytes`, not of it."""

        def work() -> Cost:
            with self.trial(expert) as trial:
                return quick_cost(trial, self._sizing.held(expert).most)

        if self.memory is not None:
            self.admit([expert], 0)
        file = identity(weights(self.store, expert).path)
        network = *self._sizing.measured_as(expert), len(expert.labels), expert.alternates, expert.variant
        # The load reports a file that cannot be read; its cost is not remembered.
        return HERE.once(None if file is None else (*network, file), lambda: on_fresh_thread(work))

    @contextlib.contextmanager
    def trial(self, expert: Expert) -> Iterator[GpuTrial]:
        """Give a trial of an expert; raises StoreError if its manifest cannot be read."""
        with self._watched(), contextlib.ExitStack() as stack:
            most, reason = self._sizing.held(expert).most, ""
            give_back(self.driver)
            try:
                trial = gpu_trial(self._networks, self.driver, self.store, expert, most)
                yield stack.enter_context(trial)
            except DeviceFull as error:
                reason = str(error)
            # Raised after the handler: the handled error holds all objects that were being made.
            if reason:
                raise ConfigError(
                    f"the device memory is too small to measure expert '{expert.id}' ({reason}); "
                    "give more --device-memory"
                )

    def graphs(self, expert: Expert) -> GraphMemory:
        """Return how many images an expert runs at a time and what graphs hold; raises ConfigError, StoreError."""
        with self._watched():
            return self._sizing.held(expert)

    def fixed_bytes(self, experts: Iterable[Expert], executors: int) -> int:
        """Return the bytes that are held for good: activated weights, images, the graphs' memory, and bodies.

        After `prepare` this is what executors really reserved; before, an upper bound.
        """
        bodies = self.memory.bodies.bytes if self.memory is not None else {}
        for expert in (experts := list(experts)):
            with contextlib.suppress(StoreError):  # the load will report it
                if (body := weights(self.store, expert).body) is not None:
                    bodies[body.digest] = padded(body.bytes, PAGE)
        held = sum(bodies.values())
        if self.memory is not None:
            return self._budget_bytes - self.memory.blobs.capacity + held
        with self._watched():
            return executors * self._sizing.of(experts).worker + SCRATCH_BYTES + PIECES_BYTES + held

    def prepare(self, experts: Iterable[Expert], executors: int = 1) -> None:
        """Take pinned memory, capture all graphs of all executors, and take the memory for blobs.

        Raises ConfigError if no memory is left for experts.
        """
        experts = largest_first(experts)
        with self._watched():
            try:
                # The memory of measurings, and of an earlier line, may still be reserved.
                give_back(self.driver)
                sizes, before = self._sizing.of(experts), self.driver.usage().reserved
                self._limit(before)
                self._check_left(executors * sizes.buffers + SCRATCH_BYTES, sizes)
                # A file begins at an offset that aligns its tensors: up to a page more, and so does each copy. Files of
                # boards to come may be a page larger, because each file holds its name.
                staged = STAGED * (padded(sizes.file, PAGE) + 2 * PAGE) + PAGE * len(experts)
                host = HostMemory(self.driver, self.host_bytes + staged)
                self._largest_file = sizes.file
                self._capture(experts, executors, sizes)
                give_back(self.driver)
                taken = self.driver.usage().reserved - before + SCRATCH_BYTES + PIECES_BYTES
                blobs = BlobMemory(self.driver, self._lane, self._check_left(taken, sizes))
                self.memory = GpuMemory(self.store, self._networks, self._sizing, host, blobs)
            except DeviceFull as error:
                reason = str(error)
            else:
                return
            finally:
                if self.memory is None:
                    self._close_workers()
                    self._spare.clear()
        raise ConfigError(f"{reason}; give less --host-memory, more --device-memory, or fewer executors")

    def _limit(self, before: int) -> None:
        """Bound what is reserved in this process: the budget, and the bytes that others reserved before."""
        self.driver.limit(before + self._budget_bytes)

    def admit(self, experts: Iterable[Expert], executors: int) -> None:
        """Raise BoardsClash for experts without captured graphs, or whose files are larger than those that can pass."""
        with self._watched():
            for expert in experts:
                network = self._networks.unpacking_of(expert), expert.input_size
                size = passing_bytes(weights(self.store, expert))
                if network not in self._captured or padded(size, PAGE) > padded(self._largest_file, PAGE) + PAGE:
                    raise BoardsClash(
                        f"expert '{expert.id}', a {expert.kind} of {expert.input_size} pixels, needs graphs that this "
                        "line has not captured, and a running line has no GPU memory for more; close the "
                        "line, and open one with all boards of the day"
                    )

    def _check_left(self, taken: int, sizes: Sizes) -> int:
        """Return the bytes left of the budget; raises ConfigError if the largest file does not fit."""
        left = self._budget_bytes - taken
        if left < sizes.file:
            raise ConfigError(
                f"a device memory of {format_bytes(self._budget_bytes)} leaves {format_bytes(max(0, left))} for "
                f"experts, of which the largest has {format_bytes(sizes.file)}; "
                "give more --device-memory, or fewer executors"
            )
        return left

    def _capture(self, experts: Iterable[Expert], executors: int, sizes: Sizes) -> None:
        """Make workers that have captured all graphs that they will run; raises DeviceFull."""
        names = [f"executor {number + 1}" for number in range(executors)]
        self._spare = [Worker(name, self.driver, sizes.weights, sizes.images) for name in names]
        distinct: dict[tuple[Unpacking, int], Expert] = {}
        for expert in experts:
            # The load of an expert reports that it cannot be read; the others go on.
            with contextlib.suppress(StoreError):
                distinct.setdefault((self._networks.unpacking_of(expert), expert.input_size), expert)
        self._captured = frozenset(distinct)
        # The largest first: all later graphs then reuse the memory that its graphs work in.
        order = sorted(distinct.items(), key=lambda item: -self._sizing.held(item[1]).bytes)
        for number, ((unpacking, size), expert) in enumerate(order, start=1):
            most = self._sizing.held(expert).most
            self._say(
                f"capturing {expert.kind} for {len(expert.labels)} labels at {size} px, up to {most} images at a time, "
                f"{number} of {len(order)}"
            )
            for worker in self._spare:
                worker.prepare(self._networks.template(expert), unpacking, size, most)

    def enter(self, executor: str) -> None:
        """Set up the calling thread: its operators on the host use one thread."""
        bound_threads(1)

    # The disk reader and the lane

    def read(self, pool: str, expert: Expert) -> None:
        """Read an expert into pinned memory, for the `load` that follows; raises StoreError, DeviceFull, DeviceLost."""
        with self._watched():
            self._taken().read(pool, expert)

    def fill(self, expert: Expert) -> None:
        """Read an expert into pinned memory, where its copy stays; raises StoreError, DeviceFull, DeviceLost."""
        with self._watched():
            self._taken().fill(expert)

    def _taken(self) -> GpuMemory:
        """Return the memory that `prepare` took."""
        assert self.memory is not None, "used before prepare"
        return self.memory

    def load(self, pool: str, expert: Expert, *, keep_copy: bool = False) -> None:
        """Copy an expert to the device from host memory; with `keep_copy` a copy stays there.

        Returns before the copy is done: batches wait for it on the device. If the expert was not read, and its copy is
        gone, it is read first. Raises StoreError, DeviceFull, DeviceLost.
        """
        with self._watched():
            self._taken().load(pool, expert, keep_copy=keep_copy)

    def forget(self, expert: str) -> None:
        """Drop the copy of an expert in host memory, if there is one."""
        if self.memory is not None:
            self.memory.host.forget(expert)

    def evict(self, pool: str, expert: Expert, *, keep_copy: bool = False) -> None:
        """Free an expert's device memory without waiting: on the device, later writes there wait for its last reads."""
        with contextlib.suppress(DeviceLost), self._watched():
            self._taken().evict(pool, expert.id, keep_copy=keep_copy)

    def close(self) -> None:
        """Wait until the GPU neither copies nor runs: its memory, pinned memory and graphs may go only then."""
        self.settle()
        self._close_workers()

    def _close_workers(self) -> None:
        for worker in (*self._spare, *self._workers.values()):
            worker.close()

    def settle(self) -> None:
        """Wait until the GPU neither copies nor runs, or is lost."""
        with contextlib.suppress(DeviceLost), self._watched():
            for stream in (self._lane, *(worker.stream for worker in (*self._spare, *self._workers.values()))):
                stream.finish()

    # Executors

    def launch(
        self, executor: str, pool: str, expert: Expert, images: Sequence[ExpertInput]
    ) -> Callable[[], list[Finding]]:
        """Put a batch on the executor's stream; the function that is returned waits for its findings, as `run` does.

        At most `depth` batches of an executor may be without findings.
        """
        memory = self._taken()
        loaded, kind = memory.expert(pool, expert.id), self._networks.kind(expert)
        with self._watched():
            worker = self._worker(executor)
            worker.activate(memory.blobs, loaded.resident)
            pixels = [image.pixels for image in images]
            parts = worker.launch(loaded.template, loaded.resident.unpacking, pixels, loaded.most)

        def findings() -> list[Finding]:
            findings: list[Finding] = []
            with self._watched():
                for part in parts:
                    outputs = part.outputs()
                    findings += findings_of(kind, outputs, images[len(findings) : len(findings) + part.images], expert)
            return findings

        return findings

    def activate(self, executor: str, pool: str, expert: Expert) -> None:
        """Make a loaded expert ready to run and wait until it is, to measure that alone; raises DeviceLost."""
        memory = self._taken()
        with self._watched():
            worker = self._worker(executor)
            worker.activate(memory.blobs, memory.expert(pool, expert.id).resident)
            worker.stream.mark().wait()

    def _worker(self, executor: str) -> Worker:
        if executor not in self._workers:
            assert self._spare, "more executors run than were prepared"
            self._workers[executor] = self._spare.pop(0)
        return self._workers[executor]

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Remember when the device is lost; from then on, do not call it."""
        if self._lost is not None:
            raise DeviceLost(self._lost)
        try:
            yield
        except DeviceLost as error:
            # Not the error itself, which holds all objects that were being made.
            self._lost = str(error)
            raise
