"""Local time and shifts, for people: pages and reports show them, and everything is stored in UTC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from coe.serve.clock import SECOND_US


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

    A shift that summer time makes longer or shorter has the hours that it has.

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
        days = range(1 - number // max(1, len(self.shifts)) - 2, 2)
        today = self.at(now_us).date()
        starts = [start for day in days for start in self._starts(today + timedelta(days=day))]
        found = [
            Shift(name, day, start_us, end_us)
            for (name, day, start_us), (_, _, end_us) in pairwise(sorted(starts, key=lambda start: start[2]))
            if start_us <= now_us
        ]
        return found[::-1][:number]

    def _starts(self, day: date) -> Iterator[tuple[str, date, int]]:
        for name, begins in self.shifts.items():
            moment = datetime.combine(day, begins, self.info).astimezone(UTC)
            yield name, day, int(moment.timestamp()) * SECOND_US
