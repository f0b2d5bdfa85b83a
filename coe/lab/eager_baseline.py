"""The eager baseline: loads and runs experts as a plain PyTorch program does, on the CPU or on a GPU.

A load constructs the network, reads the weights as they were trained, copies them in tensor by tensor and moves the
module to its device; an eviction drops the module; batches run eagerly. All of it runs in fp32, without blobs, folding,
slots, graphs, pinned memory or streams.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coe.core import Expert, Finding
from coe.errors import CoeError, ConfigError, DeviceFull, StoreError
from coe.helpers.system import give_memory_back
from coe.inspector import line_devices
from coe.runtime.cuda import torch_driver
from coe.runtime.cuda.collector import give_back
from coe.runtime.cuda.torch_driver import TorchDriver
from coe.runtime.device import Device
from coe.runtime.processor import bound_threads, on_fresh_thread
from coe.runtime.runner import findings_of
from coe.runtime.trial import HERE, Trial, quick_cost, warmed
from coe.scheduler.costs import Cost
from coe.store import store as stores
from coe.store.blob_format import optional_of
from coe.store.kinds import ExpertInput, Image, Kind, ModuleKind
from coe.store.skeletons import skeleton
from coe.store.store_reader import StoreReader

if TYPE_CHECKING:
    import torch

State = dict[str, Any]
"""Tensors by name."""
_KEPT_BYTES = 64 << 20
"""GPU memory that torch keeps for an executor: blocks that are not full, and the workspace of cuBLAS."""


def constructed(kind: ModuleKind, expert: Expert, state: State) -> torch.nn.Module:
    """Return a new network with these weights; raises StoreError if they do not fit the network."""
    module = skeleton(kind, expert, optional=optional_of(state)).eval()
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        which = f"{kind.name} for {', '.join(expert.labels)}"
        raise StoreError(f"'{expert.weights}' does not fit a {which}; import the expert again") from error
    return module


class EagerDevice(Device):
    """Runs experts of torch's kinds as a plain program would, on the CPU or, with a `driver`, on that GPU.

    Executors share the modules. On a GPU the device uses `memory_bytes`. Copies in host memory, at most `host_bytes`,
    are state dicts, from which a load constructs the module again. Raises ConfigError for kinds
    that open their own files. A plain program loads on one thread: the disk and the copies to the device wait for each
    other.
    """

    has_lane = False
    holds_bodies = False
    depth = 1

    def __init__(
        self,
        store: StoreReader,
        kinds: Mapping[str, Kind],
        threads: int,
        driver: TorchDriver | None = None,
        *,
        memory_bytes: int | None = None,
        host_bytes: int = 0,
    ) -> None:
        import torch

        self.store, self.threads = store, threads
        self.memory_bytes, self.host_bytes = memory_bytes, host_bytes
        self._kinds = {name: kind for name, kind in kinds.items() if isinstance(kind, ModuleKind)}
        if other := sorted(kinds.keys() - self._kinds.keys()):
            raise ConfigError(
                f"experts of kind '{other[0]}' open their own files and have no eager baseline; run the plain strategy"
            )
        self._driver = driver
        self._device = driver.device if driver else torch.device("cpu")
        self._resident: dict[tuple[str, str], torch.nn.Module] = {}
        self._copies: dict[str, State] = {}
        if driver and memory_bytes is not None:
            give_back(driver)
            driver.limit(driver.usage().reserved + memory_bytes)

    def __repr__(self) -> str:
        return f"<EagerDevice {self._device}, {len(self._resident)} resident, {len(self._copies)} copies>"

    def enter(self, executor: str) -> None:
        """Bound the threads of operators that the calling thread runs."""
        bound_threads(self.threads)

    def prepare(self, experts: Iterable[Expert], executors: int = 1) -> None:
        """Give the memory of measurements back; do nothing else before an expert is needed."""
        give_memory_back()
        if self._driver:
            self._driver.trim()

    def fixed_bytes(self, experts: Iterable[Expert], executors: int) -> int:
        """Return the bytes that executors hold in addition to experts and batches: on a GPU what torch keeps."""
        return executors * _KEPT_BYTES if self._driver else 0

    def load(self, pool: str, expert: Expert, *, keep_copy: bool = False) -> None:
        """Construct an expert and return when it is on its device; raises StoreError, DeviceFull, DeviceLost."""
        # A plain program loads and runs on one thread; an OpenMP team of the lane slows executors (`fresh_thread`).
        bound_threads(1)
        state = self._copies.get(expert.id) or stores.load(self.store, expert.weights)
        self._resident[pool, expert.id] = self._placed(expert, state)
        if keep_copy and self._driver:
            self._copies[expert.id] = state

    def evict(self, pool: str, expert: Expert, *, keep_copy: bool = False) -> None:
        """Drop the module; with `keep_copy` its tensors are copied into host memory first, unless a copy is there."""
        module = self._resident.pop((pool, expert.id))
        if keep_copy and self._driver and expert.id not in self._copies:
            # A copy may fail: the next load then reads the disk, or reports that the device is lost.
            with contextlib.suppress(CoeError), torch_driver.errors():
                self._copies[expert.id] = {name: tensor.cpu() for name, tensor in module.state_dict().items()}

    def fill(self, expert: Expert) -> None:
        """Read the state dict of an expert into host memory; raises StoreError."""
        if self._driver:
            self._copies[expert.id] = stores.load(self.store, expert.weights)

    def forget(self, expert: str) -> None:
        """Drop the copy of an expert in host memory, if there is one."""
        self._copies.pop(expert, None)

    def run(self, executor: str, pool: str, expert: Expert, images: Sequence[ExpertInput]) -> list[Finding]:
        """Run a batch and return one finding for each image; raises CoeError, DeviceFull, DeviceLost."""
        pixels = np.stack([image.pixels for image in images])
        outputs = self._outputs(expert, self._resident[pool, expert.id], pixels)
        return findings_of(self._kinds[expert.kind], outputs, images, expert)

    def measure(self, expert: Expert) -> Cost:
        """Measure the times of batches and loads, and the memory of batches, on a network with random weights."""

        def work() -> Cost:
            with self.trial(expert) as trial:
                return quick_cost(trial, self._kinds[expert.kind].max_batch)

        return HERE.alone(lambda: on_fresh_thread(work))

    @contextlib.contextmanager
    def trial(self, expert: Expert) -> Iterator[Trial]:
        """Give a trial of an expert, on the calling thread; raises StoreError if its manifest cannot be read."""
        self.enter("trial")
        size, path = self.store.manifest(expert.weights).whole_bytes, self.store.path(expert.weights)
        state = skeleton(self._kinds[expert.kind], expert, optional=()).state_dict()

        def load() -> None:
            # One thread, as on the lane. A damaged file is reported when the line loads it.
            bound_threads(1)
            with contextlib.suppress(StoreError):
                self._placed(expert, stores.load(self.store, expert.weights))
            bound_threads(self.threads)

        try:
            parts = partial(self._outputs, expert, self._placed(expert, state)), expert.input_size, size, path, load
            trial = warmed(*parts)
            if self._driver:
                trial = _GpuTrial(*parts, driver=self._driver, copy=partial(self._placed, expert, state))
            # One load before any is timed: libraries and allocators set themselves up in the first.
            trial.load()
            yield trial
        except DeviceFull as error:
            raise ConfigError(
                f"the device memory is too small to measure expert '{expert.id}' ({error}); give more --device-memory"
            ) from None

    def _placed(self, expert: Expert, state: State) -> torch.nn.Module:
        module = constructed(self._kinds[expert.kind], expert, state)
        with torch_driver.errors():
            # Returns when the module is on the device: copies from memory that is not pinned block the thread.
            return module.to(self._device)

    def _outputs(self, expert: Expert, module: torch.nn.Module, pixels: Image) -> Any:
        """Run pixels, (n, 3, S, S) uint8, and return the outputs for `postprocess`, on the CPU."""
        import torch
        from torch.utils._pytree import tree_map

        with torch_driver.errors(), torch.inference_mode():
            outputs = self._kinds[expert.kind].forward(module, torch.from_numpy(pixels).to(self._device))
            return tree_map(torch.Tensor.cpu, outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GpuTrial(Trial):
    """A trial on a GPU: torch's reserved memory tells what a batch holds."""

    driver: TorchDriver

    def batch_bytes(self, images: int) -> int:
        """Return by how many bytes reserved memory grows for a batch, after all unused memory is given back."""
        self.driver.trim()
        before = self.driver.usage().reserved
        self.run(images)
        return max(images * 12 * self.input_size**2, self.driver.usage().reserved - before)


def _on_gpu(
    store: StoreReader,
    kinds: Mapping[str, Kind],
    driver: TorchDriver,
    *,
    executors: int,
    batch_bytes: int | None,
    say: Callable[[str], None],
    **memory: int,
) -> EagerDevice:
    # One thread for each executor, as for our own device: the other cores decode images.
    return EagerDevice(store, kinds, 1, driver, **memory)


devices: line_devices.MakeDevices = partial(line_devices.make, makers={"cpu": EagerDevice, "cuda": _on_gpu})
"""Makes devices of the eager baseline, as `coe.inspector.line_devices.make` makes the engine's."""
