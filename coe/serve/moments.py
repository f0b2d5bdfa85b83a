"""Times of the service: UTC in whole microseconds since 1970. Law: only this module reads the wall clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DAY_US = 24 * HOUR_US


def now_us() -> int:
    """Return the time of the wall clock, which an administrator or a time server may set forwards or back."""
    return time.time_ns() // 1000


def hour_of(moment_us: int) -> int:
    """Return the beginning of the hour in which a moment lies."""
    return moment_us - moment_us % HOUR_US


def microseconds(seconds: float) -> int:
    """Return a length of time in whole microseconds."""
    return round(seconds * SECOND_US)


def iso(moment_us: int) -> str:
    """Return a moment as ISO 8601 text in UTC, as "2026-03-01T08:00:00.000250Z"."""
    moment = datetime.fromtimestamp(moment_us // SECOND_US, UTC).replace(microsecond=moment_us % SECOND_US)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
