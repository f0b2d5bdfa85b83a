"""Configurations for runs on this machine: the paper's default, and the part of a profile that holds one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coe import config
from coe.board.rules import Rules
from coe.inspector.memory_split import inbox_bytes
from coe.inspector.profile import BoardProfile, Chosen, Profile
from coe.system import usable_cores

if TYPE_CHECKING:
    from coe.store.store_reader import StoreReader

PAPER_SHARE = 0.25
"""The share of memory that the paper's default leaves to batches (section 5.2)."""


@dataclass(frozen=True, slots=True)
class MeanExpert:
    """The expert of mean size of a board, by its own part, and the bytes of all bodies, which each pool holds once."""

    own_bytes: float
    bodies_bytes: int

    @classmethod
    def of(cls, own_bytes: Collection[int], bodies: Mapping[str, int]) -> MeanExpert:
        """Take the bytes of the experts' own parts, and those of each body."""
        return cls(sum(own_bytes) / len(own_bytes), sum(bodies.values()))

    def bytes_of(self, number: float, pools: int = 1) -> float:
        """Return the bytes that so many experts take in so many pools, which hold all bodies."""
        return number * self.own_bytes + pools * self.bodies_bytes

    def number_in(self, room_bytes: float, pools: int = 1) -> float:
        """Return how many experts have room in so many pools together, the inverse of `bytes_of`; at least 0."""
        return max(0.0, room_bytes - pools * self.bodies_bytes) / self.own_bytes


def paper_default(board: Rules, store: StoreReader, memory_bytes: int, *, on_gpu: bool = False) -> Chosen:
    """Return the configuration without calibration: one executor, a quarter of the memory for batches.

    With `on_gpu` the executor runs on the GPU, which divides its memory itself.
    """
    manifests = [store.manifest(expert.weights) for expert in board.experts.values()]
    bodies = {manifest.body.digest: manifest.body.bytes for manifest in manifests if manifest.body is not None}
    mean = MeanExpert.of([manifest.bytes for manifest in manifests], bodies)
    pool_bytes = memory_bytes - inbox_bytes(memory_bytes)
    return Chosen(
        executors={"cuda": 1} if on_gpu else {"cpu": 1},
        threads={} if on_gpu else {"cpu": usable_cores()},
        workspace_bytes={} if on_gpu else {"cpu": int(pool_bytes * PAPER_SHARE)},
        loaded_experts=0 if on_gpu else int(mean.number_in(pool_bytes * (1 - PAPER_SHARE))),
        images_per_s=0.0,
        casual_images_per_s=0.0,
        reasons=("the paper's default",),
    )


def board_profile(
    board: Rules,
    configuration: Chosen,
    memory_bytes: int,
    device_bytes: int | None = None,
    host_bytes: int | None = None,
) -> BoardProfile:
    """Return a board's part of a profile that holds only a configuration and its budgets."""
    return BoardProfile(
        board=board.board,
        digest=board.digest,
        memory_bytes=memory_bytes,
        device_bytes=device_bytes,
        host_bytes=host_bytes,
        strategy=config.STRATEGY,
        usage=(),
        windows=(),
        executors=(),
        chosen=configuration,
    )


def pinned(profile: Profile, part: BoardProfile) -> Profile:
    """Return the profile with this part as its only board."""
    return profile.model_copy(update={"boards": {part.board: part}})
