"""The gate as a process: uvicorn around the application. Law: it ends in order at SIGTERM, whoever is connected."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from coe.serve.config import ServeConfig
from coe.serve.database import states
from coe.serve.database.migration import expect_newest
from coe.serve.database.opening import open_database
from coe.serve.database.trouble import DatabaseTrouble
from coe.serve.doors import expect_keys
from coe.serve.gate.app import application
from coe.serve.gate.feed import Feed
from coe.serve.gate.headers import HEADERS
from coe.serve.gate.problems import MEDIA_TYPE, ProblemKind
from coe.serve.gate.state import Gate
from coe.serve.moments import SECOND_US
from coe.serve.pictures import Pictures
from coe.serve.retention import remove_strays, sweep
from coe.serve.words import FaultKind, Process

BEAT_S, TIDY_S = 2.0, 600.0
HEAD_S = 10.0
"""The longest time in which a client may send the head of a request."""
YOUNG_S = 3600.0
"""A picture without a row is left alone if it is not older than this at the start: a gate that was told to end may be
about to write the row, and the clock may be set back meanwhile."""
CONNECTIONS = 2000
GRACE_S = 5
"""How long requests that are under way may take when the gate ends."""


class _Impatient(H11Protocol):
    """Closes a connection on which a request does not begin in time: idle connections would use up the gate.

    uvicorn itself closes connections that are idle after a request.
    """

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waiting = self.loop.call_later(HEAD_S, self._too_slow)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._waiting is not None and self._is_answering:
            self._waiting.cancel()
            self._waiting = None
        elif self._waiting is None and not self._is_answering:
            self._waiting = self.loop.call_later(HEAD_S, self._too_slow)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request with a problem, as every other refusal; uvicorn's answer is plain text."""
        problem = {
            "type": f"urn:coe:problem:{ProblemKind.BAD_REQUEST}",
            "title": HTTPStatus.BAD_REQUEST.phrase,
            "status": int(HTTPStatus.BAD_REQUEST),
            "detail": "this is no request of HTTP/1.1, or its head is too long",
            "way_out": "send a request of HTTP/1.1 with a shorter head",
        }
        headers = {**HEADERS, "Content-Type": MEDIA_TYPE, "Connection": "close"}
        start = h11.Response(status_code=400, headers=list(headers.items()), reason=HTTPStatus.BAD_REQUEST.phrase)
        for event in (start, h11.Data(data=json.dumps(problem).encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _too_slow(self) -> None:
        self._waiting = None
        if not self._is_answering and not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """A server that ends waiting requests first, because others would wait for them in vain."""

    def __init__(self, config: uvicorn.Config, gate: Gate) -> None:
        super().__init__(config)
        self._gate = gate

    async def shutdown(self, sockets: Any = None) -> None:
        await self._gate.feed.close()
        await super().shutdown(sockets)


def open_gate(config: ServeConfig) -> Gate:
    """Open the database and the folder of pictures; raises ConfigError for what cannot be served."""
    database = open_database(config.database_url)
    expect_newest(database)
    expect_keys(config, database)
    pictures = Pictures(config.pictures)
    pictures.prepare()
    return Gate(config, database, pictures, Feed(database))


def make_server(gate: Gate) -> uvicorn.Server:
    """Return the server of a gate, which is not started yet."""
    listen = gate.config.listen
    settings = uvicorn.Config(
        application(gate),
        host=listen.host,
        port=listen.port,
        http=_Impatient,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.private_key,
    )
    return _Server(settings, gate)


async def serve(config: ServeConfig) -> None:
    """Serve until SIGTERM or SIGINT; raises ConfigError if it cannot begin."""
    gate = open_gate(config)
    tasks = [asyncio.create_task(_beat(gate)), asyncio.create_task(_tidy(gate))]
    try:
        await make_server(gate).serve()
    finally:
        for task in tasks:
            task.cancel()
        gate.close()


async def _tidy(gate: Gate) -> None:
    """Remove what crashes have left, then now and then the pictures whose time has come."""
    begun_s = gate.now_us() / SECOND_US - YOUNG_S
    with suppress(DatabaseTrouble, OSError):  # the next start will do
        await gate.run(lambda: remove_strays(gate.database, gate.pictures, begun_s))
    swept_us: int | None = None
    while True:
        now_us = gate.now_us()
        look = partial(sweep, gate.database, gate.pictures, gate.config.retention, now_us, since_us=swept_us)
        try:
            removed = await gate.run(look)
            swept_us = now_us
            if removed:
                await gate.overcome(FaultKind.RETENTION)
        except DatabaseTrouble:  # the next time will do, and the line tells of it
            pass
        except OSError as error:
            message = f"old pictures cannot be removed: {error}; the disk will fill"
            await gate.note_fault(FaultKind.RETENTION, message)
        await asyncio.sleep(TIDY_S)


async def _beat(gate: Gate) -> None:
    """Give a sign of life, as long as the database takes it."""
    while True:
        with suppress(DatabaseTrouble):
            await gate.write(
                lambda connection: states.beat(
                    connection, Process.GATE, pid=os.getpid(), now_us=gate.now_us(), facts={}
                )
            )
        await asyncio.sleep(BEAT_S)
