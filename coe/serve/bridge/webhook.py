"""Messages posted to a URL and signed. A request goes to the host of the config and nowhere else.

No redirect is followed, and no proxy of the environment is used. Any answer of 2xx acknowledges a message. A message
and its answer have one time together: a server that answers byte by byte must not hold the queue.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import httpx
from pydantic import Field, HttpUrl

from coe.serve.bridge.sinks import ChoosesFormat, Message, Origin, Secret, SinkConnection, SinkFailed, Sinks, Tls
from coe.serve.clock import SECOND_US, now_us

_MOST_ANSWER_BYTES = 1 << 16


class WebhookSettings(ChoosesFormat):
    """A URL to which messages are posted within `timeout_s`, signed with `secret`; `ca` has those who are trusted."""

    url: HttpUrl
    secret: Secret
    ca: Path | None = None
    timeout_s: Annotated[float, Field(gt=0, le=300, allow_inf_nan=False)] = 10.0

    @property
    def host(self) -> str:
        """The host that it goes to."""
        return (self.url.host or "").strip("[]").lower()

    def check(self, name: str, section: Sinks) -> None:
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


class WebhookConnection(SinkConnection):
    """A URL to which messages are posted, one after the other, over one connection while it lasts. One thread."""

    def __init__(self, settings: WebhookSettings, origin: Origin, clock_us: Callable[[], int] = now_us) -> None:
        self._settings, self._clock_us = settings, clock_us
        self._secret = settings.secret.read(f"{origin.key}.secret")
        is_tls = settings.url.scheme == "https"
        self._trusted = Tls(ca=settings.ca).context(origin.key) if is_tls else False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx.AsyncClient | None = None

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
        host, url = self._settings.host, self._settings.url
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._client = httpx.AsyncClient(
                verify=self._trusted, trust_env=False, timeout=0.9 * self._settings.timeout_s
            )
        try:
            # httpx bounds each step by itself, and closes its socket then; the loop bounds the message as a whole.
            posting = asyncio.wait_for(self._post(body, headers), self._settings.timeout_s)
            status = self._loop.run_until_complete(posting)
        except (TimeoutError, httpx.TimeoutException) as error:
            self.close()
            raise SinkFailed(f"{host}:{url.port} does not answer in time") from error
        except (httpx.HTTPError, OSError) as error:
            self.close()
            raise SinkFailed(f"{host}:{url.port} cannot be reached: {_cause(error)}") from error
        if 300 <= status < 400:
            raise SinkFailed(f"{host} redirects (status {status}), which is not followed; correct the URL")
        if not 200 <= status < 300:
            raise SinkFailed(f"{host} answers with status {status}")

    async def _post(self, body: bytes, headers: dict[str, str]) -> int:
        assert self._client is not None
        url, read = str(self._settings.url), 0
        async with self._client.stream("POST", url, content=body, headers=headers) as answer:
            async for part in answer.aiter_raw():
                read += len(part)
                if read > _MOST_ANSWER_BYTES:
                    break
            return answer.status_code

    def close(self) -> None:
        loop, client = self._loop, self._client
        self._loop = self._client = None
        if loop is not None and client is not None:
            loop.run_until_complete(client.aclose())
            loop.close()


def _cause(error: BaseException) -> object:
    """Return what an error of a library stands for: the innermost error of the system behind it."""
    found: BaseException = error
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, BaseExceptionGroup):
            behind = behind.exceptions[0]
        if isinstance(behind, OSError):
            found = behind
        behind = behind.__cause__ or behind.__context__
    return os.strerror(found.errno) if isinstance(found, ConnectionError) and found.errno else found
