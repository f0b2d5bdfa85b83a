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

from coe import config, plugins, values
from coe.errors import ConfigError
from coe.inspector import line_devices
from coe.inspector.asked_boards import Boards, Parts
from coe.inspector.line import Line
from coe.inspector.line_config import AUTO, AskedSettings, Inbox, LineConfig, MakeBoxes, OnFull
from coe.inspector.line_costs import LineCosts
from coe.inspector.profile import Profile
from coe.pictures.image_source import Picture
from coe.results.metrics import Watcher
from coe.runtime.engine import MakeDecider
from coe.scheduler.controller import Controller
from coe.scheduler.strategies import Strategy
from coe.scheduler.strategies import strategy as named_strategy
from coe.store.store import Store

__all__ = ["Inspector", "Picture"]


class Inspector(Line):
    """A running line for one board, or for several.

    `board` is a name or the path of a board file; or several of them, as a list, or as a mapping from each to how many
    of these boards pass in the same time (as many of each, if a list says nothing else). The boards share the memory,
    and the experts that are equal. `set_boards` changes them while the line runs. `memory` is the budget for experts,
    activations and images under way, in bytes or as "1.5GiB". `executors` is a text such as "cpu=2", and `threads` the
    number of threads of each. `loaded` is how many experts of mean size the memory holds (a memory score; batches get
    the rest). With executors such as "cuda=2,cpu=1" a GPU takes part: `device_memory` is its budget, `host_memory`
    keeps copies of experts for it (docs/gpu.md). Without `search_kernels` a line with a GPU opens sooner, and may run
    slower. Settings that are not given come from this machine's `profile` (see `coe.inspector.settings`), or are
    defaults. When `inbox` images or `inbox_bytes` are under way, `submit` waits, or raises LineFull with
    `on_full="raise"`; the images have a part of the memory, or `inbox_bytes` beside it if given. `say` is called with a
    sentence before slow work. With `keep_trace`, `trace` holds every event and its commands; `watchers` see them as
    they happen, on the control thread.

    `precision` is "fp32", "half" or "mixed" (docs/precision.md); a variant whose labels agree with those of fp32 in a
    smaller share than `label_floor` is not used.

    `strategy` is a name, or a `coe.scheduler.strategies.Strategy` with policies of your own (docs/tutorial.md). With
    `line` an image that has been under way for half of `max_wait_s` (`config.MAX_WAIT_S` if None) goes before all
    images without hurry, and so do boards that are due (`within_s` of `submit`).

    `parts` is the parts list of the board, in the order of the camera: a file such as a pick-and-place file
    (`coe.board.parts_list`), or `PlacedPart`s; with several boards, a mapping from a board to its list. With `line`,
    experts are then loaded before the images that need them come, if images have a `refdes`; without a list the order
    is learned from the boards that came before.

    With `disk_bandwidth`, bytes a second or "530MB/s", weights load no faster than from such a disk. `costs` are the
    costs of an earlier line of the same board, store, devices and precision; with them nothing is measured.

    `make_devices` is for benchmarks, and for your own devices (`coe.runtime.device`): it takes the arguments of
    `coe.inspector.line_devices.make` and returns devices by name. No profile knows such devices; give `profile=None`.
    `make_decider` is for experiments with scheduling (`coe.runtime.engine`): it takes the arguments of `Controller`.
    `make_boxes` is for tests, and for another way to boxes than Ray (`coe.cluster.links`).

    With `cluster` the line runs on several boxes (docs/cluster.md): "auto" for the Ray cluster that this machine is a
    part of, or the address of its head node. Each box has the `memory` and the `executors`, or what its own profile
    says, and `inbox` is for all boxes together.

    `allow_kinds` are packages whose kinds the board file may name by a dotted path. Code of no other package runs,
    except kinds that are installed as entry points (docs/experts.md).

    Raises ConfigError, RulesError or StoreError for settings that cannot work, before any thread is started.
    """

    def __init__(  # noqa: PLR0913
        self,
        board: Boards,
        *,
        store: Store | Path | str | None = None,
        memory: int | str | None = None,
        executors: str | None = None,
        threads: int | None = None,
        loaded: float | None = None,
        device_memory: int | str | None = None,
        host_memory: int | str | None = None,
        search_kernels: bool = True,
        strategy: str | Strategy = config.STRATEGY,
        precision: str = config.PRECISION,
        label_floor: float = config.LABEL_FLOOR,
        on_full: OnFull = "block",
        inbox: int = config.INBOX_IMAGES,
        inbox_bytes: int | None = None,
        disk_bandwidth: int | str | None = None,
        max_wait_s: float | None = None,
        parts: Parts | None = None,
        costs: LineCosts | None = None,
        profile: Profile | Path | str | None = AUTO,
        watchers: Sequence[Watcher] = (),
        say: Callable[[str], None] = lambda sentence: None,
        keep_trace: bool = False,
        make_devices: line_devices.MakeDevices = line_devices.make,
        make_decider: MakeDecider = Controller,
        allow_kinds: Sequence[str] = (),
        cluster: str | None = None,
        make_boxes: MakeBoxes | None = None,
    ) -> None:
        _check_types(say=say, watchers=watchers, make_devices=make_devices, make_decider=make_decider)
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
                search_kernels=search_kernels,
                profile=profile,
            ),
            strategy=named_strategy(strategy),
            precision=precision,
            label_floor=label_floor,
            inbox=Inbox(inbox, inbox_bytes, on_full),
            disk_bytes_per_s=None if disk_bandwidth is None else values.bandwidth("disk_bandwidth", disk_bandwidth),
            max_wait_s=max_wait_s,
            parts=() if parts is None else parts,
            costs=costs,
            watchers=watchers,
            say=say,
            keep_trace=keep_trace,
            make_devices=make_devices,
            make_decider=make_decider,
            allowed_kinds=plugins.packages(allow_kinds),
            cluster=cluster,
            make_boxes=make_boxes,
        )
        super().__init__(settings)


def _check_types(*, say: object, watchers: object, make_devices: object, make_decider: object) -> None:
    """Raise ConfigError for an argument of the wrong type."""
    for name, function in (("say", say), ("make_devices", make_devices), ("make_decider", make_decider)):
        if not callable(function):
            raise ConfigError(f"{name}={values.shown(function)}: give a function")
    if not isinstance(watchers, Sequence) or not all(hasattr(watcher, "observe") for watcher in watchers):
        raise ConfigError(f"watchers={values.shown(watchers)}: give a list of objects that `observe`")


def _check_earlier(store: object, costs: object) -> None:
    """Raise ConfigError for a `store` that is no store, or for `costs` that come from no earlier line."""
    if store is not None and not (isinstance(store, Store | Path | str) and str(store)):
        raise ConfigError(f"store={values.shown(store)}: give a Store, or the path of one")
    if costs is not None and not isinstance(costs, LineCosts):
        raise ConfigError(f"costs={values.shown(costs)}: give the `costs` of an earlier line")
