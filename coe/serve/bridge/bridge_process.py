"""The bridge as a process. It ends in order at SIGTERM, whatever a sink is doing."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

from coe.serve.bridge.outbox_relay import OutboxRelay
from coe.serve.bridge.sink_section import sinks_of
from coe.serve.bridge.sinks import Sink
from coe.serve.clock import now_us
from coe.serve.database import outbox, states
from coe.serve.database.connecting import Database, open_database
from coe.serve.database.database_errors import DatabaseError
from coe.serve.database.migration import expect_newest
from coe.serve.enums import Process
from coe.serve.service_config import ServeConfig

BEAT_S = 2.0
GRACE_S = 3.0
"""How long a sink may take to finish what it sends when the bridge ends; what was not acknowledged is sent again."""


def run(config: ServeConfig) -> None:
    """Tell all sinks until SIGTERM or SIGINT; raises ConfigError if it cannot begin."""
    sinks = list(sinks_of(config.station, config.sinks))
    database = open_database(config.database_url)
    expect_newest(database)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        tell(sinks, database, stop)
    finally:
        database.close()


def tell(sinks: list[Sink], database: Database, stop: threading.Event) -> None:
    """Make these the sinks, and tell each on a thread of its own until `stop`; raises DatabaseError at the start."""
    with database.writing() as connection:
        outbox.register_sinks(connection, [sink.name for sink in sinks], now_us())
    # Daemons: a sink that hangs does not keep the process alive.
    threads = [
        threading.Thread(target=OutboxRelay(sink, database, stop).run, name=f"coe-sink-{sink.name}", daemon=True)
        for sink in sinks
    ]
    for thread in threads:
        thread.start()
    while True:
        _beat(database, sinks)
        if stop.wait(BEAT_S):
            break
    for thread in threads:
        thread.join(GRACE_S)


def _beat(database: Database, sinks: list[Sink]) -> None:
    """Give a sign of life, as long as the database takes it."""
    facts = {"sinks": [sink.name for sink in sinks]}
    with suppress(DatabaseError), database.writing() as connection:
        states.beat(connection, Process.BRIDGE, pid=os.getpid(), now_us=now_us(), facts=facts)
