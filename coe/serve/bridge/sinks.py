"""What a sink is: its settings in `serve.yaml`, the connection that they make, and the messages that it is told.

A kind of sink is a subclass of `SinkSettings`, found by an entry point of the group `coe.sinks` or by a dotted path in
`serve.yaml`; a format is found in the group `coe.message_formats`. docs/integration.md shows a sink of one's own.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, cast

from pydantic import AfterValidator, Field

from coe.errors import CoeError, ConfigError, did_you_mean
from coe.helpers import plugins
from coe.helpers.strict_model import StrictModel, parsed_json

if TYPE_CHECKING:
    from coe.serve.database.tables import Board, Event, Fault, Recipe
    from coe.serve.enums import Intake, LineState

FORMATS = "coe.message_formats"


class SinkFailed(CoeError):
    """A sink could not be told, or its connection is lost; the message is a sentence for people."""


@dataclass(frozen=True, slots=True)
class EventEnvelope:
    """An event with what the database knows of its board; `recipe` and `board` are None if it concerns no board."""

    event: Event
    recipe: Recipe | None = None
    board: Board | None = None


@dataclass(frozen=True, slots=True)
class StationStatus:
    """What the station does now: its line, its intake and its open faults."""

    line: LineState
    intake: Intake
    faults: Sequence[Fault]
    at_us: int


@dataclass(frozen=True, slots=True)
class Message:
    """A message: `id` is the same at each delivery, `name` says what `body`, which is JSON, is about."""

    id: str
    name: str
    at_us: int
    body: Mapping[str, Any]

    @property
    def encoded(self) -> bytes:
        """The body as it is sent."""
        return json.dumps(self.body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


class Sign(StrEnum):
    """What a station says of itself between events."""

    CONNECTED = "connected"
    """It has a connection to the sink, perhaps again."""
    ALIVE = "alive"
    ENDING = "ending"
    """It ends the connection in order."""


@dataclass(frozen=True, slots=True)
class SinkRequest:
    """What another machine asks of the station over a sink; `reply_to` is where it waits for the answer."""

    body: Mapping[str, Any]
    reply_to: str = ""
    id: str = ""


def requests_in(body: bytes | bytearray | str, reply_to: str = "", id: str = "") -> Iterator[SinkRequest]:
    """Yield the requests in a message, which is an envelope or a list of them; what cannot be read is logged."""
    try:
        content = parsed_json(body)
    except (ValueError, RecursionError) as error:
        logging.getLogger(__name__).warning("a request cannot be read: %s", error)
        return
    for one in content if isinstance(content, list) else [content]:
        if isinstance(one, dict):
            yield SinkRequest(one, reply_to, str(id or one.get("RequestID") or ""))


@dataclass(frozen=True, slots=True)
class Origin:
    """Who tells a sink: the `station`, and its `handle` in messages of IPC-CFX.

    `key` is the sink's place in the config, for messages, as `sinks.mqtt.plant`; `sink` is the last word of it.
    `request_uri` and `request_address` are where others may ask the station, empty if they cannot.
    """

    station: str
    handle: str = ""
    key: str = ""
    request_uri: str = ""
    request_address: str = ""

    @property
    def sink(self) -> str:
        """The name of the sink."""
        return self.key.rpartition(".")[2]


class Format(Protocol):
    """A format: how events, signs and answers become messages. It is made with an `Origin` and `heartbeat_s`."""

    def messages(self, envelope: EventEnvelope) -> list[Message]:
        """Return the messages of an event, in order, the same at each delivery; none for events without a message."""

    def sign(self, sign: Sign, status: StationStatus) -> Message | None:
        """Return what the station says of itself, as a sign of life; None, as by default, without such a message."""
        return None

    def answer(self, request: Mapping[str, Any], at_us: int) -> Message | None:
        """Return the answer to a request; None if it is none, or not for this station, as by default."""
        return None


class SinkConnection(ABC):
    """A connection to a sink, used by one thread; after a failure it is closed, and another is made.

    Every method but `close` may raise SinkFailed.
    """

    def connect(self) -> None:  # noqa: B027
        """Connect; by default each message connects itself."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message, and return once the other machine has acknowledged it."""

    def show(self, status: StationStatus) -> None:  # noqa: B027
        """Show what the station does now, where a sink has a place for that."""

    def look(self) -> Sequence[SinkRequest]:
        """Find out whether the connection stands, keep it alive, return what came; called several times a second."""
        return ()

    def answer(self, request: SinkRequest, message: Message) -> None:
        """Send the answer to a request that `look` returned; by default as any message."""
        self.send(message)

    def close(self) -> None:  # noqa: B027
        """End the connection, in order if it stands; never raises SinkFailed."""


@dataclass(frozen=True, slots=True)
class Package:
    """What a kind of sink needs: a module, the package that has it, and the extra of CoE that installs the package."""

    module: str
    name: str
    extra: str


class SinkSection(Protocol):
    """What a sink may know of the section `sinks`: the `hosts` that the service may reach."""

    hosts: tuple[str, ...]


class SinkSettings(StrictModel, ABC):
    """The keys of a sink in `serve.yaml`: fields are checked as all of the file is, and paths count from its folder."""

    needs: ClassVar[Package | None] = None
    is_single: ClassVar[bool] = False
    """Whether a station has one sink of this kind: its keys stand under the kind itself, which is its name."""

    heartbeat_s: Annotated[float, Field(ge=1, le=300, allow_inf_nan=False)] = 60.0
    """How often a sign of life is sent, by formats that have one; IPC-CFX asks for one in 5 minutes at least."""

    @abstractmethod
    def connection(self, origin: Origin) -> SinkConnection:
        """Make the connection, which is not connected yet; raises ConfigError for an unreadable secret or file."""

    @property
    def format_name(self) -> str:
        """The format of its messages, an entry point or a dotted path."""
        return "events"

    def request_place(self, station: str) -> tuple[str, str]:
        """Return where others may ask the station over this sink: a URI and an address there; empty if they cannot."""
        return "", ""

    def message_format(self, origin: Origin) -> Format:
        """Make the format of its messages; raises ConfigError."""
        make = plugins.load(self.format_name, None, group=FORMATS, noun="format of messages")
        made = make(origin, self.heartbeat_s)  # type: ignore[operator]
        if lacking := [name for name in ("messages", "sign", "answer") if not hasattr(made, name)]:
            raise ConfigError(
                f"format of messages '{self.format_name}' has no {', '.join(lacking)}; derive it from {__name__}:Format"
            )
        return cast("Format", made)

    def check(self, name: str, section: SinkSection) -> None:
        """Raise ValueError if the sink of this name does not fit the rest of the section `sinks`."""


def _known_format(name: str) -> str:
    if ":" not in name and name not in (known := plugins.names(FORMATS)):
        raise ValueError(f"there is no format '{name}'{did_you_mean(name, known)} (or give package.module:NAME)")
    return name


class ChoosesFormat(SinkSettings):
    """A sink whose messages have the format that the config names: `events`, `cfx`, or one of the user."""

    format: Annotated[str, AfterValidator(_known_format)] = "events"

    @property
    def format_name(self) -> str:
        return self.format


@dataclass(frozen=True, slots=True)
class Sink:
    """A connection, and the format of its messages; it gets a sign of life every `heartbeat_s` seconds."""

    connection: SinkConnection
    format: Format
    heartbeat_s: float = 60.0
