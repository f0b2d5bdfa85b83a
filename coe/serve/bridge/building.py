"""The sinks of a config. Law: if a package or a secret is missing, the start fails with one sentence that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from coe.errors import ConfigError
from coe.serve.bridge.cfx import CfxFormat
from coe.serve.bridge.event_format import EventFormat
from coe.serve.bridge.outbox_relay import Sink
from coe.serve.bridge.sinks import Format
from coe.serve.bridge.tls import context_of
from coe.serve.bridge.webhook import WebhookConnection, WebhookPlace
from coe.serve.service_config import ServeConfig
from coe.serve.sink_config import (
    AmqpSettings,
    Broker,
    MessageFormat,
    MqttSettings,
    OpcUaSettings,
    SinkKind,
    Tls,
    WebhookSettings,
)


@dataclass(frozen=True, slots=True)
class _Package:
    """The module that a kind of sink imports, its package, and the extra of CoE that installs the package."""

    module: str
    name: str
    extra: str


def expect_packages(config: ServeConfig) -> None:
    """Raise ConfigError if a sink of the config needs a package that is not installed."""
    for kind in SinkKind:
        package = _KINDS[kind].package
        if package is not None and config.sinks.of(kind) and find_spec(package.module) is None:
            raise ConfigError(
                f"sinks.{kind} needs {package.name}, which is not installed; install coe-vision[{package.extra}]"
            )


def sinks_of(config: ServeConfig) -> Iterator[Sink]:
    """Yield the sinks of a config; raises ConfigError for a missing package, an unreadable secret or certificate."""
    expect_packages(config)
    for kind in SinkKind:
        for name, form in config.sinks.of(kind).items():
            yield _KINDS[kind].make(config, name, form)


def _mqtt(config: ServeConfig, name: str, sink: MqttSettings) -> Sink:
    from coe.serve.bridge.mqtt import MqttConnection, MqttPlace

    what = f"sinks.mqtt.{name}"
    place = MqttPlace(
        host=sink.host,
        port=sink.port_number,
        client=f"coe-{config.station}-{name}",
        topic=sink.topic or f"coe/{config.station}",
        user=sink.user,
        password=_password(sink, what),
        tls=None if sink.tls is None else context_of(sink.tls, f"{what}.tls"),
    )
    return Sink(name, MqttConnection(place), _format(config, sink.format, sink.heartbeat_s), sink.heartbeat_s)


def _amqp(config: ServeConfig, name: str, sink: AmqpSettings) -> Sink:
    from coe.serve.bridge.amqp import AmqpConnection, AmqpPlace, domain_of

    what = f"sinks.amqp.{name}"
    place = AmqpPlace(
        host=sink.host,
        port=sink.port_number,
        address=sink.address,
        handle=_handle(config),
        virtual_host=sink.virtual_host,
        user=sink.user,
        password=_password(sink, what),
        tls=None if sink.tls is None else domain_of(sink.tls, f"{what}.tls"),
    )
    return Sink(name, AmqpConnection(place), CfxFormat(_handle(config), sink.heartbeat_s), sink.heartbeat_s)


def _webhook(config: ServeConfig, name: str, sink: WebhookSettings) -> Sink:
    what = f"sinks.webhooks.{name}"
    url = sink.url
    assert url.port is not None  # that of the scheme, if the URL has none
    place = WebhookPlace(
        host=sink.host,
        port=url.port,
        target=(url.path or "/") + (f"?{url.query}" if url.query else ""),
        timeout_s=sink.timeout_s,
        secret=sink.secret.read(f"{what}.secret"),
        tls=context_of(Tls(ca=sink.ca), what) if url.scheme == "https" else None,
    )
    return Sink(name, WebhookConnection(place), _format(config, sink.format, sink.heartbeat_s), sink.heartbeat_s)


def _opcua(config: ServeConfig, name: str, sink: OpcUaSettings) -> Sink:
    from coe.serve.bridge.opcua import OpcUaConnection, OpcUaPlace

    for file in (sink.nodeset, sink.certificate, sink.private_key, *sink.clients):
        if file is not None and not file.is_file():
            raise ConfigError(f"sinks.opcua: there is no file {file}")
    place = OpcUaPlace(
        host=sink.host,
        port=sink.port,
        station=config.station,
        nodeset=sink.nodeset,
        certificate=sink.certificate,
        private_key=sink.private_key,
        clients=sink.clients,
    )
    return Sink(name, OpcUaConnection(place), EventFormat(config.station))


def _password(broker: Broker, what: str) -> str | None:
    return None if broker.password is None else broker.password.read(f"{what}.password")


def _format(config: ServeConfig, format: MessageFormat, heartbeat_s: float) -> Format:
    if format is MessageFormat.CFX:
        return CfxFormat(_handle(config), heartbeat_s)
    return EventFormat(config.station)


def _handle(config: ServeConfig) -> str:
    return config.sinks.cfx_handle or config.station


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a sink of a kind becomes a `Sink`, from its name and form, and the package that it needs."""

    make: Callable[[ServeConfig, str, Any], Sink]
    package: _Package | None = None


_KINDS = {
    SinkKind.MQTT: _Kind(_mqtt, _Package("paho", "paho-mqtt", "mqtt")),
    SinkKind.AMQP: _Kind(_amqp, _Package("proton", "python-qpid-proton", "amqp")),
    SinkKind.WEBHOOK: _Kind(_webhook),
    SinkKind.OPCUA: _Kind(_opcua, _Package("asyncua", "asyncua", "opcua")),
}
"""All that a kind of sink needs beside its form in `Sinks`."""
