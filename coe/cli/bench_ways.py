"""What the names of `coe-bench run --strategy` stand for: a strategy, a configuration of ours, or the usual way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coe import config
from coe.bench.configurations import board_profile, casual, chosen, pinned
from coe.board import rules
from coe.errors import ConfigError
from coe.inspector import fingerprint, profile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from coe.inspector.assembly import MakeDevices
    from coe.inspector.profile import Profile
    from coe.store.store import Store

CASUAL, PROFILED = f"{config.STRATEGY}-casual", f"{config.STRATEGY}-profile"
CONFIGURED = (CASUAL, PROFILED)
USUAL = "-usual"
"""Behind the name of a strategy: with experts loaded and run the usual way (`coe.bench.usual`)."""


def strategy_of(name: str) -> str:
    """Return the strategy behind a name."""
    return config.STRATEGY if name in CONFIGURED else name.removesuffix(USUAL)


def make_devices(name: str) -> MakeDevices:
    """Return what makes the devices of a name: ours, or such as do it the usual way."""
    from coe.bench import usual
    from coe.inspector import assembly

    return usual.devices if name.endswith(USUAL) else assembly.devices


def settled_by(
    names: Sequence[str], profile_at: Path | None, path: Path, store: Store, said: int | None
) -> tuple[int, dict[str, Profile]]:
    """Return the memory budget, and a profile for each name that stands for a configuration: nothing but that choice.

    The budget is what was said, else that of the profile if it is used, else one for a quarter of the experts.
    """
    from coe.bench.synthetic import quarter_budget

    board = rules.load(path)
    if not set(names) & set(CONFIGURED):
        return said or quarter_budget(path, store), {}
    known = _profile(profile_at)
    found = chosen(known, board, said) if PROFILED in names else None
    budget = said or (found.memory_bytes if found else quarter_budget(path, store))
    # Somebody who does not calibrate has the same box, and uses its GPU.
    same = found or known.boards.get(board.board)
    own = (same.device_bytes, same.host_bytes) if same else (None, None)
    on_gpu = own[0] is not None
    choices = {CASUAL: casual(board, store, budget, on_gpu=on_gpu), **({PROFILED: found.chosen} if found else {})}
    return budget, {
        name: pinned(known, board_profile(board, one, budget, *own)) for name, one in choices.items() if name in names
    }


def has_gpu(found: Profile | None) -> bool:
    """Tell whether a configuration has executors of a GPU; without one that is the user's word."""
    return found is None or any("cuda" in board.chosen.executors for board in found.boards.values())


def _profile(at: Path | None) -> Profile:
    """Return the profile that configurations are taken from; raises ConfigError."""
    found = profile.load(at or profile.place())
    if changed := fingerprint.differences(found.machine, fingerprint.here()):
        raise ConfigError(f"the profile is of another machine ({'; '.join(changed)}); run coe-profile again")
    return found
