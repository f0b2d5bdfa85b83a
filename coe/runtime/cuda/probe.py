"""What experts cost on a GPU, and what graphs hold: one expert of each network runs before memory is given out."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from coe.core import Expert
from coe.errors import CoeError, ConfigError, DeviceFull, DeviceLost
from coe.runtime.cuda.blob_memory import BlobMemory, Resident
from coe.runtime.cuda.collector import give_back
from coe.runtime.cuda.device_bodies import DeviceBody
from coe.runtime.cuda.networks import Networks
from coe.runtime.cuda.pinned_memory import Copy, HostMemory, passing_bytes
from coe.runtime.cuda.torch_driver import TorchDriver
from coe.runtime.cuda.unpacking import Unpacking
from coe.runtime.cuda.worker import Worker, sizes
from coe.runtime.reading import Weights, weights
from coe.runtime.trial import Trial
from coe.store.blob_format import PAGE, padded
from coe.store.runnable_kinds import Image
from coe.store.store_reader import StoreReader


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """Graphs for up to `most` images of `input_size` pixels hold `bytes` of device memory for good.

    `outputs` bytes of it hold the graphs' outputs; all graphs of an executor share the rest, in turn.
    """

    input_size: int
    most: int
    bytes: int
    outputs: int


def held(expert: Expert, most: int, budget_bytes: int, held_by: Callable[[int], GraphMemory]) -> GraphMemory:
    """Return the graphs of the largest batch, of at most `most` images, whose graphs hold at most `budget_bytes`.

    `held_by` measures those of a batch (`graph_memory`). The graph of one image may hold more. Raises ConfigError if
    not even one image runs, StoreError.
    """
    reason = ""
    for images in reversed(sizes(most)):
        try:
            graphs = held_by(images)
        except DeviceFull as error:
            reason = str(error)
            continue
        if images == 1 or graphs.bytes <= budget_bytes:
            return graphs
    raise ConfigError(
        f"the device memory is too small to run expert '{expert.id}' ({reason}); give more --device-memory"
    )


def graph_memory(networks: Networks, driver: TorchDriver, expert: Expert, most: int) -> GraphMemory:
    """Measure all graphs for up to `most` images, captured on a temporary worker; raises DeviceFull, StoreError."""
    # Memory left over from earlier work could be freed during the capture, and would falsify the difference.
    give_back(driver)
    unpacking, size = networks.likely_unpacking(expert), expert.input_size
    worker = Worker("probe", driver, unpacking.bytes, most * 3 * size**2)
    before = driver.usage().reserved
    try:
        worker.prepare(networks.template(expert), unpacking, size, most)
        held_bytes = driver.usage().reserved - before
        return GraphMemory(size, worker.most(unpacking, size, most), held_bytes, worker.outputs_bytes)
    finally:
        worker.close()
        del worker
        give_back(driver)


@dataclass(frozen=True, slots=True)
class GpuTrial(Trial):
    """An expert that runs on a GPU. Its batches take no memory beyond what is held for good: see `GraphMemory`."""

    def least_image_bytes(self) -> int:
        """Return 0."""
        return 0

    def batch_bytes(self, images: int) -> int:
        """Run a batch, as any trial does, and return 0."""
        self.run(images)
        return 0


@contextlib.contextmanager
def gpu_trial(
    networks: Networks, driver: TorchDriver, store: StoreReader, expert: Expert, most: int
) -> Iterator[GpuTrial]:
    """Give a trial of an expert, with its memory until the end; raises StoreError, DeviceFull, DeviceLost."""
    file = weights(store, expert)
    bench = _Bench(networks, driver, file, expert, most)
    try:
        trial = GpuTrial(bench.answer, expert.input_size, file.bytes, file.path, bench.load, copy=bench.copy)
        # Once each before they are timed: set-up work is no part of the times.
        trial.load()
        bench.copy()
        trial.run(1)
        yield trial
    finally:
        bench.clear()


class _Bench:
    """The device memory of a trial: a worker with its graphs, and room for blobs; two are resident."""

    def __init__(self, networks: Networks, driver: TorchDriver, file: Weights, expert: Expert, most: int) -> None:
        self._networks, self._file, self._expert, self._most = networks, file, expert, most
        self._template, self._likely = networks.template(expert), networks.likely_unpacking(expert)
        size, room = expert.input_size, padded(passing_bytes(file), PAGE)
        self._worker = Worker("probe", driver, self._likely.bytes, most * 3 * size**2)
        try:
            self._worker.prepare(self._template, self._likely, size, most)
            self._host = HostMemory(driver, 2 * (room + PAGE))
            self._lane = driver.stream("probe lane")
            self._blobs = BlobMemory(driver, self._lane, 3 * room)
        except BaseException:
            self._worker.close()
            raise
        self._copies: list[Copy] = []
        """The expert in pinned memory."""
        self._body: DeviceBody | None = None
        self._residents: list[Resident] = []
        self._turns = itertools.count()
        with contextlib.suppress(CoeError):
            if file.body is not None:
                self._body = self._put_body(file.body)
            self._copies = [self._read()]
            self._residents += [self._put(self._copies[0]), self._put(self._copies[0])]

    def copy(self) -> None:
        """Copy the weights from pinned memory to the device, and wait until they are there."""
        for copy in self._copies:
            self._pass(copy)

    def load(self) -> None:
        """Read the weights from the file and copy them to the device, and wait until they are there."""
        # The load on the line will report a damaged file.
        with contextlib.suppress(CoeError):
            copy = self._read()
            self._pass(copy)
            self._host.give(copy.buffer)

    def answer(self, pixels: Image) -> Any:
        """Run a batch, (n, 3, S, S) uint8, and return its outputs on the host."""
        unpacking = self._likely
        if self._residents:
            # The two blobs take turns, as experts do on a line: each batch activates weights, but for a common body.
            resident = self._residents[next(self._turns) % len(self._residents)]
            unpacking = resident.unpacking
            self._worker.activate(self._blobs, resident)
        launched = self._worker.launch(self._template, unpacking, list(pixels), self._most)
        parts = [tree_map(torch.clone, part.outputs()) for part in launched]
        return parts[0] if len(parts) == 1 else tree_map(lambda *some: torch.cat(some), *parts)

    def clear(self) -> None:
        """Let go of all memory, even if the trial is still referenced; the trial runs no more."""
        # The lane may still copy: a trial that failed waits for nothing. On a lost device nothing runs.
        with contextlib.suppress(DeviceLost):
            self._lane.finish()
        self._copies.clear()
        self._residents.clear()
        self._body = None
        self._worker.close()
        del self._worker, self._blobs, self._lane, self._host

    def _read(self) -> Copy:
        return Copy(*self._file.content(self._host))

    def _put_body(self, file: Weights) -> DeviceBody:
        copy = Copy(*file.content(self._host))
        unpacking = Unpacking(copy.content, self._likely.structure)
        resident = self._blobs.put(f"body of {self._expert.id}", copy.data(), unpacking)
        copy.buffer.busy = resident.written
        self._host.give(copy.buffer)
        return DeviceBody(resident, copy.content)

    def _put(self, copy: Copy) -> Resident:
        body = self._body
        unpacking = self._networks.unpacking(copy.content, self._expert, body.content if body else None)
        return self._blobs.put(self._expert.id, copy.data(), unpacking, body.resident if body else None)

    def _pass(self, copy: Copy) -> None:
        """Copy an expert to the device, wait until it is there, and drop it."""
        resident = self._put(copy)
        assert resident.written is not None, "a blob was put and not written"
        resident.written.wait()
        self._blobs.drop(resident)
