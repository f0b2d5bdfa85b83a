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

from coe.blob_format import PAGE, padded
from coe.core import Expert
from coe.errors import CoeError, ConfigError, DeviceFull
from coe.kinds import Image
from coe.runtime.cuda.driver import Driver
from coe.runtime.cuda.ground import Ground, Resident
from coe.runtime.cuda.host import Copy, HostMemory
from coe.runtime.cuda.networks import Networks
from coe.runtime.cuda.recipe import recipe_like
from coe.runtime.cuda.worker import SIZES, Worker
from coe.runtime.reading import weights
from coe.runtime.trial import Trial
from coe.store import Store


@dataclass(frozen=True, slots=True)
class Held:
    """Graphs for up to `most` images of `input_size` pixels hold `bytes` of device memory for good."""

    input_size: int
    most: int
    bytes: int


def held(networks: Networks, driver: Driver, expert: Expert, budget_bytes: int) -> Held:
    """Capture graphs for ever more images until they hold more than `budget_bytes`, or the kind allows no more.

    Raises ConfigError if not even one image runs, StoreError.
    """
    kind, template, size = networks.kind(expert), networks.template(expert), expert.input_size
    sizes = [images for images in SIZES if images <= kind.max_batch] or [1]
    found: Held | None = None
    try:
        recipe = recipe_like(template.spec, networks.of(expert).structure)
        worker = Worker("probe", driver, recipe.bytes, sizes[-1] * 3 * size**2, threading.Lock())
        # What others left would be given back in between, and taken for memory that the graphs do not hold.
        driver.trim()
        before = driver.usage().reserved
        for images in sizes:
            worker.capture(template, recipe, images, size)
            taken = driver.usage().reserved - before
            if found is not None and taken > budget_bytes:
                break
            found = Held(size, images, taken)
        worker.trim()
    except DeviceFull as error:
        if found is None:
            raise ConfigError(
                f"the device memory is too small to run expert '{expert.id}' ({error}); give more --device-memory"
            ) from None
    driver.trim()
    return found  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class GpuTrial(Trial):
    """An expert that runs on a GPU. Its batches hold nothing that is not held for good: see `Held`."""

    copy: Callable[[], object] = lambda: None

    def least_image_bytes(self) -> int:
        """Return 0."""
        return 0

    def batch_bytes(self, images: int) -> int:
        """Return 0; captures the graph."""
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
    file, template = weights(store, expert), networks.template(expert)
    random = recipe_like(template.spec, networks.of(expert).structure)
    room = padded(file.bytes, PAGE)
    lane, host = driver.stream("probe lane"), HostMemory(driver, 2 * (room + PAGE))
    ground = Ground(driver, lane, 3 * room)
    worker = Worker("probe", driver, networks.running_bytes(expert), most * 3 * expert.input_size**2, threading.Lock())
    copies: list[Copy] = []
    residents: list[Resident] = []
    turns = itertools.count()

    def put() -> Resident:
        return ground.put(expert.id, copies[0].data(), networks.recipe(copies[0].content, expert))

    def copy() -> None:
        if copies:
            _gone(ground, put())

    def load() -> None:
        # A damaged file tells nothing, it is reported when its turn comes.
        with contextlib.suppress(CoeError):
            fetched = Copy(*file.content(host))
            resident = ground.put(expert.id, fetched.data(), networks.recipe(fetched.content, expert))
            _gone(ground, resident)
            host.give(fetched.buffer)

    def answer(pixels: Image) -> Any:
        recipe = random
        if residents:
            # In turn, as experts come in turn: each batch activates weights.
            resident = residents[next(turns) % len(residents)]
            recipe = resident.recipe
            worker.activate(ground, resident)
        parts = [tree_map(torch.clone, outputs) for _, outputs in worker.run(template, recipe, list(pixels), most)]
        return parts[0] if len(parts) == 1 else tree_map(lambda *some: torch.cat(some), *parts)

    with contextlib.suppress(CoeError):
        copies.append(Copy(*file.content(host)))
        residents += [put(), put()]
    trial = GpuTrial(answer, expert.input_size, file.bytes, file.path, load, copy=copy)
    # Once before anything is timed: what is set up at first is no part of it.
    trial.load()
    trial.copy()
    trial.run(1)
    yield trial


def _gone(ground: Ground, resident: Resident) -> None:
    assert resident.written is not None, "a blob was put and not written"
    resident.written.wait()
    ground.drop(resident)
