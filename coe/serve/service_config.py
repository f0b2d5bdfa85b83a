"""The settings of a service: one frozen object from a strict YAML file, from whose folder paths count."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from datetime import time
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, Unpack

from pydantic import AfterValidator, BeforeValidator, Field, create_model, field_validator, model_validator

from coe import config
from coe.errors import ConfigError
from coe.helpers import strict_yaml, values
from coe.helpers.strict_model import Name, StrictModel, of_yaml, paths_from
from coe.inspector.asked_boards import Boards
from coe.inspector.line_options import OPTIONS, Door, LineArguments, LineOptions, options_of, taken
from coe.serve.bridge import sinks
from coe.serve.bridge.sinks import Address, MakeError, Sinks
from coe.serve.clock import LocalTime, ShiftStart, ZoneName
from coe.serve.stop_rules import StopRule
from coe.serve.text_checks import Word

DATABASE, PICTURES = "serve.db", "pictures"  # in the folder of a service: the database, the pictures


def _decodable(pixels: int) -> int:
    """Return a number of pixels; raises ValueError if the line decodes no picture that is so large."""
    if pixels > config.image_pixels():
        raise ValueError(
            f"must be at most {config.image_pixels()}, as the line decodes no larger picture; "
            f"${config.MEGAPIXELS_VARIABLE} allows more"
        )
    return pixels


def _bytes(value: Any) -> int:
    try:
        size = config.parse_bytes(value) if isinstance(value, str) else value
    except ConfigError as error:
        raise ValueError(error) from None
    if not values.is_amount(size):
        raise ValueError(values.no_amount(size))
    return int(size)


def _key(value: Any) -> Any:
    """Return what a person wrote as a key, in lower case; YAML reads `1` as a number."""
    text = str(value).lower() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if len(text) != 1 or not text.isprintable() or text.isspace():
        raise ValueError(f"'{value}' is not a key; write one letter, digit or sign, in quotes")
    if text in PAGE_KEYS:
        raise ValueError(f"the pages use '{text}' already; take another key than {', '.join(PAGE_KEYS)}")
    return text


PAGE_KEYS = "lvsrefwnbpt.+-*"  # the keys that every page, and the verify page, have for other things than answers
AnswerKey = Annotated[str, BeforeValidator(_key)]
Size = Annotated[int, BeforeValidator(_bytes)]
Seconds = Annotated[float, Field(gt=0, le=7 * 86400, allow_inf_nan=False)]
Wait = Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)]
Days = Annotated[int, Field(ge=0, le=36500)]


class Listen(StrictModel):
    """Where the gate listens; `certificate` and `private_key` are PEM files for TLS."""

    host: Address = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    certificate: Path | None = None
    private_key: Path | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine reach it."""
        return ipaddress.ip_address(self.host).is_loopback

    @property
    def has_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.certificate is not None and self.private_key is not None


class LineSection(StrictModel):
    """What the section `line` has beside the options of a line that `LineSettings` adds."""

    store: Path = Path(config.STORE_FOLDER)
    cluster: str | None = None
    hangs_after_s: Annotated[float, Field(ge=60, le=86400, allow_inf_nan=False)] = 120.0
    """A batch that runs for so long, and for 20 times its forecast, hangs; then the worker starts again."""

    def options(self, board: Boards, **more: Unpack[LineArguments]) -> LineOptions:
        """Return the options of a line for these boards, with more that no file has; raises ConfigError."""
        said = taken({name: getattr(self, option.key or name) for name, option in options_of(Door.SERVE).items()})
        return LineOptions.of(board, **said).but(**more)


if TYPE_CHECKING:
    LineSettings = LineSection
else:
    LineSettings = create_model(
        "LineSettings",
        __base__=LineSection,
        __doc__="The options of the line, as those of `coe-inspect`; None stands for the default.",
        **{
            option.key or name: (Any if option.typed is str else option.typed | None, None)
            for name, option in options_of(Door.SERVE).items()
            if name not in LineSection.model_fields
        },
    )


class Limits(StrictModel):
    """What the gate refuses: larger bodies, larger pictures, and boards while too many wait."""

    body: Size = 256_000_000
    pixels: Annotated[int, Field(ge=64), AfterValidator(_decodable)] = 89_000_000
    waiting_boards: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    views: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    body_s: Seconds = 120.0  # the longest time in which a client may send a body
    free_share: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.05  # below it, a fault warns
    child_memory: Size = 16 * 2**30
    child_hours: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 12.0
    """What a trial, or a command of the page /teach, may take with all that it starts; then it is ended."""


class Retention(StrictModel):
    """How many days pictures are kept after the decision, by the board's verdict, once all its calls are answered."""

    ok_days: Days = 7
    review_days: Days = 90
    ng_days: Days = 365
    orphan_days: Days = 1
    free_share: Annotated[float, Field(ge=0, le=0.9, allow_inf_nan=False)] = 0.0  # below it, the oldest go early
    archive: Path | None = None  # a folder, with a file `coe-archive`, into which pictures are copied before they go


class AnswerKeys(StrictModel):
    """The key of each answer at the verify page."""

    good: AnswerKey = "1"
    defect: AnswerKey = "2"
    accept: AnswerKey = "3"
    later: AnswerKey = "0"

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        keys = [self.good, self.defect, self.accept, self.later]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise ValueError(f"two answers have the key '{twice[0]}'")
        return self


class VerifySection(StrictModel):
    """How people answer calls at the verify page."""

    answers_hold_s: Annotated[float, Field(ge=0, le=30, allow_inf_nan=False)] = 5.0  # until an answer is sent
    single_keys: bool = True  # whether one key is an answer; without them people press the buttons
    keys: AnswerKeys = AnswerKeys()


class TrialSection(StrictModel):
    """Trials of recipes on stored boards; `memory` is what one takes beside the line."""

    memory: Size = 2**30


class FolderSection(StrictModel):
    """A folder `path` whose pictures are boards of the active version of a `recipe`; what is handed in goes to `done`.

    A picture counts once it stood still for `settle_s`; a board that is not known to be complete is handed in once
    nothing of it came for `quiet_s`.
    """

    path: Path
    done: Path
    recipe: Word
    settle_s: Wait = 2.0
    quiet_s: Wait = 30.0

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.done.absolute().is_relative_to(self.path.absolute()):
            raise ValueError("`done` lies in `path`, so what is done would be submitted again; choose another folder")
        return self


def _each_alone(folders: dict[str, FolderSection]) -> dict[str, FolderSection]:
    for (name, one), (other, outer) in permutations(folders.items(), 2):
        if one.path.absolute().is_relative_to(outer.path.absolute()):
            raise ValueError(f"'{name}' lies in the folder of '{other}', so its pictures would be submitted twice")
    return folders


Folders = Annotated[dict[Name, FolderSection], AfterValidator(_each_alone)]


class ServeConfig(StrictModel):
    """A service. `station` names it in messages; `data` is the folder of its database and pictures."""

    station: Name
    data: Path = Path("data")
    database: str | None = None
    listen: Listen = Listen()
    line: LineSettings = LineSettings()
    limits: Limits = Limits()
    retention: Retention = Retention()
    verify: VerifySection = VerifySection()
    trials: TrialSection = TrialSection()
    folders: Folders = Field(default_factory=dict)
    stop_rules: dict[Name, StopRule] = Field(default_factory=dict)
    sinks: Sinks = Sinks()
    zone: ZoneName = "UTC"  # the time zone of the place, which pages and reports show
    shifts: dict[Name, ShiftStart] = Field(default_factory=dict)  # when each shift begins there
    drain_s: Seconds = 30.0  # how long begun boards may take to finish after SIGTERM; the rest stay queued

    @field_validator("shifts")
    @classmethod
    def _begin_apart(cls, shifts: dict[str, time]) -> dict[str, time]:
        if len(set(shifts.values())) < len(shifts):
            raise ValueError("two shifts begin at the same time; a shift ends where the next one begins")
        return shifts

    def __reduce__(self) -> tuple[Any, ...]:
        # The model of these sinks was made for this file, and no other process knows it by its name.
        return _restored, (self.model_dump(by_alias=True),)

    @property
    def local(self) -> LocalTime:
        """The time of the place, and its shifts."""
        return LocalTime(self.zone, self.shifts)

    @property
    def pictures(self) -> Path:
        """The folder of pictures."""
        return self.data / PICTURES

    @property
    def database_url(self) -> str:
        """The URL of the database; the embedded database if none is given."""
        file = str(self.data / DATABASE).replace("%", "%25").replace("?", "%3F")  # they have a meaning in URLs
        return self.database or f"sqlite:///{file}"


def model_of(data: Any, error: MakeError = lambda _, text: ConfigError(text)) -> type[ServeConfig]:
    """Return the model of a config with these sinks; `error` makes the error of a kind of sinks that cannot be used."""
    section = data.get("sinks") if isinstance(data, Mapping) else None
    if section is None:  # so that a config without sinks is of a class that other processes find
        return ServeConfig
    kinds = sinks.model_of(section, error)
    return create_model("ServeConfig", __base__=ServeConfig, sinks=(kinds, kinds()))


def _restored(data: dict[str, Any]) -> ServeConfig:
    return model_of(data).model_validate(data)


def load(path: Path) -> ServeConfig:
    """Read a config file; raises RulesError with file, line and suggestion."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give the config file in it, as {path / 'serve.yaml'}")
    document = strict_yaml.read(path, "config file", "station")
    read = of_yaml(document, model_of(document.data, document.error))
    home = path.absolute().parent
    listen = read.listen
    if (listen.certificate is None) != (listen.private_key is None):
        raise document.error(("listen",), "TLS needs both, `certificate` and `private_key`")
    if not listen.is_loopback and not listen.has_tls:
        raise document.error(
            ("listen", "host"),
            f"{listen.host} is reached from other machines, which needs TLS; give `certificate` and `private_key`, or "
            "listen at 127.0.0.1 and let a proxy on this machine do it",
        )
    try:
        read.line.options("any board")
    except ConfigError as error:
        key = OPTIONS[error.option].key or error.option if error.option else ""
        raise document.error(("line", key) if key else ("line",), str(error)) from None
    return paths_from(read, home)
