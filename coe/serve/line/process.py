"""The line as a process."""

from __future__ import annotations

import signal

from coe.serve.config import ServeConfig
from coe.serve.database.migration import expect_newest
from coe.serve.database.opening import open_database
from coe.serve.line.product import Adjust
from coe.serve.line.station import Station


def run(config: ServeConfig, adjust: Adjust | None = None) -> None:
    """Decide boards until SIGTERM or SIGINT; raises ConfigError if it cannot begin."""
    database = open_database(config.database_url)
    expect_newest(database)
    station = Station(config, database, adjust=adjust)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: station.end())
    try:
        station.run()
    finally:
        database.close()
