"""Configurations for runs on this machine: the paper's default, and the part of a profile that holds one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coe import config
from coe.board.rules import Rules
from coe.helpers.system import usable_cores
from coe.inspector.profile import BoardProfile, Chosen, Profile
from coe.inspector.settings import inbox_bytes

if TYPE_CHECKING:
    from coe.store.store_reader import StoreReader

PAPER_SHARE = 0.25
"""The share of memory that the paper's default leaves to batches (section 5.2)."""


def paper_default(board: Rules, store: StoreReader, memory_bytes: int, *, on_gpu: bool = False) -> Chosen:
    """Return the configuration without calibration: one executor, a quarter of the memory for batches.

    With `on_gpu` the executor runs on the GPU, which divides its memory itself.
    """
    manifests = [store.manifest(expert.weights) for expert in board.experts.values()]
    mean_bytes = sum(manifest.bytes for manifest in manifests) / len(manifests)
    pool_bytes = memory_bytes - inbox_bytes(memory_bytes)
    return Chosen(
        executors={"cuda": 1} if on_gpu else {"cpu": 1},
        threads={} if on_gpu else {"cpu": usable_cores()},
        workspace_bytes={} if on_gpu else {"cpu": int(pool_bytes * PAPER_SHARE)},
        loaded_experts=0 if on_gpu else int(pool_bytes * (1 - PAPER_SHARE) / mean_bytes),
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
    strategy: str = config.STRATEGY,
) -> BoardProfile:
    """Return a board's part of a profile that holds only a configuration, its budgets, and its strategy."""
    return BoardProfile(
        board=board.board,
        digest=board.digest,
        memory_bytes=memory_bytes,
        device_bytes=device_bytes,
        host_bytes=host_bytes,
        strategy=strategy,
        usage=(),
        windows=(),
        executors=(),
        chosen=configuration,
    )


def pinned(profile: Profile, part: BoardProfile) -> Profile:
    """Return the profile with this part as its only board."""
    return profile.model_copy(update={"boards": {part.board: part}})
