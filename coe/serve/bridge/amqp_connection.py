"""Messages of IPC-CFX to an AMQP 1.0 broker, which has accepted each; headers as `CFX/Transport/AmqpUtilities.cs`."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from proton import Delivery, Link, ProtonException, SSLDomain, Terminus, Timeout
from proton import Message as Envelope
from proton.reactor import SenderOption
from proton.utils import BlockingConnection, BlockingReceiver, BlockingSender

from coe.errors import ConfigError
from coe.serve.bridge import sinks
from coe.serve.clock import SECOND_US

ANSWER_S = 10.0  # how long the broker may take to answer
IDLE_S = 30.0  # broker and bridge consider a connection dead after this time without a sign of life
_FAREWELL_S, _REPLY_S = 1.0, 3.0
_AT_A_TIME = 10  # how many requests a broker may hand over before they are answered
_log = logging.getLogger(__name__)
_FAILURES = (ProtonException, OSError)


def domain_of(tls: sinks.Tls, what: str) -> SSLDomain:
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


class AmqpConnection(sinks.SinkConnection):
    """A connection to an AMQP 1.0 broker: a link for messages to `node`, and one for `requests` if there is a place."""

    def __init__(
        self, settings: sinks.BrokerSettings, origin: sinks.Origin, node: str, requests: str, *, virtual_host: str
    ) -> None:
        self._settings, self._handle = settings, origin.handle
        self._node, self._requests, self._virtual_host = node, requests, virtual_host
        self._password = settings.password_text(origin)
        self._tls = None if settings.tls is None else domain_of(settings.tls, f"{origin.key}.tls")
        self._connection: BlockingConnection | None = None
        self._sender: BlockingSender | None = None
        self._receiver: BlockingReceiver | None = None

    def connect(self) -> None:
        try:
            self._connection = self._opened(ANSWER_S)
            self._sender = self._connection.create_sender(self._node, options=_Durable())
            if self._requests:
                self._receiver = self._connection.create_receiver(self._requests, credit=_AT_A_TIME)
        except _FAILURES as error:
            raise self._failure("cannot be reached", error) from error

    def _opened(self, timeout_s: float) -> BlockingConnection:
        settings = self._settings
        options: dict[str, Any] = {"allow_insecure_mechs": True}
        if settings.user:
            options |= {"user": settings.user, "password": self._password}
        if self._virtual_host:
            options["virtual_host"] = self._virtual_host
        scheme = "amqp" if self._tls is None else "amqps"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"{scheme}://{host}:{settings.port_number}"
        return BlockingConnection(url, timeout=timeout_s, ssl_domain=self._tls, heartbeat=IDLE_S, **options)

    def send(self, message: sinks.Message) -> None:
        assert self._sender is not None
        try:
            delivery = self._sender.send(self._envelope(message))
        except _FAILURES as error:
            raise self._failure("cannot be sent to", error) from error
        # A connection that ends in between leaves the message without an answer, and raises nothing.
        if delivery.remote_state != Delivery.ACCEPTED:
            raise sinks.SinkFailed(f"{self._settings.address} did not accept a message ({delivery.remote_state})")

    def look(self) -> Sequence[sinks.SinkRequest]:
        assert self._connection is not None
        requests: list[sinks.SinkRequest] = []
        try:
            with suppress(Timeout):
                self._connection.wait(lambda: False, timeout=0.001)
            receiver = self._receiver
            while receiver is not None and receiver.fetcher is not None and receiver.fetcher.has_message:
                requests += _read(receiver.receive(timeout=0.001))
                receiver.accept()
        except _FAILURES as error:
            raise self._failure("was lost", error) from error
        if self._connection.disconnected:
            raise sinks.SinkFailed(f"the connection to {self._settings.address} was lost")
        return requests

    def answer(self, request: sinks.SinkRequest, message: sinks.Message) -> None:
        """Send an answer over a connection of its own: for a wrong address, brokers end the connection."""
        if not request.reply_to:
            self.send(message)
            return
        own = None
        try:
            own = self._opened(_REPLY_S)
            own.create_sender(request.reply_to).send(self._envelope(message, request))
        except _FAILURES as error:
            _log.warning("%s: replies cannot be sent to %s: %s", self._settings.address, request.reply_to[:200], error)
        finally:
            _close(own, _REPLY_S)

    def close(self) -> None:
        connection, self._connection, self._sender, self._receiver = self._connection, None, None, None
        _close(connection, _FAREWELL_S)

    def _envelope(self, message: sinks.Message, request: sinks.SinkRequest | None = None) -> Envelope:
        topic = message.name.rpartition(".")[0]
        return Envelope(
            body=message.encoded,
            inferred=True,  # one section of bytes, not a value
            durable=True,
            id=message.id,
            address=request.reply_to if request else None,
            correlation_id=(request.id or None) if request else None,
            reply_to=self._handle,
            subject=f"{self._handle}.{message.name}",
            content_type='application/json; charset="utf-8"',
            creation_time=message.at_us / SECOND_US,
            properties={"cfx-topic": topic, "cfx-message": message.name, "cfx-handle": self._handle},
        )

    def _failure(self, what: str, error: Exception) -> sinks.SinkFailed:
        return sinks.SinkFailed(f"{self._settings.address} {what}: {error}")


def _close(connection: BlockingConnection | None, most_s: float) -> None:
    if connection is not None:
        connection.timeout = most_s
        # Proton raises an AttributeError where the other side was gone already.
        with suppress(*_FAILURES, AttributeError):
            connection.close()


def _read(asked: Envelope) -> Iterator[sinks.SinkRequest]:
    body = bytes(asked.body) if isinstance(asked.body, bytes | memoryview) else str(asked.body)
    return sinks.requests_in(body, asked.reply_to or "", str(asked.correlation_id or ""))
