"""All options of a line, each once: they are read and checked here, and all other code gets the whole object.

The arguments of `Inspector`, the options of the commands, the section `line` of `serve.yaml` and the table in
docs/api.md are made from these fields, or checked against them. `LineArguments` tells them to type checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypedDict, Unpack, cast

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationInfo, field_validator, model_validator

from coe import config
from coe.errors import ConfigError
from coe.helpers import plugins, values
from coe.inspector.asked_boards import AskedBoard, Boards, Parts, asked_boards
from coe.inspector.experiment import NONE, Experiment
from coe.inspector.precision import check_precision
from coe.inspector.profile import Profile
from coe.scheduler.strategies import Strategy, check_hurry, check_parts
from coe.scheduler.strategies import strategy as named_strategy
from coe.store.store_reader import StoreReader

if TYPE_CHECKING:
    from coe.results.metrics import Watcher


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


Check = Callable[[str, Any], Any]
"""Takes the name of an option and a user's value, and returns the value that a line works with; raises ConfigError."""


class Door(StrEnum):
    """Where users set options, beside `Inspector`, which takes all of them."""

    INSPECT = "coe-inspect"
    RUN = "coe-bench run"
    PROFILE = "coe-profile"
    SERVE = "serve.yaml"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a line: the sentence that explains it, and the doors that show it.

    The help of a command that opens a line leaves it out if it is `rare`; `--help-all` shows it. `default` says in
    words what the value of the default does not say; `defaults` are those of doors that have their own, each with such
    words.

    In a file it is called `key`, and on a command line `flag`, if not by its name. There it has a type (`typed`), a
    number from `least` to `most`, and `metavar` as its form. `read` turns a text from there, or from a file, into what
    `check` takes. Without `check`, type and bounds are checked.
    """

    help: str
    doors: frozenset[Door] = frozenset()
    default: str = ""
    rare: bool = False
    defaults: Mapping[Door, tuple[Any, str]] = field(default_factory=dict)
    flag: str = ""
    key: str = ""
    typed: Any = str
    least: float = 0
    most: float = 0
    metavar: str | None = None
    read: Callable[[str], Any] = str
    check: Check | None = None

    def taken(self, name: str, value: Any) -> Any:
        """Return what a command line or a file says, for `checked`; raises ConfigError whose `option` is the name."""
        try:
            return self.read(value) if isinstance(value, str) else value
        except ConfigError as error:
            error.option = name
            raise

    def checked(self, name: str, value: Any) -> Any:
        """Return a user's value as a line works with it; raises ConfigError whose `option` is the name."""
        try:
            if self.check is not None:
                return self.check(name, value)
            if self.typed is bool:
                return values.flag(name, value)
            if self.typed is int:
                return values.whole(name, value, least=int(self.least), most=int(self.most))
            if self.typed is float:
                return values.real(name, value, least=self.least, most=self.most)
            return values.text(name, value)
        except ConfigError as error:
            error.option = name
            raise


def one_of(*words: str) -> Check:
    """Return a check of words."""

    def check(name: str, value: Any) -> Any:
        if value not in words or isinstance(value, bool):
            raise ConfigError(f"{name}={values.shown(value)} is neither {' nor '.join(map(repr, words))}")
        return value

    return check


def check_function(name: str, value: Any) -> Any:
    """Check a function."""
    if not callable(value):
        raise ConfigError(f"{name}={values.shown(value)}: give a function")
    return value


def instance_of(*types: type, wanted: str) -> Check:
    """Return a check of objects of these types, which the sentence calls `wanted`."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, types) or str(value) == "":
            raise ConfigError(f"{name}={values.shown(value)}: give {wanted}")
        return value

    return check


def check_watchers(name: str, value: Any) -> Any:
    """Check a list of objects that watch a line (`coe.results.metrics.Watcher`)."""
    if not isinstance(value, Sequence) or not all(hasattr(watcher, "observe") for watcher in value):
        raise ConfigError(f"{name}={values.shown(value)}: give a list of objects that `observe`")
    return value


def check_executors(name: str, value: Any) -> str:
    """Check executors by device, as in "cuda=2,cpu=1"; they stay a text."""
    config.parse_executors(values.text(name, value))
    return str(value)


def check_cluster(name: str, value: Any) -> str:
    """Check the name of a cluster."""
    if not values.text(name, value):
        raise ConfigError(f"{name}='' names no cluster; give 'auto', or the address of the head node as host:port")
    return str(value)


AUTO = "auto"
"""Use the profile at the place where `coe-profile` puts it, if there is one that fits."""
ALL_DOORS = frozenset(Door)
INSPECTING = frozenset({Door.INSPECT, Door.SERVE})
_A_PROFILE = instance_of(Profile, Path, str, type(None), wanted=f"a profile, the path of a profile, '{AUTO}' or None")


__all__ = ["AUTO", "OPTIONS", "LineOptions", "options_of", "say_nothing", "taken"]
_STORE = instance_of(StoreReader, Path, str, wanted="a Store, or the path of one")


def say_nothing(sentence: str) -> None:
    """Say nothing, for lines that nobody listens to."""


def _store(name: str, value: Any) -> StoreReader:
    return value if isinstance(value, StoreReader) else StoreReader(None if value is None else _STORE(name, value))


class LineOptions(BaseModel):
    """The options that a line is opened with, as it works with them: amounts in bytes, times in seconds.

    Make them with `of`. Raises ConfigError for a value that cannot be, and for options that the strategy or several
    boxes would ignore; its `option` is the name of the option, if it is about one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    board: Annotated[
        Boards,
        Option(
            "Board: a name, or the path of its file. Several: a list, or a mapping to relative frequencies.",
            check=lambda name, value: value,
        ),
    ]
    store: Annotated[
        StoreReader,
        Option(
            "Folder of the experts.",
            ALL_DOORS,
            f"${config.STORE_VARIABLE}, or ./{config.STORE_FOLDER}",
            defaults={Door.SERVE: (Path(config.STORE_FOLDER), f"{config.STORE_FOLDER} beside the file")},
            typed=Path,
            check=_store,
        ),
    ] = Field(default_factory=StoreReader)
    memory: Annotated[
        int | None,
        Option(
            "Memory for experts, batches and accepted images, e.g. 1.5GiB.",
            ALL_DOORS,
            f"that of the profile, otherwise {config.MEMORY}",
            defaults={
                Door.RUN: (None, "enough for a quarter of the experts and the activations"),
                Door.PROFILE: (config.MEMORY, ""),
            },
            check=values.amount,
        ),
    ] = None
    executors: Annotated[
        str | None,
        Option(
            "Executors by device, e.g. cpu=2 or cuda=2,cpu=1.",
            INSPECTING | {Door.RUN},
            f"those of the profile, otherwise {config.EXECUTORS}",
            defaults={Door.RUN: (config.EXECUTORS, "")},
            check=check_executors,
        ),
    ] = None
    threads: Annotated[
        int | None,
        Option(
            "Threads of each executor.",
            INSPECTING,
            "those of the profile, otherwise an equal share of the free cores",
            rare=True,
            typed=int,
            least=1,
            most=config.MAX_THREADS,
        ),
    ] = None
    device_memory: Annotated[
        int | None,
        Option(
            "GPU memory for experts and batches, e.g. 8GiB.", ALL_DOORS, "most of the free memory", check=values.amount
        ),
    ] = None
    host_memory: Annotated[
        int | None,
        Option(
            "With a GPU: host memory for copies of experts, e.g. 4GiB.",
            ALL_DOORS,
            config.HOST_MEMORY,
            rare=True,
            check=values.amount,
        ),
    ] = None
    search_kernels: Annotated[
        bool,
        Option(
            "With a GPU: search for the fastest kernels before the first image. Without it, a line opens sooner.",
            INSPECTING | {Door.RUN},
            rare=True,
            typed=bool,
        ),
    ] = True
    profile: Annotated[
        Profile | Path | str | None,
        Option(
            "File that coe-profile wrote, or none.",
            INSPECTING,
            "the file that coe-profile writes by default",
            rare=True,
            metavar="FILE|none",
            check=lambda name, value: None if value == "none" else _A_PROFILE(name, value),
        ),
    ] = AUTO
    disk_bandwidth: Annotated[
        int | None,
        Option(
            "Load no faster than a disk of this bandwidth, e.g. 530MB/s, even if files are cached.",
            frozenset({Door.RUN}),
            check=values.bandwidth,
        ),
    ] = None
    cluster: Annotated[
        str | None,
        Option(
            "Inspect on all machines of this machine's Ray cluster: auto, or the address of its head node.",
            INSPECTING,
            "this machine alone",
            rare=True,
            metavar="auto|HOST:PORT",
            check=check_cluster,
        ),
    ] = None
    strategy: Annotated[
        Strategy,
        Option(
            "How experts are scheduled and evicted: a name, e.g. coserve, or package.module:NAME.",
            INSPECTING | {Door.PROFILE},
            config.STRATEGY,
            rare=True,
            check=lambda name, value: named_strategy(value),
        ),
    ] = Field(default_factory=lambda: named_strategy(config.STRATEGY))
    precision: Annotated[
        str,
        Option(
            "fp32, or mixed (the smallest variant of each expert that agrees with fp32).",
            INSPECTING,
            check=check_precision,
        ),
    ] = config.PRECISION
    max_wait_s: Annotated[
        float | None,
        Option(
            "Time that an image should take at most (as text: 60s). After half of it, late-binding prioritises the "
            "image.",
            INSPECTING | {Door.RUN},
            f"{config.MAX_WAIT_S:g}s",
            rare=True,
            flag="--max-wait",
            key="max_wait",
            read=config.parse_seconds,
            check=lambda name, value: values.seconds(name, value, meaning="an image can wait at most"),
        ),
    ] = None
    parts: Annotated[
        Parts,
        Option(
            "Parts of the board in camera order: a parts.csv or a list of PlacedPart; with several boards, a mapping "
            "from board to list.",
            default="learned from earlier boards",
            check=lambda name, value: () if value is None else value,
        ),
    ] = ()
    inbox: Annotated[
        int,
        Option("Maximum number of images under way, on all boxes together.", typed=int, least=1, most=config.MAX_INBOX),
    ] = config.INBOX_IMAGES
    inbox_bytes: Annotated[
        int | None,
        Option(
            "Maximum bytes of images under way; if given, they are in addition to `memory`.",
            default="a part of the memory",
            typed=int,
            least=1,
            most=config.MAX_BYTES * 4,
        ),
    ] = None
    on_full: Annotated[
        OnFull,
        Option(
            "When the inbox is full, submit waits (block) or raises LineFull (raise).", check=one_of("block", "raise")
        ),
    ] = "block"
    allow_kinds: Annotated[
        tuple[str, ...],
        Option(
            "Allow the board to use kinds of this Python package; its code will run. For commands, it may lie in the "
            "working folder. Repeatable.",
            ALL_DOORS,
            rare=True,
            flag="--allow-kind",
            typed=list[str],
            metavar="PACKAGE",
            check=lambda name, value: plugins.packages(value),
        ),
    ] = ()
    watchers: Annotated[
        Sequence[Any],
        Option("Objects that see events and commands as they happen, on the control thread.", check=check_watchers),
    ] = ()
    say: Annotated[
        Callable[[str], None], Option("Function called with a sentence before slow work.", check=check_function)
    ] = say_nothing
    experiment: Annotated[
        InstanceOf[Experiment],
        Option(
            "Changes to a line for experiments and tests.",
            default="nothing",
            check=instance_of(Experiment, wanted="a coe.testing.Experiment"),
        ),
    ] = NONE

    @classmethod
    def of(cls, board: Boards, **options: Unpack[LineArguments]) -> Self:
        """Return the options that a user gives; raises ConfigError."""
        return cls.model_validate({"board": board, **options})

    def but(self, **changes: Unpack[LineArguments]) -> Self:
        """Return these options with some changed; raises ConfigError."""
        return self.model_validate({name: getattr(self, name) for name in OPTIONS} | changes)

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

    @field_validator("*", mode="plain")
    @classmethod
    def _check_value(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        if value is None and cls.model_fields[name].default is None:
            return None
        return OPTIONS[name].checked(name, value)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        config.image_pixels(), config.read_timeout_s(), config.black_ends()  # limits of the environment that are none
        if self.cluster is not None:
            alone = {
                "parts": any(board.parts for board in self.boards),
                "experiment": self.experiment.keep_trace or self.experiment.make_decider is not None,
            }
            if given := [name for name, is_given in alone.items() if is_given]:
                raise ConfigError(f"{', '.join(given)}: several boxes would ignore this option; leave it out")
        check_hurry(self.strategy, max_wait_s=self.max_wait_s)
        check_parts(self.strategy, {str(board.source): board.parts for board in self.boards})
        return self


OPTIONS: Mapping[str, Option] = {
    name: next(fact for fact in field.metadata if isinstance(fact, Option))
    for name, field in LineOptions.model_fields.items()
}
"""What is said of each option, by its name in Python."""


def options_of(door: Door) -> dict[str, Option]:
    """Return the options that a door shows, by their names in Python."""
    return {name: option for name, option in OPTIONS.items() if door in option.doors}


def taken(given: Mapping[str, Any]) -> LineArguments:
    """Return options that a command line or a file gives, as Python does; None stands for the default.

    Raises ConfigError.
    """
    said = {name: OPTIONS[name].taken(name, value) for name, value in given.items() if value is not None}
    return cast(LineArguments, said)
