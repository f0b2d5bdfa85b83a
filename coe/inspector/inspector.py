"""The public Python API: pictures in, verdicts out.

    with Inspector(board="A") as line:
        future = line.submit(image, component="R0402", serial="SN1")
        for result in line.stream(pictures):
            ...

From asyncio: `result = await line.inspect(image, component="R0402")`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from coe import config, values
from coe.board.image_source import Picture
from coe.errors import ConfigError
from coe.inspector import assembly
from coe.inspector.line import Line
from coe.inspector.line_config import AUTO, AskedSettings, Inbox, LineConfig, OnFull
from coe.inspector.measuring import LineCosts
from coe.inspector.profile import Profile
from coe.results.metrics import Watcher
from coe.runtime.decider import MakeDecider
from coe.scheduler.controller import Controller
from coe.scheduler.strategies import Strategy
from coe.scheduler.strategies import strategy as named_strategy
from coe.store import dotted
from coe.store.store import Store

__all__ = ["Inspector", "Picture"]


class Inspector(Line):
    """A running line for one board.

    `board` is a name or the path of a board file, `memory` the budget for experts, activations and images under way in
    bytes or as "1.5GiB", `executors` such as "cpu=2", `threads` those of each, `loaded` how many experts of mean size
    the memory is to hold (a memory score; batches have the rest). With executors such as "cuda=2,cpu=1" a GPU takes
    part: `device_memory` is its budget, `host_memory` what keeps copies of experts for it (docs/gpu.md). What is not
    given comes from this machine's `profile` (see `coe.inspector.settings`), or is a default. When `inbox` images or
    `inbox_bytes` are under way, `submit` waits, or raises LineFull with `on_full="raise"`; `inbox_bytes` are a part of
    the memory, or beside it if given. `say` is called with a sentence when something takes a moment. With `keep_trace`,
    `trace` holds every event and its commands; `watchers` see them as they pass, on the thread that decides.

    `precision` is "fp32", "half" or "mixed" (docs/precision.md); a variant whose labels agree with those of fp32 in a
    smaller share than `label_floor` is not used.

    `strategy` is a name, or a `coe.scheduler.strategies.Strategy` with policies of your own (docs/tutorial.md). With
    `line` an image that has been under way for half of `max_wait_s` (`config.MAX_WAIT_S` if None) goes before all that
    is in no hurry, and so do boards that are due (`within_s` of `submit`).

    With `disk_bandwidth`, bytes a second or "530MB/s", weights come no faster than from such a disk. `costs` are those
    of an earlier line of the same board, store, devices and precision; nothing is measured then.

    `make_devices` is for benchmarks, and for devices of your own (`coe.runtime.device`): it is called as
    `coe.inspector.assembly.devices` is, and returns them by name. A profile knows nothing of such; give None with it.
    `make_decider` is for experiments with scheduling itself (`coe.runtime.decider`): it is called as `Controller` is.

    `allow_kinds` are packages whose kinds the board file may name by a dotted path: code of no other package runs, but
    for kinds that are installed as entry points (docs/experts.md).

    Raises ConfigError, RulesError or StoreError for what cannot work, before any thread is started.
    """

    def __init__(  # noqa: PLR0913
        self,
        board: str | Path,
        *,
        store: Store | Path | str | None = None,
        memory: int | str | None = None,
        executors: str | None = None,
        threads: int | None = None,
        loaded: float | None = None,
        device_memory: int | str | None = None,
        host_memory: int | str | None = None,
        strategy: str | Strategy = config.STRATEGY,
        precision: str = config.PRECISION,
        label_floor: float = config.LABEL_FLOOR,
        on_full: OnFull = "block",
        inbox: int = config.INBOX_IMAGES,
        inbox_bytes: int | None = None,
        disk_bandwidth: int | str | None = None,
        max_wait_s: float | None = None,
        costs: LineCosts | None = None,
        profile: Profile | Path | str | None = AUTO,
        watchers: Sequence[Watcher] = (),
        say: Callable[[str], None] = lambda sentence: None,
        keep_trace: bool = False,
        make_devices: assembly.MakeDevices = assembly.devices,
        make_decider: MakeDecider = Controller,
        allow_kinds: Sequence[str] = (),
    ) -> None:
        _check_types(board=board, say=say, watchers=watchers, make_devices=make_devices, make_decider=make_decider)
        _check_earlier(store, costs)
        settings = LineConfig(
            board=board,
            store=store if isinstance(store, Store) else Store(store),
            asked=AskedSettings.parsed(
                memory=memory,
                executors=executors,
                threads=threads,
                loaded=loaded,
                device_memory=device_memory,
                host_memory=host_memory,
                profile=profile,
            ),
            strategy=named_strategy(strategy),
            precision=precision,
            label_floor=label_floor,
            inbox=Inbox(inbox, inbox_bytes, on_full),
            disk_bytes_per_s=None if disk_bandwidth is None else values.bandwidth("disk_bandwidth", disk_bandwidth),
            max_wait_s=max_wait_s,
            costs=costs,
            watchers=watchers,
            say=say,
            keep_trace=keep_trace,
            make_devices=make_devices,
            make_decider=make_decider,
            allowed_kinds=dotted.packages(allow_kinds),
        )
        super().__init__(settings)


def _check_types(*, board: object, say: object, watchers: object, make_devices: object, make_decider: object) -> None:
    """Raise ConfigError for an argument of a line that is of another type than it must be."""
    if not isinstance(board, str | Path) or not str(board):
        raise ConfigError(f"board={values.shown(board)}: give the name of a board, or the path of its file")
    for name, function in (("say", say), ("make_devices", make_devices), ("make_decider", make_decider)):
        if not callable(function):
            raise ConfigError(f"{name}={values.shown(function)}: give a function")
    if not isinstance(watchers, Sequence) or not all(hasattr(watcher, "observe") for watcher in watchers):
        raise ConfigError(f"watchers={values.shown(watchers)}: give a list of objects that `observe`")


def _check_earlier(store: object, costs: object) -> None:
    """Raise ConfigError for what is no store, or for costs that no earlier line gave."""
    if store is not None and not (isinstance(store, Store | Path | str) and str(store)):
        raise ConfigError(f"store={values.shown(store)}: give a Store, or the path of one")
    if costs is not None and not isinstance(costs, LineCosts):
        raise ConfigError(f"costs={values.shown(costs)}: give the `costs` of an earlier line")
