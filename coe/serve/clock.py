"""Times of the service: UTC in whole microseconds since 1970. Only this module reads the wall clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pydantic import AfterValidator, BeforeValidator

from coe.errors import did_you_mean

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement


SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DAY_US = 24 * HOUR_US
_Moments = TypeVar("_Moments", int, "ColumnElement[int]")


def now_us() -> int:
    """Return the time of the wall clock, which an administrator or a time server may set forwards or back."""
    return time_ns() // 1000


class SteadyClock:
    """The wall clock without its jumps forward, for what cannot be undone, such as deleting old pictures."""

    def __init__(self, wall_us: Callable[[], int] = now_us, passed_s: Callable[[], float] = monotonic) -> None:
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
    now_s: Callable[[], float] = monotonic


CLOCKS = Clocks()


# Local time and shifts, for people: pages and reports show them, and everything is stored in UTC


def _zone(name: str) -> str:
    try:
        return str(ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = sorted(available_timezones())
        lacks = "" if known else "; this machine has no time zones: install its package tzdata"
        raise ValueError(f"there is no time zone '{name}'{did_you_mean(name, known)}{lacks}") from None


def _clock_time(given: Any) -> Any:
    """Return a time of day; YAML reads 14:00 without quotes as a number of minutes."""
    if isinstance(given, time):  # of a config that came from another process
        return given
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 24 * 60:
        given = f"{given // 60:02}:{given % 60:02}"
    try:
        if not re.fullmatch(r"[0-2][0-9]:[0-5][0-9]", given):
            raise ValueError
        return time.fromisoformat(given)
    except (TypeError, ValueError):
        raise ValueError(f'{given!r} is not a time of day; write it as "06:00"') from None


ZoneName = Annotated[str, AfterValidator(_zone)]
ShiftStart = Annotated[time, BeforeValidator(_clock_time)]


@dataclass(frozen=True, slots=True)
class Shift:
    """A shift from `start_us` on and before `end_us`, UTC microseconds; `day` is that on which it begins."""

    name: str
    day: date
    start_us: int
    end_us: int


@dataclass(frozen=True)
class LocalTime:
    """The time of a place, `zone` as "Europe/Berlin", and when each shift begins there; the last ends with the first.

    A shift that summer time makes longer or shorter has the hours that it has; of those that lie in an hour which it
    skips there is none.

    Example: `LocalTime("Europe/Berlin", {"early": time(6), "late": time(14)})`
    """

    zone: str = "UTC"
    shifts: Mapping[str, time] = field(default_factory=dict)

    @property
    def info(self) -> ZoneInfo:
        """The zone."""
        return ZoneInfo(self.zone)

    def at(self, moment_us: int) -> datetime:
        """Return a moment as the clock of the place shows it."""
        return datetime.fromtimestamp(moment_us / SECOND_US, self.info)

    def of(self, shown: datetime) -> datetime:
        """Return a time that a person wrote: the clock of the place shows it, unless it has an offset of its own."""
        return shown.replace(tzinfo=self.info) if shown.tzinfo is None else shown

    def shifts_until(self, now_us: int, number: int) -> list[Shift]:
        """Return the shift at a moment and those before it, the newest first; none if the place has no shifts."""
        days = range(-2 - number // max(1, len(self.shifts)), 2)
        today = self.at(now_us).date()
        starts = sorted((today + timedelta(days=day), at, name) for day in days for name, at in self.shifts.items())
        found, end_us = list[Shift](), None
        for day, at, name in reversed(starts):
            start_us = moment_us(datetime.combine(day, at, self.info))
            # One that begins in an hour which summer time skips would begin after those that begin at its end.
            start_us = start_us if end_us is None else min(start_us, end_us)
            if end_us is not None and start_us <= now_us and start_us < end_us:
                found.append(Shift(name, day, start_us, end_us))
            end_us = start_us
        return found[:number]
