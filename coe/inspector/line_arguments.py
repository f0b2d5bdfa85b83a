"""The keyword arguments of `Inspector`, for type checkers and editors; `LineOptions` says what each means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from coe.inspector.asked_boards import Parts
    from coe.inspector.experiment import Experiment
    from coe.inspector.profile import Profile
    from coe.results.metrics import Watcher
    from coe.scheduler.strategies import Strategy
    from coe.store.store_reader import StoreReader

OnFull = Literal["block", "raise"]


class LineArguments(TypedDict, total=False):
    """The options of a line as a user gives them, all but the board."""

    store: StoreReader | Path | str | None
    memory: int | str | None
    executors: str | None
    threads: int | None
    device_memory: int | str | None
    host_memory: int | str | None
    search_kernels: bool
    profile: Profile | Path | str | None
    strategy: str | Strategy
    precision: str
    max_wait_s: float | None
    parts: Parts | None
    inbox: int
    inbox_bytes: int | None
    on_full: OnFull
    allow_kinds: Sequence[str]
    cluster: str | None
    disk_bandwidth: int | str | None
    watchers: Sequence[Watcher]
    say: Callable[[str], None]
    experiment: Experiment
