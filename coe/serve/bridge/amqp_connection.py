"""Messages of IPC-CFX to an AMQP 1.0 broker. A message counts as told once the broker has accepted it.

Headers and properties are those of the public CFX SDK (`CFX/Transport/AmqpUtilities.cs`), so that its endpoints read
them.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any

from proton import Delivery, Link, ProtonException, SSLDomain, Terminus, Timeout
from proton import Message as Envelope
from proton.reactor import SenderOption
from proton.utils import BlockingConnection, BlockingSender

from coe.errors import ConfigError
from coe.serve.bridge.sink_settings import BrokerSettings, Tls
from coe.serve.bridge.sinks import Message, Origin, SinkConnection, SinkFailed
from coe.serve.clock import SECOND_US

ANSWER_S = 10.0
"""How long the broker may take to answer."""
IDLE_S = 30.0
"""Broker and bridge consider a connection dead after this time without a sign of life."""
_FAREWELL_S = 1.0
_FAILURES = (ProtonException, OSError)


def domain_of(tls: Tls, what: str) -> SSLDomain:
    """Return the settings of an encrypted connection; raises ConfigError for unusable files."""
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    trusted = str(tls.ca or ssl.get_default_verify_paths().cafile or "")
    try:
        if tls.certificate is not None:
            domain.set_credentials(str(tls.certificate), str(tls.private_key), None)
        domain.set_trusted_ca_db(trusted)
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    except ProtonException as error:
        raise ConfigError(f"{what}: the certificates cannot be used: {error}") from None
    return domain


class _Durable(SenderOption):
    """Asks that a queue which the broker makes for us outlives the broker."""

    def apply(self, link: Link) -> None:
        link.target.durability = Terminus.DELIVERIES


class AmqpConnection(SinkConnection):
    """A connection to an AMQP 1.0 broker, with one link."""

    def __init__(self, settings: BrokerSettings, origin: Origin, *, node: str, virtual_host: str) -> None:
        self._settings, self._handle = settings, origin.handle
        self._node, self._virtual_host = node, virtual_host
        self._password = settings.password_text(origin)
        self._tls = None if settings.tls is None else domain_of(settings.tls, f"{origin.key}.tls")
        self._connection: BlockingConnection | None = None
        self._sender: BlockingSender | None = None

    def connect(self) -> None:
        """Connect and open the link; raises SinkFailed."""
        settings = self._settings
        options: dict[str, Any] = {"allow_insecure_mechs": True}
        if settings.user:
            options |= {"user": settings.user, "password": self._password}
        if self._virtual_host:
            options["virtual_host"] = self._virtual_host
        scheme = "amqp" if self._tls is None else "amqps"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            self._connection = BlockingConnection(
                f"{scheme}://{host}:{settings.port_number}",
                timeout=ANSWER_S,
                ssl_domain=self._tls,
                heartbeat=IDLE_S,
                **options,
            )
            self._sender = self._connection.create_sender(self._node, options=_Durable())
        except _FAILURES as error:
            raise self._failure("cannot be reached", error) from error

    def send(self, message: Message) -> None:
        """Send a message and wait until the broker has accepted it; raises SinkFailed."""
        assert self._sender is not None
        try:
            delivery = self._sender.send(self._envelope(message))
        except _FAILURES as error:
            raise self._failure("cannot be told", error) from error
        # A connection that ends in between leaves the message without an answer, and raises nothing.
        if delivery.remote_state != Delivery.ACCEPTED:
            raise SinkFailed(f"{self._settings.address} did not accept a message ({delivery.remote_state})")

    def look(self) -> None:
        """Keep the connection alive; raises SinkFailed if it is lost."""
        assert self._connection is not None
        try:
            with suppress(Timeout):
                self._connection.wait(lambda: False, timeout=0.001)
        except _FAILURES as error:
            raise self._failure("was lost", error) from error
        if self._connection.disconnected:
            raise SinkFailed(f"the connection to {self._settings.address} was lost")

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection, self._sender = self._connection, None, None
        if connection is not None:
            connection.timeout = _FAREWELL_S
            # Proton raises an AttributeError where the other side was gone already.
            with suppress(*_FAILURES, AttributeError):
                connection.close()

    def _envelope(self, message: Message) -> Envelope:
        topic = message.name.rpartition(".")[0]
        return Envelope(
            body=message.encoded,
            inferred=True,  # one section of bytes, not a value
            durable=True,
            id=message.id,
            reply_to=self._handle,
            subject=f"{self._handle}.{message.name}",
            content_type='application/json; charset="utf-8"',
            creation_time=message.at_us / SECOND_US,
            properties={"cfx-topic": topic, "cfx-message": message.name, "cfx-handle": self._handle},
        )

    def _failure(self, what: str, error: Exception) -> SinkFailed:
        return SinkFailed(f"{self._settings.address} {what}: {error}")
