"""The names of `coe-bench run --strategy`: a strategy, a configuration, or a strategy with the eager baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coe import config
from coe.board import rules
from coe.board.rules import Rules
from coe.errors import ConfigError
from coe.inspector import profile
from coe.inspector.profile import BoardProfile, Fingerprint, Profile
from coe.profiler.configurations import board_profile, paper_default, pinned
from coe.scheduler.strategies import present_name

if TYPE_CHECKING:
    from coe.inspector.line_devices import MakeDevices
    from coe.store.store_reader import StoreReader

PAPER_DEFAULT, PROFILED = f"{config.STRATEGY}-paper-default", f"{config.STRATEGY}-profile"
CONFIGURED = (PAPER_DEFAULT, PROFILED)
EAGER = "-eager"
"""The end of a strategy's name if experts are run as by a plain program (`coe.lab.eager_baseline`)."""
_OLD_ENDS = {"-usual": EAGER, "-casual": "-paper-default"}
"""By the end of a name of earlier versions: the end of today."""


def current(name: str) -> str:
    """Return a name as it is written now, for a name of an earlier version."""
    for old, new in _OLD_ENDS.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return present_name(name)


def strategy_of(name: str) -> str:
    """Return the strategy behind a name."""
    return config.STRATEGY if name in CONFIGURED else name.removesuffix(EAGER)


def make_devices(name: str) -> MakeDevices:
    """Return the function that makes the devices of a name: the engine's, or those of the eager baseline."""
    from coe.inspector import line_devices
    from coe.lab import eager_baseline

    return eager_baseline.devices if name.endswith(EAGER) else line_devices.make


def configurations(
    names: Sequence[str], profile_at: Path | None, path: Path, store: StoreReader, memory_bytes: int | None
) -> tuple[int, dict[str, Profile]]:
    """Return the memory budget, and for each name that stands for a configuration a profile that holds only it.

    The budget is `memory_bytes`; if None, that of the profile if it is used; if not, that for a quarter of the experts.
    """
    from coe.lab.workloads.synthetic import quarter_budget

    board = rules.load(path)
    if not set(names) & set(CONFIGURED):
        return memory_bytes or quarter_budget(path, store), {}
    loaded = profile.load(profile_at or profile.place())
    if changed := loaded.machine.changes(Fingerprint.here()):
        raise ConfigError(f"the profile is of another machine ({'; '.join(changed)}); run coe-profile again")
    part = _profiled(loaded, board, memory_bytes) if PROFILED in names else None
    budget = memory_bytes or (part.memory_bytes if part else quarter_budget(path, store))
    # The paper's default runs on the same box, with its GPU.
    box = part or loaded.boards.get(board.board)
    gpu_memory = (box.device_bytes, box.host_bytes) if box else (None, None)
    on_gpu = gpu_memory[0] is not None
    choices = {
        PAPER_DEFAULT: paper_default(board, store, budget, on_gpu=on_gpu),
        **({PROFILED: part.chosen} if part else {}),
    }
    return budget, {
        name: pinned(loaded, board_profile(board, choice, budget, *gpu_memory))
        for name, choice in choices.items()
        if name in names
    }


def has_gpu(configured: Profile | None) -> bool:
    """Tell whether a configuration has executors of a GPU; true without one, as the user's options tell then."""
    return configured is None or any("cuda" in board.chosen.executors for board in configured.boards.values())


def _profiled(profile: Profile, board: Rules, memory_bytes: int | None) -> BoardProfile:
    """Return a profile's part for a board; raises ConfigError if the profile does not know this board and memory."""
    part = profile.boards.get(board.board)
    again = f"run coe-profile --board {board.path} first"
    if part is None or part.digest != board.digest:
        raise ConfigError(f"the profile does not know board '{board.board}' as it is now; {again}")
    if memory_bytes not in (None, part.memory_bytes):
        raise ConfigError(
            f"board '{board.board}' was profiled under {config.format_bytes(part.memory_bytes)}, not "
            f"{config.format_bytes(memory_bytes or 0)}; leave --memory out, or {again}"
        )
    return part
