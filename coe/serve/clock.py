"""Times of the service: UTC in whole microseconds since 1970. Only this module reads the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DAY_US = 24 * HOUR_US
_Moments = TypeVar("_Moments", int, "ColumnElement[int]")


def now_us() -> int:
    """Return the time of the wall clock, which an administrator or a time server may set forwards or back."""
    return time.time_ns() // 1000


class SteadyClock:
    """The wall clock without its jumps forward, for what cannot be undone: old pictures go by it.

    It is never ahead of the wall clock, nor of the time that has passed since it was made, or has caught up.
    """

    def __init__(self, wall_us: Callable[[], int] = now_us, passed_s: Callable[[], float] = time.monotonic) -> None:
        self._wall_us, self._passed_s = wall_us, passed_s
        self.catch_up()

    def catch_up(self) -> None:
        """Take the wall clock as it is now, because a person has looked at it."""
        self._begun_us, self._begun_s = self._wall_us(), self._passed_s()

    def now_us(self) -> int:
        """Return the time."""
        return min(self._wall_us(), self._begun_us + microseconds(self._passed_s() - self._begun_s))


def hour_of(moment_us: _Moments) -> _Moments:
    """Return the beginning of the hour in which a moment lies; of a column of moments, that of each."""
    return moment_us - moment_us % HOUR_US


def microseconds(seconds: float) -> int:
    """Return a length of time in whole microseconds."""
    return round(seconds * SECOND_US)


def moment_us(moment: datetime) -> int:
    """Return a time that has its offset in microseconds."""
    return int(moment.replace(microsecond=0).timestamp()) * SECOND_US + moment.microsecond


def iso(moment_us: int) -> str:
    """Return a moment as ISO 8601 text in UTC, as "2026-03-01T08:00:00.000250Z"."""
    moment = datetime.fromtimestamp(moment_us // SECOND_US, UTC).replace(microsecond=moment_us % SECOND_US)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Clocks:
    """The wall clock in UTC microseconds, and the monotonic clock in seconds."""

    now_us: Callable[[], int] = now_us
    now_s: Callable[[], float] = time.monotonic


CLOCKS = Clocks()
