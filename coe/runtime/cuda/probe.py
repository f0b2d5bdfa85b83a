"""What experts cost on a GPU, and what their graphs hold: one of each network is run before memory is given out."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from coe.core import Expert
from coe.errors import CoeError, ConfigError, DeviceFull
from coe.runtime.cuda.driver import Driver
from coe.runtime.cuda.garbage import give_back
from coe.runtime.cuda.ground import Ground, Resident
from coe.runtime.cuda.host import Copy, HostMemory
from coe.runtime.cuda.networks import Networks
from coe.runtime.cuda.worker import Worker, sizes
from coe.runtime.reading import Weights, weights
from coe.runtime.trial import Trial
from coe.store.blob_format import PAGE, padded
from coe.store.kinds import Image
from coe.store.store import Store


@dataclass(frozen=True, slots=True)
class Held:
    """Graphs for up to `most` images of `input_size` pixels hold `bytes` of device memory for good.

    What they put out, `outputs` bytes of it, is theirs alone; the rest serves all graphs of an executor in turn.
    """

    input_size: int
    most: int
    bytes: int
    outputs: int


def held(networks: Networks, driver: Driver, expert: Expert, budget_bytes: int) -> Held:
    """Capture the graphs of the largest batch that the kind allows and whose graphs hold no more than `budget_bytes`.

    One image may hold more. Raises ConfigError if not even one runs, StoreError.
    """
    reason = ""
    for most in reversed(sizes(networks.kind(expert).max_batch)):
        # What others left would be given back in between, and taken for memory that the graphs do not hold.
        give_back(driver)
        try:
            found = _held_by(networks, driver, expert, most)
        except DeviceFull as error:
            reason = str(error)
            continue
        if most == 1 or found.bytes <= budget_bytes:
            give_back(driver)
            return found
    give_back(driver)
    raise ConfigError(
        f"the device memory is too small to run expert '{expert.id}' ({reason}); give more --device-memory"
    )


def _held_by(networks: Networks, driver: Driver, expert: Expert, most: int) -> Held:
    """Capture all graphs for up to so many images on a worker that ends with it; raises DeviceFull."""
    recipe, size = networks.likely_recipe(expert), expert.input_size
    worker = Worker("probe", driver, recipe.bytes, most * 3 * size**2, threading.Lock())
    before = driver.usage().reserved
    worker.prepare(networks.template(expert), recipe, size, most)
    return Held(size, worker.most(recipe, size, most), driver.usage().reserved - before, worker.outputs_bytes)


@dataclass(frozen=True, slots=True)
class GpuTrial(Trial):
    """An expert that runs on a GPU. Its batches hold nothing that is not held for good: see `Held`."""

    copy: Callable[[], object] = lambda: None

    def least_image_bytes(self) -> int:
        """Return 0."""
        return 0

    def batch_bytes(self, images: int) -> int:
        """Return 0; a batch is run as it would be to see what it holds."""
        self.run(images)
        return 0

    def copy_s(self) -> float:
        """Time a copy from pinned memory to the device, in seconds."""
        began = time.perf_counter()
        self.copy()
        return time.perf_counter() - began


@contextlib.contextmanager
def gpu_trial(networks: Networks, driver: Driver, store: Store, expert: Expert, most: int) -> Iterator[GpuTrial]:
    """Give an expert to measure, with memory of its own until the end; raises StoreError, DeviceFull, DeviceLost."""
    file = weights(store, expert)
    bench = _Bench(networks, driver, file, expert, most)
    try:
        trial = GpuTrial(bench.answer, expert.input_size, file.bytes, file.path, bench.load, copy=bench.copy)
        # Once before anything is timed: what is set up at first is no part of it.
        trial.load()
        trial.copy()
        trial.run(1)
        yield trial
    finally:
        bench.clear()


class _Bench:
    """What a trial takes of a device: a worker with its graphs, and room for blobs, of which two are there."""

    def __init__(self, networks: Networks, driver: Driver, file: Weights, expert: Expert, most: int) -> None:
        self._networks, self._file, self._expert, self._most = networks, file, expert, most
        self._template, self._likely = networks.template(expert), networks.likely_recipe(expert)
        size, room = expert.input_size, padded(file.bytes, PAGE)
        self._worker = Worker("probe", driver, self._likely.bytes, most * 3 * size**2, threading.Lock())
        self._worker.prepare(self._template, self._likely, size, most)
        self._host = HostMemory(driver, 2 * (room + PAGE))
        self._ground = Ground(driver, driver.stream("probe lane"), 3 * room)
        self._copies: list[Copy] = []
        self._residents: list[Resident] = []
        self._turns = itertools.count()
        with contextlib.suppress(CoeError):
            self._copies.append(Copy(*file.content(self._host)))
            self._residents += [self._put(self._copies[0]), self._put(self._copies[0])]

    def copy(self) -> None:
        """Bring the weights up from pinned memory, and wait until they are there."""
        if self._copies:
            self._gone(self._put(self._copies[0]))

    def load(self) -> None:
        """Bring the weights up from the file, and wait until they are there."""
        # A damaged file tells nothing, it is reported when its turn comes.
        with contextlib.suppress(CoeError):
            fetched = Copy(*self._file.content(self._host))
            self._gone(self._put(fetched))
            self._host.give(fetched.buffer)

    def answer(self, pixels: Image) -> Any:
        """Run a batch, (n, 3, S, S) uint8, and return its outputs on the host."""
        recipe = self._likely
        if self._residents:
            # In turn, as experts come in turn: each batch activates weights.
            resident = self._residents[next(self._turns) % len(self._residents)]
            recipe = resident.recipe
            self._worker.activate(self._ground, resident)
        run = self._worker.run(self._template, recipe, list(pixels), self._most)
        parts = [tree_map(torch.clone, outputs) for _, outputs in run]
        return parts[0] if len(parts) == 1 else tree_map(lambda *some: torch.cat(some), *parts)

    def clear(self) -> None:
        """Let go of all memory. Whoever still has the trial by name then keeps none of it; it runs no more."""
        self._copies.clear()
        self._residents.clear()
        del self._worker, self._ground, self._host

    def _put(self, copy: Copy) -> Resident:
        return self._ground.put(self._expert.id, copy.data(), self._networks.recipe(copy.content, self._expert))

    def _gone(self, resident: Resident) -> None:
        assert resident.written is not None, "a blob was put and not written"
        resident.written.wait()
        self._ground.drop(resident)
