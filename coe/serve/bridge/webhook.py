"""Messages posted to a URL and signed. A request goes to the host of the config and nowhere else.

No redirect is followed, and no proxy of the environment is used. Any answer of 2xx acknowledges a message. A message
and its answer have one time together: a server that answers byte by byte must not hold the queue.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, HttpUrl

from coe.serve.bridge.sink_settings import Secret, Tls
from coe.serve.bridge.sinks import ChoosesFormat, Message, Origin, SinkConnection, SinkFailed, SinkSection
from coe.serve.clock import SECOND_US, now_us

_MOST_ANSWER_BYTES = 1 << 16


class WebhookSettings(ChoosesFormat):
    """A URL to which messages are posted, signed with `secret`. `ca` is a PEM file of those who are trusted.

    A message is posted and answered within `timeout_s`.
    """

    url: HttpUrl
    secret: Secret
    ca: Path | None = None
    timeout_s: Annotated[float, Field(gt=0, le=300, allow_inf_nan=False)] = 10.0

    @property
    def host(self) -> str:
        """The host that it goes to."""
        return (self.url.host or "").strip("[]").lower()

    def check(self, name: str, section: SinkSection) -> None:
        """Raise ValueError for a host that is not listed, or a password in the URL."""
        if self.host not in section.hosts:
            raise ValueError(f"webhook '{name}' goes to {self.host}, which is not in `hosts`; add it there")
        if self.url.username or self.url.password:
            raise ValueError(f"webhook '{name}' has a password in its URL; requests are signed with `secret`")

    def connection(self, origin: Origin) -> WebhookConnection:
        return WebhookConnection(self, origin)


def signature(secret: str, moment_s: int, body: bytes) -> str:
    """Return the HMAC-SHA256 of "SECONDS.BODY" in hexadecimal; the time keeps others from repeating an old request."""
    return hmac.new(secret.encode(), f"{moment_s}.".encode() + body, hashlib.sha256).hexdigest()


class _Connection(HTTPConnection):
    """A connection on which nothing is waited for beyond a moment, `until_s` of the monotonic clock."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        super().__init__(host, port)
        self._tls, self.until_s = tls, 0.0
        if tls is not None:
            self.default_port = 443

    def connect(self) -> None:
        self.sock = self._reached()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            self.sock.settimeout(self.left_s())
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)

    def _reached(self) -> socket.socket:
        """Return a socket to the first address of the host that answers; each has its share of the time."""
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        *others, last = dict.fromkeys((str(address[0]), int(address[1])) for *_, address in found)
        for left, address in zip(range(len(others) + 1, 1, -1), others, strict=True):
            with suppress(OSError):
                return socket.create_connection(address, self.left_s() / left)
        return socket.create_connection(last, self.left_s())

    def send(self, data: Any) -> None:
        if self.sock is not None:
            self.sock.settimeout(self.left_s())
        super().send(data)

    def response_class(self, sock: Any, *rest: Any, **named: Any) -> HTTPResponse:  # type: ignore[override]
        answer = HTTPResponse(sock, *rest, **named)
        answer.fp = BufferedReader(_Answer(answer.fp.detach(), sock, self.left_s))
        return answer

    def left_s(self) -> float:
        """Return how much time is left; raises TimeoutError if none is."""
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


class _Answer(RawIOBase):
    """The bytes of an answer; each read has the time that is left."""

    def __init__(self, raw: Any, sock: Any, left_s: Callable[[], float]) -> None:
        self._raw, self._sock, self._left_s = raw, sock, left_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._left_s())
        return int(self._raw.readinto(buffer))

    def close(self) -> None:
        self._raw.close()
        super().close()


class WebhookConnection(SinkConnection):
    """A URL to which messages are posted, one after the other, over one connection while it lasts."""

    def __init__(self, settings: WebhookSettings, origin: Origin, clock_us: Callable[[], int] = now_us) -> None:
        url = settings.url
        assert url.port is not None  # that of the scheme, if the URL has none
        self._host, self._port, self._timeout_s, self._clock_us = settings.host, url.port, settings.timeout_s, clock_us
        self._target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._secret = settings.secret.read(f"{origin.key}.secret")
        self._tls = Tls(ca=settings.ca).context(origin.key) if url.scheme == "https" else None
        self._connection: _Connection | None = None

    def send(self, message: Message) -> None:
        body, moment_s = message.encoded, self._clock_us() // SECOND_US
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "coe-serve",
            "X-CoE-Id": message.id,
            "X-CoE-Name": message.name,
            "X-CoE-Timestamp": str(moment_s),
            "X-CoE-Signature": f"sha256={signature(self._secret, moment_s, body)}",
        }
        until_s = time.monotonic() + self._timeout_s
        # A server may have closed a connection that was idle; a message that fails on a new one fails.
        was_open = self._connection is not None
        try:
            self._post(body, headers, until_s)
        except (OSError, HTTPException) as error:
            self.close()
            if not was_open or isinstance(error, TimeoutError):
                raise self._failure(error) from error
            try:
                self._post(body, headers, until_s)
            except (OSError, HTTPException) as again:
                self.close()
                raise self._failure(again) from again

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError):
                connection.close()

    def _post(self, body: bytes, headers: dict[str, str], until_s: float) -> None:
        if self._connection is None:
            self._connection = _Connection(self._host, self._port, self._tls)
        self._connection.until_s = until_s
        self._connection.request("POST", self._target, body, headers)
        answer = self._connection.getresponse()
        rest = len(answer.read(_MOST_ANSWER_BYTES))
        if rest == _MOST_ANSWER_BYTES or answer.will_close:
            self.close()
        if not 200 <= answer.status < 300:
            self.close()
            raise SinkFailed(self._refusal(answer))

    def _refusal(self, answer: HTTPResponse) -> str:
        if 300 <= answer.status < 400:
            return f"{self._host} redirects (status {answer.status}), which is not followed; correct the URL"
        return f"{self._host} answers with status {answer.status}"

    def _failure(self, error: Exception) -> SinkFailed:
        what = "does not answer in time" if isinstance(error, TimeoutError) else f"cannot be told: {error}"
        return SinkFailed(f"{self._host}:{self._port} {what}")
