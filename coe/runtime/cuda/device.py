"""A GPU as a device: blobs in an arena of its memory, activated into a place of each executor, run as graphs.

All its memory is planned before the pools fill: what executors need for good (`fixed_bytes`), and the arena, which has
the rest of the budget. What a driver's context takes beside is stated when a line starts (docs/gpu.md).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from coe import config
from coe.blob_format import PAGE, padded
from coe.config import format_bytes
from coe.core import Expert, Finding
from coe.costs import Cost
from coe.errors import ConfigError, DeviceFull, DeviceLost, StoreError
from coe.kinds import Kind, Prepared
from coe.runtime.aside import aside
from coe.runtime.blob import Content
from coe.runtime.cpu import findings_of
from coe.runtime.cuda.driver import Driver
from coe.runtime.cuda.ground import SCRATCH_BYTES, Ground, Resident
from coe.runtime.cuda.host import Copy, HostMemory
from coe.runtime.cuda.networks import Network, Networks
from coe.runtime.cuda.probe import GpuTrial, Held, gpu_trial, held
from coe.runtime.cuda.worker import Template, Worker
from coe.runtime.measured import HERE
from coe.runtime.processor import bound_threads
from coe.runtime.reading import weights
from coe.runtime.trial import quick_cost
from coe.store import Store

_PIECES_BYTES = 40 << 20
"""What torch's allocator reserves beyond the bytes of an executor: memory comes in pieces of 2 and of 20 MiB."""
_STAGED = 2
"""Blobs that are on their way at a time: one is read from disk while another goes up."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """An expert on the device, with all that a batch on it needs."""

    resident: Resident
    content: Content
    template: Template
    most: int


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What experts take of the device at most: weights that run, the images of a batch, graphs, and a file's bytes.

    `warming` is what the largest network's batches take beside its graphs while one more is captured.
    """

    weights: int
    images: int
    graphs: int
    warming: int
    file: int

    @property
    def worker(self) -> int:
        """Bytes of one executor."""
        return self.weights + self.images + self.graphs + _PIECES_BYTES


class CudaDevice:
    """Runs experts of torch's kinds on a GPU within `memory_bytes`, for `executors` executors.

    `host_bytes` of pinned memory keep copies, beside what weights pass through. Raises ConfigError for kinds that open
    their own files.
    """

    threads = 1

    def __init__(
        self,
        store: Store,
        kinds: Mapping[str, Kind],
        driver: Driver,
        *,
        executors: int,
        memory_bytes: int,
        host_bytes: int = 0,
    ) -> None:
        self.store, self.driver = store, driver
        self.memory_bytes: int | None = memory_bytes
        self.host_bytes, self._budget_bytes = host_bytes, memory_bytes
        self._networks = Networks(store, kinds, driver.device)
        # Of the largest batch's graphs; all kinds of all executors together have what a pool leaves to activations.
        self._graphs_bytes = int(config.WORKSPACE_SHARE * memory_bytes) // (executors * max(1, len(kinds)))
        self._held: dict[Network, Held] = {}
        self._lane = driver.stream("lane")
        self._host: HostMemory | None = None
        self._ground: Ground | None = None
        self._sizes = _Sizes(0, 0, 0, 0, 0)
        self._loaded: dict[tuple[str, str], _Loaded] = {}
        self._workers: dict[str, Worker] = {}
        self._capturing = threading.Lock()
        self._lost: DeviceLost | None = None
        driver.limit(memory_bytes)

    def __repr__(self) -> str:
        return f"<CudaDevice {len(self._loaded)} resident, {self._ground!r}, {self._host!r}>"

    # Before anything runs

    def measure(self, expert: Expert) -> Cost:
        """Time batches and loads of an expert. What its batches hold is no part of the cost, but of `fixed_bytes`."""

        def work() -> Cost:
            with self.trial(expert) as trial:
                return quick_cost(trial, self._most(expert).most)

        return HERE.alone(lambda: aside(work))

    @contextlib.contextmanager
    def trial(self, expert: Expert) -> Iterator[GpuTrial]:
        """Give an expert to measure; raises StoreError if its manifest cannot be read."""
        most = self._most(expert).most
        with self._watched(), contextlib.ExitStack() as stack:
            try:
                self.driver.trim()
                found = gpu_trial(self._networks, self.driver, self.store, expert, most)
                trial = stack.enter_context(found)
            except DeviceFull as error:
                raise ConfigError(
                    f"the device memory is too small to measure expert '{expert.id}' ({error}); "
                    "give more --device-memory"
                ) from None
            yield trial

    def fixed_bytes(self, experts: Iterable[Expert], executors: int) -> int:
        """Return what so many executors hold for good: the weights that run, images, and the graphs' memory."""
        sizes = self._sizes_of(experts)
        # One graph at a time is captured, so that all executors share what that takes.
        return executors * sizes.worker + sizes.warming + SCRATCH_BYTES + _PIECES_BYTES

    def prepare(self, experts: Iterable[Expert], executors: int = 1) -> None:
        """Take the arena and the pinned memory, build networks; raises ConfigError where nothing is left."""
        experts = list(experts)
        self._sizes = self._sizes_of(experts)
        left = self._budget_bytes - self.fixed_bytes(experts, executors)
        if left < self._sizes.file:
            raise ConfigError(
                f"a device memory of {format_bytes(self._budget_bytes)} leaves {format_bytes(max(0, left))} for "
                f"experts, of which the largest has {format_bytes(self._sizes.file)}; "
                "give more --device-memory, or fewer executors"
            )
        for expert in experts:
            with contextlib.suppress(StoreError):
                self._networks.template(expert)
        # A file begins where its tensors come to lie aligned.
        staged = _STAGED * (padded(self._sizes.file, PAGE) + PAGE)
        with self._watched():
            try:
                # What was measured with has gone by now.
                self.driver.trim()
                self._host = HostMemory(self.driver, self.host_bytes + staged)
                self._ground = Ground(self.driver, self._lane, left)
            except DeviceFull as error:
                raise ConfigError(f"{error}; give less --host-memory or --device-memory") from None

    def enter(self, executor: str) -> None:
        """Set up the calling thread: what is done on the host takes no more than it."""
        bound_threads(1)

    # The lane

    def load(self, pool: str, expert: Expert, *, keep: bool = False) -> None:
        """Bring an expert up, from its copy in host memory if there is one; with `keep` such a copy stays.

        Returns when it is on its way: batches wait for it on the device. Raises StoreError, DeviceFull, DeviceLost.
        """
        assert self._host is not None, "load before prepare"
        assert self._ground is not None, "load before prepare"
        with self._watched():
            known = self._host.copy_of(expert.id)
            copy = known or Copy(*weights(self.store, expert).content(self._host))
            try:
                recipe = self._networks.recipe(copy.content, expert)
                resident = self._ground.put(expert.id, copy.data(), recipe)
                copy.buffer.busy = resident.written
            except BaseException:
                keep = False
                raise
            finally:
                if keep and known is None:
                    self._host.keep(expert.id, copy)
                elif known is None:
                    self._host.give(copy.buffer)
            template, most = self._networks.template(expert), self._most(expert).most
            self._loaded[pool, expert.id] = _Loaded(resident, replace(copy.content, start=0), template, most)

    def forget(self, expert: str) -> None:
        """Drop the copy of an expert in host memory, if there is one."""
        if self._host is not None:
            self._host.forget(expert)

    def evict(self, pool: str, expert: Expert, *, keep: bool = False) -> None:
        """Give an expert's place away. Nobody waits: what comes there does, on the device, until it was read."""
        found = self._loaded.pop((pool, expert.id))
        assert self._host is not None, "evict before prepare"
        assert self._ground is not None, "evict before prepare"
        if self._lost is not None:
            return
        with contextlib.suppress(DeviceLost), self._watched():
            if keep and self._host.copy_of(expert.id) is None:
                # It is only a copy: where there is no room, the next load reads the disk.
                with contextlib.suppress(DeviceFull):
                    self._bring_down(expert.id, found, self._host, self._ground)
            self._ground.drop(found.resident)

    def trim(self) -> None:
        """Keep everything: the arena has its size for good."""

    # Executors

    def run(self, executor: str, pool: str, expert: Expert, images: Sequence[Prepared]) -> list[Finding]:
        """Run a batch, in parts if it is larger than the largest graph; one finding an image.

        Raises CoeError if the expert's answer makes no sense, DeviceFull, DeviceLost.
        """
        assert self._ground is not None, "run before prepare"
        loaded, kind = self._loaded[pool, expert.id], self._networks.kind(expert)
        findings: list[Finding] = []
        with self._watched():
            worker = self._worker(executor)
            worker.activate(self._ground, loaded.resident)
            pixels = [image.pixels for image in images]
            for number, outputs in worker.run(loaded.template, loaded.resident.recipe, pixels, loaded.most):
                part = images[len(findings) : len(findings) + number]
                findings += findings_of(kind, outputs, part, expert)
        return findings

    def _bring_down(self, expert: str, found: _Loaded, host: HostMemory, ground: Ground) -> None:
        buffer = host.take(found.resident.size)
        try:
            buffer.busy = ground.bring_down(found.resident, buffer.tensor()[: found.resident.size])
        except BaseException:
            host.give(buffer)
            raise
        host.keep(expert, Copy(buffer, found.content))

    def _worker(self, executor: str) -> Worker:
        if executor not in self._workers:
            sizes = self._sizes
            with self._capturing:
                worker = Worker(executor, self.driver, sizes.weights, sizes.images, self._capturing)
            self._workers[executor] = worker
        return self._workers[executor]

    def _sizes_of(self, experts: Iterable[Expert]) -> _Sizes:
        graphs: dict[Network, int] = {}
        weights_bytes = images = file = 0
        for expert in experts:
            with contextlib.suppress(StoreError):
                found = self._most(expert)
                graphs[self._networks.of(expert)] = found.bytes
                weights_bytes = max(weights_bytes, self._networks.running_bytes(expert))
                images = max(images, found.most * 3 * expert.input_size**2)
                file = max(file, weights(self.store, expert).bytes)
        return _Sizes(weights_bytes, images, sum(graphs.values()), max(graphs.values(), default=0), file)

    def _most(self, expert: Expert) -> Held:
        """Return how many images an expert runs at a time; measured at the largest input that its network has."""
        network = self._networks.of(expert)
        found = self._held.get(network)
        if found is None or found.input_size < expert.input_size:
            with self._watched():
                found = held(self._networks, self.driver, expert, self._graphs_bytes)
            self._held[network] = found
        return found

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Remember that the device is lost; nothing more is asked of it then."""
        if self._lost is not None:
            raise self._lost
        try:
            yield
        except DeviceLost as error:
            self._lost = error
            raise
