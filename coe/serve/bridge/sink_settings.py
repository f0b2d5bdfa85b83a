"""What settings of sinks have in common: hosts, secrets, certificates, brokers. A setting never holds a secret.

It says where the secret lies; the bridge reads the secret whenever it connects.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, create_model, model_validator

from coe.errors import CoeError, ConfigError
from coe.helpers import plugins, regular
from coe.helpers.strict_model import Name, StrictModel
from coe.helpers.strict_yaml import KeyPath
from coe.serve.bridge.sinks import Origin, Sink, SinkSettings
from coe.serve.credentials import present

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


Address = Annotated[str, AfterValidator(_address)]
"""Where something of ours listens."""
Host = Annotated[str, Field(max_length=253), AfterValidator(_host)]
Port = Annotated[int, Field(ge=1, le=65535)]


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
            raise ValueError("a certificate of ours needs both, `certificate` and `private_key`")
        return self

    def context(self, what: str) -> ssl.SSLContext:
        """Return the settings of a connection, which checks the other side's certificate; `what` names it for messages.

        Raises ConfigError for unusable files.
        """
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
MakeError = Callable[[KeyPath, str], CoeError]
"""Makes an error of a place in a file, and a sentence."""


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
        raise ConfigError(f"'{name}' is no kind of sinks; it must be a subclass of coe.serve.bridge.sinks.SinkSettings")
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
