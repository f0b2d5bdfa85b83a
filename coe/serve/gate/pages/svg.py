"""Geometry of charts for inline SVG. Numbers in, coordinates out; templates hold the marks and the words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coe.serve.clock import DAY_US
from coe.serve.local_time import LocalTime

WIDTH, HEIGHT = 720, 220
"""The size of a chart in its own units."""
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28
_TICKS_X, _TICKS_Y = 6, 4
_MOST_DOTS = 100
"""With more points than this, dots would hide the line, so only points outside their limits have a dot."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a chart, with the text that is shown when somebody points at it."""

    x: float
    y: float
    text: str
    signals: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart: paths of the lines and the limits, dots, and the marks of both axes."""

    line: str
    lower: str
    upper: str
    mean: float | None
    dots: tuple[Dot, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class Spot:
    """A value at a time, None for a gap; with limits on control charts."""

    at_us: int
    value: float | None
    lower: float | None = None
    upper: float | None = None
    signals: bool = False


def draw(
    spots: Sequence[Spot], unit: str, local: LocalTime, *, factor: float = 1.0, mean: float | None = None
) -> Drawing | None:
    """Return a chart of values times `factor`, in `unit`, over local time; None if there is nothing to draw."""
    heights = [height for spot in spots for height in (spot.value, spot.lower, spot.upper) if height is not None]
    if not heights:
        return None
    low, high = _range(min(heights) * factor, max(heights) * factor, 100.0 if unit == "%" else math.inf)
    first, last = spots[0].at_us, spots[-1].at_us

    def x(at_us: int) -> float:
        share = (at_us - first) / (last - first) if last > first else 0.5
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(TOP + (high - value * factor) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    def path(values: Sequence[float | None]) -> str:
        parts, is_down = [], False
        for spot, value in zip(spots, values, strict=True):
            if value is not None:
                parts.append(f"{'L' if is_down else 'M'}{x(spot.at_us)} {y(value)}")
            is_down = value is not None
        return "".join(parts)

    dots = tuple(
        Dot(
            x(spot.at_us),
            y(spot.value),
            f"{local.at(spot.at_us):%d %b %H:%M}: {spot.value * factor:,.4g} {unit}",
            spot.signals,
        )
        for spot in spots
        if spot.value is not None and (spot.signals or len(spots) <= _MOST_DOTS)
    )
    step = max(1, -(-len(spots) // _TICKS_X))
    end = " %" if unit == "%" else ""
    form = "%d %b" if last - first > 3 * DAY_US else "%H:%M"
    return Drawing(
        line=path([spot.value for spot in spots]),
        lower=path([spot.lower for spot in spots]),
        upper=path([spot.upper for spot in spots]),
        mean=None if mean is None else y(mean),
        dots=dots,
        across=tuple(Tick(x(spot.at_us), f"{local.at(spot.at_us):{form}}") for spot in spots[::step]),
        up=tuple(Tick(y(value / factor), f"{value:,.6g}{end}") for value in _steps(low, high)),
    )


def _range(low: float, high: float, most: float) -> tuple[float, float]:
    """Return a range that holds the values with some room; one that begins at 0 if they are not far from it."""
    if low < 0.6 * high:
        low = min(0.0, low)
    room = 0.08 * (high - low) or abs(high) * 0.05 or 1.0
    return (low - room if low else 0.0), min(most, high + room)


def _steps(low: float, high: float) -> list[float]:
    rough = (high - low) / _TICKS_Y
    size: float = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
