"""What a sink is: its settings in `serve.yaml`, the connection that they make, and the messages that it is told.

A kind of sink is a subclass of `SinkSettings`, found by an entry point of the group `coe.sinks` or by a dotted path in
`serve.yaml`; a format is found in the group `coe.message_formats`. docs/integration.md shows a sink of one's own.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import ssl
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, cast

from pydantic import AfterValidator, Field, create_model, model_validator

from coe.errors import CoeError, ConfigError, did_you_mean
from coe.helpers import plugins, regular
from coe.helpers.strict_model import Name, StrictModel, parsed_json
from coe.helpers.strict_yaml import KeyPath
from coe.serve.clock import iso
from coe.serve.credentials import present

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

    CONNECTED = "connected"  # it has a connection to the sink, perhaps again
    ALIVE = "alive"
    ENDING = "ending"  # it ends the connection in order


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


class EventFormat(Format):
    """Events in the service's own words, the same at each delivery; they name a recipe by name and version."""

    def __init__(self, origin: Origin, heartbeat_s: float = 60.0) -> None:
        self._station = origin.station

    def messages(self, envelope: EventEnvelope) -> list[Message]:
        event, recipe = envelope.event, envelope.recipe
        content = {
            "id": event.uuid,
            "number": event.id,
            "kind": event.kind.value,
            "at": iso(event.happened_us),
            "station": self._station,
            "body": {**event.body, **({"recipe": recipe.name, "version": recipe.version} if recipe else {})},
        }
        return [Message(event.uuid, event.kind.value, event.happened_us, content)]


class SinkConnection(ABC):
    """A connection to a sink, used by one thread, made again after a failure; all but `close` may raise SinkFailed."""

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


class SinkSettings(StrictModel, ABC):
    """The keys of a sink in `serve.yaml`: fields are checked as all of the file is, and paths count from its folder."""

    needs: ClassVar[Package | None] = None
    is_single: ClassVar[bool] = False  # one sink of this kind: its keys stand under the kind, which is its name

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

    def check(self, name: str, section: Sinks) -> None:
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


# What settings of sinks have in common: hosts, secrets, certificates, brokers. A setting never holds a secret.
MAX_SECRET_BYTES = 4096


def _host(host: str) -> str:
    if not host or any(letter.isspace() or letter in "/@?#" for letter in host):
        raise ValueError(f"'{host}' is not a host; give a name or an address alone, and the port as `port`")
    return host.lower()


def _address(host: str) -> str:
    if host == "localhost":
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        raise ValueError(f"'{host}' is not an address of this machine; give 127.0.0.1, or 0.0.0.0 for all") from None


Address = Annotated[str, AfterValidator(_address)]  # where something of ours listens
Host = Annotated[str, Field(max_length=253), AfterValidator(_host)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Secret(StrictModel):
    """Where a password or key lies: in a file, whose last line break does not count, or in an environment variable."""

    file: Path | None = None
    environment: str | None = None

    @model_validator(mode="after")
    def _is_somewhere(self) -> Secret:
        if (self.file is None) == (self.environment is None):
            raise ValueError("state where the secret is: either `file`, or the name of a variable as `environment`")
        return self

    def read(self, what: str) -> str:
        """Return the secret; `what` names it for messages. Raises ConfigError that does not show it."""
        if self.environment is not None:
            secret = os.environ.get(self.environment, "")
            if not secret:
                raise ConfigError(f"{what}: the service runs without the environment variable {self.environment}")
            return secret
        assert self.file is not None
        try:
            with regular.opened(self.file) as number:
                secret = os.read(number, MAX_SECRET_BYTES).decode().removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"{what}: {self.file} cannot be read: {why}") from None
        if not secret:
            raise ConfigError(f"{what}: {self.file} is empty")
        return secret


class Tls(StrictModel):
    """An encrypted connection. `ca` is a PEM file of those who are trusted, else the system's; the others are ours."""

    ca: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Tls:
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("a client certificate needs both, `certificate` and `private_key`")
        return self

    def context(self, what: str) -> ssl.SSLContext:
        """Return the context of a connection, which `what` names in messages; raises ConfigError for unusable files."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:  # SSLError too
            file = self.ca or "the system certificates"
            raise ConfigError(f"{what}: {file} cannot be used for TLS: {error}") from None
        if self.certificate is not None and self.private_key is not None:
            present(context, self.certificate, self.private_key, what)
        return context


class BrokerSettings(SinkSettings):
    """A broker. `port` is the protocol's own if none is given: the first of `ports`, or with TLS the second."""

    ports: ClassVar[tuple[int, int]]

    host: Host
    port: Port | None = None
    user: str = ""
    password: Secret | None = None
    tls: Tls | None = None

    @model_validator(mode="after")
    def _has_user(self) -> BrokerSettings:
        if self.password is not None and not self.user:
            raise ValueError("a password needs a `user`")
        return self

    @property
    def port_number(self) -> int:
        """The port."""
        return self.port or self.ports[self.tls is not None]

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        return f"{self.host}:{self.port_number}"

    def password_text(self, origin: Origin) -> str | None:
        """Return the password; raises ConfigError that does not show it."""
        return None if self.password is None else self.password.read(f"{origin.key}.password")


GROUP = "coe.sinks"
MakeError = Callable[[KeyPath, str], CoeError]  # makes an error of a place in a file, and a sentence


class Sinks(StrictModel):
    """Those who are told what happens: `model_of` adds a key for each kind, with its sinks by names of your choice.

    Webhooks go to `hosts` alone: a URL that somebody mistypes, or puts in, tells nobody else.
    """

    hosts: tuple[Host, ...] = ()
    cfx_handle: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")] | None = None
    """The name of the station in messages of IPC-CFX, as `VENDOR.MODEL.SERIAL`; the station's own name if not given."""

    @model_validator(mode="after")
    def _are_clear(self) -> Sinks:
        twice = [name for name, number in Counter(self.names).items() if number > 1]
        if twice:
            raise ValueError(f"two sinks have the name '{twice[0]}'; give each a name of its own")
        for _, name, sink in self.listed():
            sink.check(name, self)
        return self

    def listed(self) -> Iterator[tuple[str, str, SinkSettings]]:
        """Yield each sink: its kind, its name, its settings."""
        for kind in type(self).model_fields:
            sinks = None if kind in Sinks.model_fields else getattr(self, kind)
            named = {kind: sinks} if isinstance(sinks, SinkSettings) else sinks or {}
            for name, sink in named.items():
                yield kind, name, sink

    @property
    def names(self) -> list[str]:
        """The names of all sinks, in their order."""
        return sorted(name for _, name, _ in self.listed())


def model_of(section: Any, error: MakeError = lambda _, text: ConfigError(text)) -> type[Sinks]:
    """Return the model of a section with these kinds of sinks; `error` makes the error of a kind that cannot be used.

    No other kind is imported: their names are keys without a value, which are suggested for a misspelt key.
    """
    written = set(section) - Sinks.model_fields.keys() if isinstance(section, Mapping) else set()
    fields: dict[str, Any] = dict.fromkeys(plugins.names(GROUP), (None, Field(None, exclude=True)))
    for name in written:
        if name in fields or ":" in name:
            try:
                kind = _kind(name)
            except ConfigError as fault:
                raise error(("sinks", name), str(fault)) from None
            fields[name] = (kind | None, None) if kind.is_single else (dict[Name, kind], {})  # type: ignore[valid-type]
    return create_model("Sinks", __base__=Sinks, **fields)


def _kind(name: str) -> type[SinkSettings]:
    kind = plugins.load(name, None, group=GROUP, noun="kind of sinks")
    if not (isinstance(kind, type) and issubclass(kind, SinkSettings)):
        raise ConfigError(
            f"'{name}' is not a kind of sinks; it must be a subclass of coe.serve.bridge.sinks.SinkSettings"
        )
    return kind


def expect_packages(sinks: Sinks) -> None:
    """Raise ConfigError if a sink of the config needs a package that is not installed."""
    for kind, _, sink in sinks.listed():
        if (package := sink.needs) is not None and find_spec(package.module) is None:
            raise ConfigError(
                f"sinks.{kind} needs {package.name}, which is not installed; install coe-vision[{package.extra}]"
            )


def sinks_of(station: str, sinks: Sinks) -> dict[str, Callable[[], Sink]]:
    """Return what makes each sink of a station, by its name; it raises ConfigError, as for an unreadable secret."""

    def make(kind: str, name: str, sink: SinkSettings) -> Sink:
        key = f"sinks.{kind}" if sink.is_single else f"sinks.{kind}.{name}"
        origin = Origin(station, sinks.cfx_handle or station, key, *sink.request_place(station))
        return Sink(sink.connection(origin), sink.message_format(origin), sink.heartbeat_s)

    return {name: partial(make, kind, name, sink) for kind, name, sink in sinks.listed()}
