"""The settings of sinks, the machines that are told what happens. Law: a form never holds a secret.

A form says where a secret lies; the bridge reads the secret when it starts. `coe.serve.bridge` makes the connections.
"""

from __future__ import annotations

import ipaddress
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, HttpUrl, model_validator

from coe import regular
from coe.errors import ConfigError
from coe.strict_model import Name, StrictModel
from coe.visible import is_visible

MAX_SECRET_BYTES = 4096
_WILD = "+#"


def _host(host: str) -> str:
    if not host or any(letter.isspace() or letter in "/@?#" for letter in host):
        raise ValueError(f"'{host}' is not a host; give a name or an address alone, and the port as `port`")
    return host.lower()


def _topic(topic: str) -> str:
    if not is_visible(topic) or any(sign in topic for sign in _WILD) or topic.startswith(("/", "$")):
        raise ValueError(f"'{topic}' is not a topic to publish under; give words with / between them")
    return topic.rstrip("/")


Host = Annotated[str, Field(max_length=253), AfterValidator(_host)]
Port = Annotated[int, Field(ge=1, le=65535)]
Topic = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_topic)]
Patience = Annotated[float, Field(gt=0, le=300, allow_inf_nan=False)]


class MessageFormat(StrEnum):
    """In which words a sink is told: the service's own events, or messages of IPC-CFX."""

    EVENTS = "events"
    CFX = "cfx"


class SinkKind(StrEnum):
    """How a sink is told. Its value is the name of a field of `Sinks`, and of a line of `building._KINDS`."""

    MQTT = "mqtt"
    AMQP = "amqp"
    WEBHOOK = "webhooks"
    OPCUA = "opcua"


class Secret(StrictModel):
    """Where a password or key lies: in a file, whose last line break does not count, or in an environment variable."""

    file: Path | None = None
    environment: str | None = None

    @model_validator(mode="after")
    def _is_somewhere(self) -> Secret:
        if (self.file is None) == (self.environment is None):
            raise ValueError("say where the secret lies: either `file`, or the name of a variable as `environment`")
        return self

    def read(self, what: str) -> str:
        """Return the secret; `what` names it for messages. Raises ConfigError that does not show it."""
        if self.environment is not None:
            secret = os.environ.get(self.environment, "")
            if not secret:
                raise ConfigError(f"{what}: the environment variable {self.environment} is not set")
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
            raise ValueError("a certificate of ours needs both, `certificate` and `private_key`")
        return self


class Broker(StrictModel):
    """What connections to brokers have in common. `port` is the protocol's usual port if none is given."""

    host: Host
    port: Port | None = None
    user: str = ""
    password: Secret | None = None
    tls: Tls | None = None
    heartbeat_s: Annotated[float, Field(ge=1, le=300, allow_inf_nan=False)] = 60.0
    """How often a sign of life is sent; IPC-CFX asks for one in 5 minutes at least."""

    @model_validator(mode="after")
    def _has_user(self) -> Broker:
        if self.password is not None and not self.user:
            raise ValueError("a password needs a `user`")
        return self


class MqttSettings(Broker):
    """An MQTT broker. `topic` is what all topics begin with; `coe/STATION` if none is given."""

    topic: Topic | None = None
    format: MessageFormat = MessageFormat.EVENTS

    @property
    def port_number(self) -> int:
        """The port."""
        return self.port or (8883 if self.tls else 1883)


class AmqpSettings(Broker):
    """An AMQP 1.0 broker, which gets messages of IPC-CFX. `address` is where they go, as `/exchange/cfx`."""

    address: Annotated[str, Field(min_length=1, max_length=500)]
    virtual_host: str = ""

    @property
    def port_number(self) -> int:
        """The port."""
        return self.port or (5671 if self.tls else 5672)


class WebhookSettings(StrictModel):
    """A URL to which messages are posted, signed with `secret`. `ca` is a PEM file of those who are trusted."""

    url: HttpUrl
    secret: Secret
    format: MessageFormat = MessageFormat.EVENTS
    ca: Path | None = None
    timeout_s: Patience = 10.0
    heartbeat_s: Annotated[float, Field(ge=1, le=300, allow_inf_nan=False)] = 60.0

    @property
    def host(self) -> str:
        """The host that it goes to."""
        return (self.url.host or "").strip("[]").lower()


class OpcUaSettings(StrictModel):
    """The OPC UA server. `nodeset` is the XML file of the companion specification OPC 40100-1, if there is one.

    Reached from other machines, it needs a certificate of its own and the certificates of those who may read.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 4840
    nodeset: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    clients: tuple[Path, ...] = ()

    @model_validator(mode="after")
    def _is_guarded(self) -> OpcUaSettings:
        try:
            is_loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            raise ValueError(f"'{self.host}' is not an address of this machine; give 127.0.0.1, or 0.0.0.0") from None
        guards = (self.certificate, self.private_key, self.clients)
        if any(guards) != all(guards):
            raise ValueError("give all three, `certificate`, `private_key` and `clients`, or none of them")
        if not is_loopback and not all(guards):
            raise ValueError(
                f"{self.host} is reached from other machines; give `certificate`, `private_key`, and in `clients` the "
                "certificates of those who may read"
            )
        return self


class Sinks(StrictModel):
    """Those who are told what happens, by names of your choice.

    Webhooks go to `hosts` alone: a URL that somebody mistypes, or puts in, tells nobody else.
    """

    mqtt: dict[Name, MqttSettings] = Field(default_factory=dict)
    amqp: dict[Name, AmqpSettings] = Field(default_factory=dict)
    webhooks: dict[Name, WebhookSettings] = Field(default_factory=dict)
    hosts: tuple[Host, ...] = ()
    cfx_handle: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")] | None = None
    """The name of the station in messages of IPC-CFX, as `VENDOR.MODEL.SERIAL`; the station's own name if not given."""
    opcua: OpcUaSettings | None = None

    @model_validator(mode="after")
    def _are_clear(self) -> Sinks:
        twice = [name for name, number in Counter(self.names).items() if number > 1]
        if twice:
            raise ValueError(f"two sinks have the name '{twice[0]}'; give each a name of its own")
        for name, hook in self.webhooks.items():
            if hook.host not in self.hosts:
                raise ValueError(f"webhook '{name}' goes to {hook.host}, which is not in `hosts`; add it there")
            if hook.url.username or hook.url.password:
                raise ValueError(f"webhook '{name}' has a password in its URL; requests are signed with `secret`")
        return self

    def of(self, kind: SinkKind) -> Mapping[str, StrictModel]:
        """Return the sinks of a kind by name. The only sink of its kind has the name of the kind."""
        sinks: Mapping[str, StrictModel] | StrictModel | None = getattr(self, kind.value)
        if sinks is None:
            return {}
        return {kind.value: sinks} if isinstance(sinks, StrictModel) else sinks

    @property
    def names(self) -> Iterator[str]:
        """The names of all sinks."""
        for kind in SinkKind:
            yield from self.of(kind)
