"""A bridge on a thread, which tells sinks until the block ends."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from waiting import eventually

from coe.serve.bridge import bridge_process
from coe.serve.bridge.sinks import Sink
from coe.serve.database import fault_log, outbox
from coe.serve.database.connecting import Database


@contextmanager
def bridged(database: Database, sinks: Iterable[Sink]) -> Iterator[None]:
    stop, told = threading.Event(), list(sinks)
    bridge = threading.Thread(target=bridge_process.tell, args=(told, database, stop))
    bridge.start()
    try:
        eventually(lambda: {sink.name for sink in told} == {queue.sink for queue in queues(database)})
        yield
    finally:
        stop.set()
        bridge.join()


def queues(database: Database) -> list[outbox.SinkQueue]:
    with database.reading() as connection:
        return outbox.queues(connection)


def waiting(database: Database, sink: str) -> int:
    return next(queue.waiting for queue in queues(database) if queue.sink == sink)


def is_faulty(database: Database) -> bool:
    """Whether a sink of this database cannot be told."""
    with database.reading() as connection:
        return bool(fault_log.open_faults(connection))
