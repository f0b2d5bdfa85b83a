"""All options of a line, in one frozen object. Law: options are read and checked once, at the edge.

The edges are the keyword arguments of `Inspector`, the options of a command, and a benchmark. All other code gets the
whole object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coe import config, values
from coe.errors import ConfigError
from coe.inspector.asked_boards import AskedBoard, Boards, Parts, asked_boards
from coe.inspector.precision import check_precision
from coe.inspector.profile import Profile
from coe.scheduler.controller import Controller
from coe.scheduler.strategies import Strategy, check_hurry, check_parts
from coe.scheduler.strategies import strategy as named_strategy
from coe.store.store import Store

if TYPE_CHECKING:
    from coe.inspector.line_costs import LineCosts
    from coe.inspector.line_devices import MakeDevices
    from coe.results.metrics import Watcher
    from coe.runtime.engine import MakeDecider

AUTO = "auto"
"""Use the profile at the place where `coe-profile` puts it, if there is one that fits."""
MakeBoxes = Callable[..., Any]
"""Finds the boxes of a cluster, and ways to them: `coe.cluster.links.MakeBoxes`."""
OnFull = Literal["block", "raise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSettings:
    """A user's options for memory, executors, threads and a GPU; None means: from this machine's profile, or a default.

    `executors` are by device, `threads` are per executor, `loaded` is how many experts of mean size the memory holds.
    `profile` is a profile, the path of a profile, "auto" or None.
    """

    memory_bytes: int | None = None
    executors: dict[str, int] | None = None
    threads: int | None = None
    loaded: float | None = None
    device_bytes: int | None = None
    host_bytes: int | None = None
    search_kernels: bool = True
    profile: Profile | Path | str | None = AUTO

    @classmethod
    def parsed(
        cls,
        *,
        memory: int | str | None = None,
        executors: str | None = None,
        threads: int | None = None,
        loaded: float | None = None,
        device_memory: int | str | None = None,
        host_memory: int | str | None = None,
        search_kernels: bool = True,
        profile: Profile | Path | str | None = AUTO,
    ) -> AskedSettings:
        """Parse a user's options: memories in bytes or as "1.5GiB", executors as "cpu=2"; raises ConfigError."""
        if profile is not None and not isinstance(profile, Profile | Path | str):
            raise ConfigError(
                f"profile={values.shown(profile)}: give a profile, the path of a profile, '{AUTO}' or None"
            )
        return cls(
            memory_bytes=None if memory is None else values.amount("memory", memory),
            executors=None if executors is None else config.parse_executors(values.text("executors", executors)),
            threads=None if threads is None else values.whole("threads", threads, least=1, most=config.MAX_THREADS),
            loaded=None
            if loaded is None
            else values.real("loaded", loaded, least=config.MIN_LOADED, most=config.MAX_LOADED),
            device_bytes=None if device_memory is None else values.amount("device_memory", device_memory),
            host_bytes=None if host_memory is None else values.amount("host_memory", host_memory),
            search_kernels=values.flag("search_kernels", search_kernels),
            profile=profile,
        )


@dataclass(frozen=True, slots=True)
class Inbox:
    """How many images, and how many bytes of images, may be under way, and what `submit` does at that limit.

    Without `limit_bytes`, the images have a part of the memory budget; `limit_bytes` is beside that budget. Raises
    ConfigError for limits out of range.
    """

    images: int = config.INBOX_IMAGES
    limit_bytes: int | None = None
    on_full: OnFull = "block"

    def __post_init__(self) -> None:
        if self.on_full not in ("block", "raise"):
            raise ConfigError(f"on_full={values.shown(self.on_full)} is neither 'block' nor 'raise'")
        values.whole("inbox", self.images, least=1, most=config.MAX_INBOX)
        if self.limit_bytes is not None:
            values.whole("inbox_bytes", self.limit_bytes, least=1, most=config.MAX_BYTES * 4)


@dataclass(frozen=True, kw_only=True)
class LineConfig:
    """The options that a line is opened with; `coe.inspector.inspector.Inspector` says what each field means.

    `free_cores` are shared among executors of a CPU that have no number of threads; None means those that are free when
    the line opens. `board` and `parts` are as the user gave them; `boards` is what they say. `make_devices` is None for
    our devices. `cluster` names several boxes, which `make_boxes` finds (None: with Ray); None
    means this machine alone.

    Raises ConfigError for an unknown precision, for options that the strategy or several boxes would ignore, and for a
    strategy that chooses the precision at each load.
    """

    board: Boards
    store: Store = field(default_factory=Store)
    asked: AskedSettings = field(default_factory=AskedSettings)
    strategy: Strategy = field(default_factory=lambda: named_strategy(config.STRATEGY))
    precision: str = config.PRECISION
    label_floor: float = config.LABEL_FLOOR
    inbox: Inbox = field(default_factory=Inbox)
    disk_bytes_per_s: int | None = None
    max_wait_s: float | None = None
    parts: Parts = ()
    free_cores: int | None = None
    costs: LineCosts | None = None
    watchers: Sequence[Watcher] = ()
    say: Callable[[str], None] = lambda sentence: None
    keep_trace: bool = False
    make_devices: MakeDevices | None = None
    make_decider: MakeDecider = Controller
    allowed_kinds: tuple[str, ...] = ()
    cluster: str | None = None
    make_boxes: MakeBoxes | None = None

    @cached_property
    def boards(self) -> tuple[AskedBoard, ...]:
        """The boards, each with its mix and its parts list."""
        return asked_boards(self.board, self.parts)

    @property
    def only_board(self) -> str | Path:
        """The board of a line that inspects one; raises ConfigError if there are several."""
        if len(self.boards) > 1:
            raise ConfigError(f"{len(self.boards)} boards are too many here; name one")
        return self.boards[0].source

    def __post_init__(self) -> None:
        check_precision(self.precision, self.label_floor)
        config.image_pixels(), config.read_timeout_s(), config.black_ends()  # limits of the environment that are none
        if self.cluster is not None:
            self._check_for_cluster()
        check_hurry(self.strategy, max_wait_s=self.max_wait_s)
        check_parts(self.strategy, {str(board.source): board.parts for board in self.boards})
        if self.strategy.varies:
            raise ConfigError(
                f"strategy '{self.strategy.name}' chooses an expert's precision at each load, so findings would depend "
                "on the order of loads, and a line refuses it: compare it with `coe-bench sim`, or give the line "
                "another strategy, and --precision mixed for a choice that stays"
            )

    def _check_for_cluster(self) -> None:
        """Raise ConfigError for options that several boxes would ignore."""
        values.text("cluster", self.cluster)
        if not self.cluster:
            raise ConfigError("cluster='' names no cluster; give 'auto', or the address of the head node as host:port")
        single = {
            "parts": any(board.parts for board in self.boards),
            "keep_trace": self.keep_trace,
            "make_decider": self.make_decider is not Controller,
        }
        if given := [name for name, is_given in single.items() if is_given]:
            raise ConfigError(f"{', '.join(given)}: this is for one box, and several would ignore it; leave it out")
