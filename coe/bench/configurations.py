"""Configurations of a box for measured runs: the paper's casual one, and what `coe-profile` chose."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from coe import config
from coe.board.rules import Rules
from coe.errors import ConfigError
from coe.inspector.profile import BoardProfile, Chosen, Profile
from coe.scheduler.plan import inbox_bytes

if TYPE_CHECKING:
    from coe.store.store import Store

CASUAL = 0.25
"""What the paper's casual configuration leaves to batches (section 5.2)."""

T = TypeVar("T")


def casual(board: Rules, store: Store, memory_bytes: int, *, on_gpu: bool = False) -> Chosen:
    """Return the configuration of somebody who does not calibrate: one executor, a quarter of memory for batches.

    `on_gpu` gives it the GPU, which divides its memory itself.
    """
    mean_bytes = sum(store.manifest(e.weights).bytes for e in board.experts.values()) / len(board.experts)
    pool_bytes = memory_bytes - inbox_bytes(memory_bytes)
    return Chosen(
        executors={"cuda": 1} if on_gpu else {"cpu": 1},
        threads={} if on_gpu else {"cpu": os.cpu_count() or 1},
        workspace_bytes={} if on_gpu else {"cpu": int(pool_bytes * CASUAL)},
        loaded_experts=0 if on_gpu else int(pool_bytes * (1 - CASUAL) / mean_bytes),
        images_per_s=0.0,
        casual_images_per_s=0.0,
        reasons=("the casual split",),
    )


def chosen(profile: Profile, board: Rules, memory_bytes: int | None) -> BoardProfile:
    """Return what a profile chose for a board; raises ConfigError if it does not know this board and memory."""
    found = profile.boards.get(board.board)
    again = f"run coe-profile --board {board.path} first"
    if found is None or found.digest != board.digest:
        raise ConfigError(f"the profile does not know board '{board.board}' as it is now; {again}")
    if memory_bytes not in (None, found.memory_bytes):
        raise ConfigError(
            f"board '{board.board}' was profiled under {config.format_bytes(found.memory_bytes)}, not "
            f"{config.format_bytes(memory_bytes or 0)}; leave --memory out, or {again}"
        )
    return found


def board_profile(
    board: Rules, one: Chosen, memory_bytes: int, device_bytes: int | None = None, host_bytes: int | None = None
) -> BoardProfile:
    """Return nothing but a configuration of a board under a budget, as a part of a profile."""
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
        chosen=one,
    )


def pinned(profile: Profile, one: BoardProfile) -> Profile:
    """Return the profile with nothing but this configuration of a board."""
    return profile.model_copy(update={"boards": {one.board: one}})


def in_turn(works: Sequence[Callable[[], T]], *, again: Callable[[int], bool]) -> list[list[T]]:
    """Run things there and back, as long as `again`, given the number of rounds done, says so; return each one's runs.

    There and back, because the first line of a process is the slowest, and a machine may slow down as it warms.
    """
    runs = [[work()] for work in works]
    while again(len(runs[0])):
        order = list(zip(works, runs, strict=True))
        for work, own in reversed(order) if len(runs[0]) % 2 else order:
            own.append(work())
    return runs
