"""A board on this machine: what is calibrated. What its devices hold is looked at once, and lines run on it."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from coe import config, regular
from coe.bench.configurations import casual, entry, pinned
from coe.bench.engine import Measured, measured_run
from coe.bench.rows import Heading
from coe.bench.synthetic import synthetic_pictures
from coe.board.rules import Rules
from coe.core import Expert
from coe.errors import CoeError
from coe.inspector import assembly
from coe.inspector.inspector import Picture
from coe.inspector.line_config import AskedSettings, LineConfig
from coe.inspector.profile import BoardProfile, Chosen, Profile
from coe.store import kinds
from coe.store.kinds import Kind
from coe.store.store import MANIFEST, Store


@dataclass(frozen=True, slots=True)
class Seen:
    """A device as it was found with its executors; see `coe.inspector.memory.Memory`."""

    memory_bytes: int | None
    host_bytes: int
    held_bytes: int

    def fixed_bytes(self, experts: Iterable[Expert], executors: int) -> int:
        """Return what was found; it was for these experts and executors."""
        return self.held_bytes


@dataclass(frozen=True)
class Site:
    """A board, its experts and sample images (else some are generated), and what of the memory a line may take.

    A GPU has `device_bytes` and `host_bytes`, a part of what is free if None; `gpu` is what was found of it, None as
    long as it takes no part. `allow_kinds` as for `Inspector`.
    """

    board: Rules
    store: Store
    pictures: Sequence[Picture]
    memory_bytes: int
    device_bytes: int | None = None
    host_bytes: int | None = None
    allow_kinds: tuple[str, ...] = ()
    gpu: Seen | None = None
    seen: dict[tuple[str, int], Seen] = field(default_factory=dict, repr=False)
    """By device and executors; shared by all that is made of this site."""

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """The kinds of the board, by name."""
        return {kind: kinds.resolve(kind, self.allow_kinds) for kind in self.samples}

    @cached_property
    def samples(self) -> dict[str, Expert]:
        """One expert of each kind, that with the largest input."""
        found: dict[str, Expert] = {}
        for expert in sorted(self.board.experts.values(), key=lambda expert: -expert.input_size):
            found.setdefault(expert.kind, expert)
        return found

    @property
    def without_weights(self) -> list[str]:
        """The experts of the board that are not in the store."""
        experts = self.board.experts.values()
        return [one.id for one in experts if not regular.may_exist(self.store.folder(one.weights) / MANIFEST)]

    def file_bytes(self, known: Profile) -> dict[str, int]:
        """Return the bytes of each expert's weights; of one that is not in the store those of its kind."""
        found = {}
        for expert in self.board.experts.values():
            try:
                found[expert.id] = self.store.manifest(expert.weights).bytes
            except CoeError:
                found[expert.id] = next(kind.weights_bytes for kind in known.kinds if kind.kind == expert.kind)
        return found

    def memories(self, executors: Mapping[str, int]) -> dict[str, Seen]:
        """Return devices with so many executors; raises ConfigError where these do not fit."""
        return {device: self.look(device, number) for device, number in executors.items()}

    def look(self, device: str, executors: int) -> Seen:
        """Look at a device as a line would make it. Nothing else may use a GPU meanwhile."""
        if (device, executors) not in self.seen:
            made = assembly.devices(
                {device: executors},
                self.store,
                self.kinds,
                {},
                device_bytes=self.device_bytes,
                host_bytes=self.host_bytes,
            )[device]
            held_bytes = made.fixed_bytes(self.board.experts.values(), executors)
            self.seen[device, executors] = Seen(made.memory_bytes, made.host_bytes, held_bytes)
            # What it looked at a GPU with must be gone before the next one looks.
            del made
            gc.collect()
        return self.seen[device, executors]

    def without_gpu(self) -> Site:
        """Return the same without a GPU, where none of it is of use."""
        return replace(self, gpu=None)

    def entry(self, chosen: Chosen) -> BoardProfile:
        """Return a configuration as the part of a profile that a line here would run by."""
        own = (self.gpu.memory_bytes, self.gpu.host_bytes) if self.gpu else (None, None)
        return entry(self.board, chosen, self.memory_bytes, *own)

    def casual(self) -> Chosen:
        """Return the casual configuration: on the GPU, where there is one."""
        return casual(self.board, self.store, self.memory_bytes, on_gpu=self.gpu is not None)

    def run(self, known: Profile, chosen: Chosen, images: int) -> Measured:
        """Run so many images, always the same, through a new line of a configuration."""
        given = list(self.pictures) or synthetic_pictures(self.board.path, images, seed=0)
        line_config = LineConfig(
            board=self.board.path,
            store=self.store,
            asked=AskedSettings(memory_bytes=self.memory_bytes, profile=pinned(known, self.entry(chosen))),
            allowed_kinds=self.allow_kinds,
        )
        pictures = [given[index % len(given)] for index in range(images)]
        return measured_run(line_config, pictures, heading=Heading(self.board.board, "sample", config.STRATEGY))
