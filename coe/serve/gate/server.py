"""The gate as a process: uvicorn around the application. It ends in order at SIGTERM, whoever is connected."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import ssl
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from sqlalchemy import Connection as SqlConnection

from coe.errors import ConfigError, sentence_of
from coe.helpers import system
from coe.serve.clock import DAY_US, SteadyClock, microseconds, now_us
from coe.serve.credentials import certificates_of, present
from coe.serve.database import states
from coe.serve.database.connecting import DatabaseError, open_database
from coe.serve.database.migration import expect_newest
from coe.serve.enums import FaultKind, Process
from coe.serve.gate import trial_routes
from coe.serve.gate.app import application
from coe.serve.gate.folder_feeder import feed_folders
from coe.serve.gate.gate_state import Feed, Gate
from coe.serve.gate.problems import Problem
from coe.serve.gate.storage import GLANCE_S, DataDisk
from coe.serve.picture_folder import PARTS, Pictures
from coe.serve.retention import remove_strays, sweep
from coe.serve.service_config import ServeConfig
from coe.serve.systemd import ALIVE, notify

if TYPE_CHECKING:
    from coe.serve.database.connecting import Database
    from coe.serve.service_config import Listen


_log = logging.getLogger(__name__)
BEAT_S, TIDY_S = 2.0, 600.0
CONNECTIONS = 2000
LONGEST_OFF_US = 4 * DAY_US  # a clock that is further from the last heartbeat may be wrong at the start
_SPARE_DESCRIPTORS = 256  # for the database, the pictures that are drawn, and the libraries
GRACE_S = 5  # how long requests that are under way may take when the gate ends


class _Server(uvicorn.Server):
    """A server that first ends requests that wait, because its end would wait for them in vain."""

    def __init__(self, config: uvicorn.Config, gate: Gate) -> None:
        super().__init__(config)
        self._gate = gate

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        config = self._gate.config
        scheme, host = "https" if config.listen.has_tls else "http", config.listen.host
        place = f"[{host}]" if ":" in host else host
        port = self.servers[0].sockets[0].getsockname()[1]
        notify()
        sys.stderr.write(f"{config.station}: {scheme}://{place}:{port}, data in {config.data}\n")

    async def shutdown(self, sockets: Any = None) -> None:
        await self._gate.feed.close()
        await super().shutdown(sockets)


def open_gate(config: ServeConfig) -> Gate:
    """Open the database; raises ConfigError for what cannot be served."""
    database = open_database(config.database_url)
    expect_newest(database)
    gate = Gate(config, database, Pictures(config.pictures), Feed(database))
    gate.certificates = list(certificates_of(config.model_dump()))
    before = database.read(states.heartbeats).get(Process.WEB)
    if before is not None and abs(off_us := gate.now_us() - before.beat_us) > LONGEST_OFF_US:
        _doubt_clock(gate, off_us, "the last heartbeat")
    return gate


def _doubt_clock(gate: Gate, off_us: int, since: str) -> None:
    when = f"{abs(off_us) / DAY_US:.0f} days {'after' if off_us > 0 else 'before'} {since}"
    message = f"the clock is {when}; no picture is deleted until someone checks the clock and clears this fault"
    gate.faults.note(FaultKind.CLOCK, message)


def _is_clock_doubted(gate: Gate) -> bool:
    faults = gate.database.read(gate.open_faults)
    return any(fault.kind is FaultKind.CLOCK and fault.process is Process.WEB for fault in faults)


def follow_clock(gate: Gate, clock: SteadyClock, was_told: bool) -> bool:
    """Follow a clock that was set far ahead once a person has looked; return whether one has to look."""
    ahead_us = gate.now_us() - clock.now_us()
    if ahead_us <= LONGEST_OFF_US:
        return False
    if not was_told:
        _doubt_clock(gate, ahead_us, "what it was before it was set")
        return True
    if _is_clock_doubted(gate):
        return True
    clock.catch_up()
    return False


def most_connections() -> int:
    """Return how many connections this process can have, at most CONNECTIONS; each may need a file, too."""
    descriptors = system.raise_descriptor_limit(2 * CONNECTIONS + _SPARE_DESCRIPTORS)
    return max(32, min(CONNECTIONS, (descriptors - _SPARE_DESCRIPTORS) // 2))


def make_server(gate: Gate) -> uvicorn.Server:
    """Return the server of a gate, which is not started yet."""
    listen, most = gate.config.listen, most_connections()
    gate.places.most = most // 2
    settings = uvicorn.Config(
        application(gate),
        host=listen.host,
        port=listen.port,
        http="h11",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=most,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.private_key,
    )
    return _Server(settings, gate)


async def serve(config: ServeConfig) -> None:
    """Serve until SIGTERM or SIGINT; raises ConfigError if it cannot begin."""
    gate = open_gate(config)
    tasks = [asyncio.create_task(work(gate)) for work in (_beat, _tidy, trial_routes.carry_out, feed_folders)]
    try:
        await make_server(gate).serve()
    finally:
        for task in tasks:
            task.cancel()
        gate.close()


async def _tidy(gate: Gate) -> None:
    """From time to time, remove pictures that are older than the config keeps them, and files that crashes left."""
    clock, was_told = SteadyClock(gate.now_us), False
    swept_us: int | None = None
    for turn in itertools.count(gate.now_us() // microseconds(TIDY_S)):
        try:
            was_told = await gate.run(partial(follow_clock, gate, clock, was_told))
            now_us = clock.now_us()
            removed = await gate.keep(partial(remove_old, gate, turn % PARTS, now_us, swept_us))
            swept_us = now_us
            if removed:
                await gate.overcome(FaultKind.RETENTION)
        except (DatabaseError, Problem):  # it does not answer: the next time will do, and other faults tell of it
            pass
        except Exception as error:  # whatever it is: without this task the disk would fill, and nobody would notice
            message = f"old pictures cannot be deleted: {sentence_of(error)}; the disk will fill"
            await gate.note_fault(FaultKind.RETENTION, message)
        await asyncio.sleep(TIDY_S)


def remove_old(gate: Gate, part: int, now_us: int, since_us: int | None) -> int:
    """Remove pictures whose time is over, and strays in a part of the folder; none while the clock is in doubt."""
    if _is_clock_doubted(gate):
        return 0
    keeping, share = gate.config.retention, lambda: DataDisk.of(gate.config.data).free_share
    # Strays come first: they go although an archive refuses pictures.
    removed = remove_strays(gate.database, gate.pictures, part, now_us)
    return removed + sweep(gate.database, gate.pictures, keeping, now_us, since_us=since_us, free_share=share)


async def _beat(gate: Gate) -> None:
    while True:
        try:
            notify(ALIVE)  # the loop turns; a database that is away is no reason to start again
            await give_sign(gate)
        except Exception:  # whatever it is: without this task no fault would be seen, nor that one is over
            _log.exception("no heartbeat")
        await asyncio.sleep(BEAT_S)


async def give_sign(gate: Gate) -> None:
    """Look at the disk, and give a sign of life with the gate's own faults, if the database takes it."""

    def beat(connection: SqlConnection) -> None:
        states.beat(connection, Process.WEB, pid=os.getpid(), now_us=gate.now_us(), facts={"place": gate.place})

    warn_of_certificates(gate)
    look = asyncio.ensure_future(gate.look())
    # What it finds is written with the sign; a disk that hangs does not hold up the look at the database.
    await asyncio.wait([look], timeout=GLANCE_S)
    await gate.write_faults(beat)
    await look


def warn_of_certificates(gate: Gate) -> None:
    """Warn of the certificates of the config, as they were read at the start."""
    for certificate in gate.certificates:
        if message := certificate.warning(gate.now_us()):
            gate.faults.remind(FaultKind.CERTIFICATE, certificate.key, message)
        else:
            gate.faults.overcome(FaultKind.CERTIFICATE, certificate.key)


# Who can reach a service. What other machines reach has TLS and keys, or does not start.


def expect_keys(config: ServeConfig, database: Database) -> None:
    """Raise ConfigError if other machines reach the service, and it has no valid key; `load` has asked for TLS."""
    from coe.serve.database import keys

    if not config.listen.is_loopback and not database.read(keys.any_valid, now_us()):
        raise ConfigError(
            f"{config.listen.host} is reached from other machines, and there is no valid key; make one with "
            "`coe-serve add-key`"
        )


def expect_place(listen: Listen) -> None:
    """Raise ConfigError if nothing can listen as the config says: another program does, or a certificate is wrong."""
    if listen.certificate is not None and listen.private_key is not None:
        present(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), listen.certificate, listen.private_key, "listen")
    with socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listen.host, listen.port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {listen.host}, port {listen.port}: {error.strerror or error}; stop the program "
                "that uses it, or give another `listen.port`"
            ) from None
