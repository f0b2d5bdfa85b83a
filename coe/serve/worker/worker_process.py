"""The worker as a process."""

from __future__ import annotations

import os
import signal
import sys

from coe.serve.database.connecting import open_database
from coe.serve.database.migration import expect_newest
from coe.serve.service_config import ServeConfig
from coe.serve.worker.line_watchers import LineHangs
from coe.serve.worker.product import Adjust
from coe.serve.worker.station import Station

HUNG = 3
"""The exit status of a worker that ended because an expert did not return."""


def run(config: ServeConfig, adjust: Adjust | None = None) -> None:
    """Decide boards until SIGTERM or SIGINT; raises ConfigError if it cannot begin.

    If an expert does not return, the process ends at once with the status HUNG.
    """
    database = open_database(config.database_url)
    expect_newest(database)
    station = Station(config, database, adjust=adjust)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: station.end())
    try:
        station.run()
    except LineHangs as hang:
        sys.stderr.write(f"worker: {hang}\n")
        sys.stderr.flush()
        # An exit in order would wait for the thread that never returns.
        os._exit(HUNG)
    finally:
        database.close()
