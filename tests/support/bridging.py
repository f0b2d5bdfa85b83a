"""A bridge on a thread, which tells sinks until the block ends."""

import threading
from contextlib import contextmanager
from functools import partial

from serve_rows import NOON
from waiting import eventually

from coe.serve.bridge import outbox_relay
from coe.serve.bridge.sinks import EventFormat, Origin, Sink, SinkConnection, SinkFailed
from coe.serve.database import event_log, fault_log
from coe.serve.enums import EventKind

RELAY = """
import sys, threading
from pathlib import Path
from coe.serve.bridge import outbox_relay
from coe.serve.bridge import sinks
from coe.serve.database.connecting import open_database
from coe.serve.service_config import load
config, stop = load(Path(sys.argv[1])), threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set())).start()
sinks = sinks.sinks_of(config.station, config.sinks)
outbox_relay.tell(sinks, open_database(config.database_url), stop)
"""
"""A program that tells the sinks of a config file until its standard input ends."""


@contextmanager
def bridged(database, sinks):
    database.write(event_log.register_sinks, list(sinks), NOON)
    stop = threading.Event()
    bridge = threading.Thread(target=outbox_relay.tell, args=(sinks, database, stop))
    bridge.start()
    try:
        eventually(lambda: set(sinks) == {queue.sink for queue in queues(database)})
        yield
    finally:
        stop.set()
        bridge.join()


def queues(database):
    return database.read(event_log.queues)


def waiting(database, sink):
    return next(queue.waiting for queue in queues(database) if queue.sink == sink)


def is_faulty(database):
    return bool(database.read(fault_log.open_faults))


class Remembered(SinkConnection):
    """A sink that remembers what it was told; it fails while it is told to, and blocks while `gate` is closed."""

    def __init__(self):
        self.told = []
        self.shown = []
        self.connections = 0
        self.is_down = False
        self.fails_after = -1
        self.gate = threading.Event()
        self.gate.set()

    def connect(self):
        if self.is_down:
            raise SinkFailed("it is down")
        self.connections += 1

    def send(self, message):
        assert self.gate.wait(20)
        if self.is_down or len(self.told) == self.fails_after:
            raise SinkFailed("it went down")
        self.told.append(message)

    def show(self, status):
        self.shown.append(status)

    @property
    def numbers(self):
        return [message.body["body"].get("n") for message in self.told if message.name == "recipe.staged"]


def told(database, **sinks):
    return bridged(database, {name: partial(Sink, sink, EventFormat(Origin("aoi-1"))) for name, sink in sinks.items()})


def append(database, *numbers):
    with database.writing() as connection:
        for number in numbers:
            event_log.append(connection, EventKind.RECIPE_STAGED, NOON, {"n": number})
