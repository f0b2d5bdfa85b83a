"""A board on this machine, to be profiled: looks at the memory of devices once, and runs lines."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random

import numpy as np
from numpy.typing import NDArray

from coe.board.rules import Rules
from coe.core import Expert
from coe.errors import CoeError, StoreError
from coe.helpers import regular
from coe.inspector import line_devices
from coe.inspector.inspector import Picture
from coe.inspector.line_options import LineOptions
from coe.inspector.measuring import stored
from coe.inspector.profile import BoardProfile, Chosen, Profile
from coe.inspector.settings import DeviceMemory, memories
from coe.profiler.configurations import board_profile, paper_default, pinned
from coe.profiler.line_run import LineRun, run_line
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.runtime.cuda.probe import GraphMemory
from coe.scheduler.strategies import LATE_BINDING, Strategy
from coe.store import kinds
from coe.store.kinds import Kind
from coe.store.store_reader import MANIFEST, StoreReader


@dataclass(frozen=True, slots=True)
class LookedAt:
    """A device's memory; of a GPU also the graphs of each expert, as far as these may be read."""

    memory: DeviceMemory
    graphs: Mapping[str, GraphMemory] = field(default_factory=dict)


@dataclass(frozen=True)
class ProfiledSite:
    """A board, its experts, sample images (some are generated if there are none), and the memory that a line may take.

    `device_bytes` and `host_bytes` are for a GPU; None means a part of the free memory. `gpu` is the GPU's memory as
    it was found; None as long as the GPU takes no part. `allow_kinds` and `strategy` as for `Inspector`.
    """

    board: Rules
    store: StoreReader
    pictures: Sequence[Picture]
    memory_bytes: int
    device_bytes: int | None = None
    host_bytes: int | None = None
    allow_kinds: tuple[str, ...] = ()
    gpu: DeviceMemory | None = None
    strategy: Strategy = LATE_BINDING
    looked_at: dict[tuple[str, int, int | None], LookedAt] = field(default_factory=dict, repr=False)
    """By device, number of executors, and bytes for the graphs of each; shared by all copies of this site."""

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """The kinds of the board, by name."""
        return {kind: kinds.resolve(kind, self.allow_kinds) for kind in self.samples}

    @cached_property
    def samples(self) -> dict[str, Expert]:
        """For each kind its expert with the largest input."""
        samples: dict[str, Expert] = {}
        for expert in sorted(self.board.experts.values(), key=lambda expert: -expert.input_size):
            samples.setdefault(expert.kind, expert)
        for kind, expert in samples.items():
            with contextlib.suppress(CoeError):
                samples[kind] = self.store.manifest(expert.weights).fit(expert)
        return samples

    @property
    def without_weights(self) -> list[str]:
        """The experts of the board that are not in the store."""
        experts = self.board.experts.values()
        return [e.id for e in experts if not regular.may_exist(self.store.folder(e.weights) / MANIFEST)]

    def file_bytes(self, profile: Profile) -> dict[str, int]:
        """Return the bytes of each expert's own weights; for an expert that is not in the store, those of its kind."""
        sizes = {}
        for expert in self.board.experts.values():
            try:
                sizes[expert.id] = stored(self.store.manifest(expert.weights), expert.variant).bytes
            except CoeError:
                sizes[expert.id] = next(kind.weights_bytes for kind in profile.kinds if kind.kind == expert.kind)
        return sizes

    def look(self, device: str, executors: int, batch_bytes: int | None = None) -> LookedAt:
        """Make a device as a line would, and look at its memory. Nothing else may use a GPU meanwhile.

        Raises ConfigError if so many executors do not fit.
        """
        if (key := (device, executors, batch_bytes)) not in self.looked_at:
            line_device = line_devices.make(
                {device: executors},
                self.store,
                self.kinds,
                {},
                gpu=line_devices.GpuSettings(self.device_bytes, self.host_bytes, batch_bytes=batch_bytes),
            )[device]
            experts = list(self.board.experts.values())
            graphs = {}
            if isinstance(line_device, CudaDevice):
                for expert in experts:
                    with contextlib.suppress(StoreError):
                        graphs[expert.id] = line_device.graphs(expert)
            memory = memories({device: line_device}, experts, {device: executors})[device]
            self.looked_at[key] = LookedAt(memory, graphs)
            # This device must have given its GPU memory back before the next device looks.
            del line_device
            gc.collect()
        return self.looked_at[key]

    def board_profile(self, chosen: Chosen) -> BoardProfile:
        """Return a configuration as the board's part of a profile, as a line reads it."""
        device_bytes, host_bytes = (self.gpu.memory_bytes, self.gpu.host_bytes) if self.gpu else (None, None)
        return board_profile(
            self.board, chosen, self.memory_bytes, device_bytes, host_bytes, strategy=self.strategy.name
        )

    def paper_default(self) -> Chosen:
        """Return the paper's default, on the GPU if the site has one."""
        return paper_default(self.board, self.store, self.memory_bytes, on_gpu=self.gpu is not None)

    def run(self, profile: Profile, chosen: Chosen, images: int) -> LineRun:
        """Run `images` images, the same in every run, through a new line of a configuration."""
        samples = list(self.pictures) or drawn_by_count(self.board, _noise(), images)
        line_options = LineOptions.of(
            self.board.path,
            store=self.store,
            memory=self.memory_bytes,
            profile=pinned(profile, self.board_profile(chosen)),
            allow_kinds=self.allow_kinds,
            strategy=self.strategy,
        )
        pictures = [samples[index % len(samples)] for index in range(images)]
        return run_line(line_options, pictures)


def drawn_by_count(board: Rules, pixels: NDArray[np.uint8], images: int, seed: int = 0) -> list[Picture]:
    """Return `images` times the same pixels, as pictures of components drawn by their counts."""
    counts = [component.count for component in board.components.values()]
    names = Random(seed).choices(list(board.components), counts, k=images)
    return [Picture(pixels, name, name=f"{index}") for index, name in enumerate(names)]


def _noise() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 255, (240, 240, 3), dtype=np.uint8)
