"""Searches the number of experts to keep loaded, and the number of executors; no search tries a number twice.

The caller gives a function for the throughput, measured or simulated; it returns None for a number that does not fit.
The caller gives the random generator, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import LinearRegression, linear_regression

from coe.config import counted
from coe.errors import ConfigError
from coe.inspector.profile import ExecutorsPoint, WindowPoint

WINDOW = 15
"""The paper's initial window of the search for memory, in experts (section 5.3)."""
MARGIN = 0.05
"""The paper's error margin: a throughput may be below the line by this share (section 5.3)."""
FIRST = 2
"""The line fits this many throughputs. The paper says N; its search for task A stops at the third (28 to 39)."""
GAIN = 0.01
"""A gain below this share is not worth another sample, or another executor."""

Throughput = Callable[[int], float | None]


@dataclass(frozen=True, slots=True)
class MemorySearch:
    """The samples in their order, and the chosen number of experts.

    A sample at the upper bound of a window names the window; a sample inside a window has `lower` equal to `upper`.
    """

    points: tuple[WindowPoint, ...]
    chosen: int
    reason: str


@dataclass(frozen=True, slots=True)
class ExecutorSearch:
    """The samples in their order, and the chosen number of executors by device.

    The search does not know threads: `threads` of the points is empty, and the caller fills it in.
    """

    points: tuple[ExecutorsPoint, ...]
    chosen: dict[str, int]
    reason: str


def windows() -> Iterator[int]:
    """Yield the upper bounds of the paper's decaying windows: 15, 28, 39, 48, ... (equation 1)."""
    size, upper, last = float(WINDOW), 0.0, 0
    while round(size) >= 1:
        upper += size
        if round(upper) > last:
            last = round(upper)
            yield last
        size *= 1 - WINDOW / 100


def search_memory(throughput: Throughput, most: int, *, faithful: Random | None = None) -> MemorySearch:
    """Find how many experts to keep loaded, at most `most` (paper section 4.4).

    Throughput is sampled at the upper bounds of the decaying windows until a throughput is below the line through the
    FIRST throughputs by more than MARGIN (equation 3), or the memory is full. The line is over the number of
    experts. Equation 2 may also mean the number of windows; their decay alone would then look like a fall.

    With `faithful` the number is drawn from that last window, as in the paper. Without, we depart from the paper,
    because its random number may be a bad one, and a throughput may be below the line while it still rises:

    - windows go on while the last sample is the best so far;
    - the paper's windows end at 100 experts whatever their size, since 1 + f + f^2 + ... = 100 / WINDOW; where
      throughput has not dropped by then, all experts that the board has are tried next;
    - then the gaps to the left and right of the best number are halved, the more promising gap first, until no curve
      that nowhere bends upwards could gain 1 % in them, or no number is left. If throughput has one peak and no bend
      upwards, the chosen number is within 1 % of the best; with a bend, it is as near the peak as the gaps are narrow.

    Both ways: a line that falls from the start is no upward trend, so the best so far is expected instead. Raises
    ConfigError if no number of experts fits.
    """
    search = _SampledMemory(throughput, most)
    stopped = search.slide(onward=faithful is None)
    if faithful is not None:
        return search.draw(faithful, stopped)
    return search.refine(stopped)


class _SampledMemory:
    """The samples of one search. `limit` is the largest number that may still fit."""

    def __init__(self, throughput: Throughput, most: int) -> None:
        self._throughput, self._most = throughput, most
        self.points: list[WindowPoint] = []
        self.speeds: dict[int, float] = {}
        self.failed: set[int] = set()
        self.limit = most
        self.window = (0, most)

    def sample(self, experts: int, lower: int | None = None, line: float | None = None) -> float | None:
        """Run with so many experts, once; None if they do not fit."""
        if experts > self.limit or experts in self.failed:
            return None
        if experts not in self.speeds:
            speed = self._throughput(experts)
            if speed is None:
                self.failed.add(experts)
                # If a larger number fitted before, memory is not the reason.
                if experts > max(self.speeds, default=0):
                    self.limit = experts - 1
                return None
            self.speeds[experts] = speed
            start = experts if lower is None else lower
            self.points.append(WindowPoint(lower=start, upper=experts, images_per_s=speed, line=line))
        return self.speeds[experts]

    @property
    def best(self) -> int:
        """The number with the highest throughput; of equals the largest."""
        return max(self.speeds, key=lambda experts: (self.speeds[experts], experts))

    def slide(self, *, onward: bool) -> str:
        """Slide the window until throughput drops; return why it stopped."""
        line: LinearRegression | None = None
        fallen, lower = "", 0
        # All experts are tried beyond the last window, except in the paper's own search.
        for bound in [*windows(), *([self._most] if onward else [])]:
            upper = min(bound, self._most)
            if upper <= lower:
                break
            expected = max(self.speeds.values(), default=0.0)
            if line is None and len(self.speeds) >= FIRST:
                line = linear_regression(list(self.speeds)[:FIRST], list(self.speeds.values())[:FIRST])
                self.points = [point.model_copy(update={"line": _foretold(line, point.upper)}) for point in self.points]
            if line is not None and line.slope > 0:
                expected = _foretold(line, upper)
            if not fallen:
                self.window = (lower, upper)
            speed = self.sample(upper, lower, _foretold(line, upper) if line else None)
            if speed is None:
                return fallen or f"{upper} experts leave no memory for a batch"
            if speed < expected * (1 - MARGIN) and not fallen:
                fallen = (
                    f"throughput with {upper} experts, {speed:.3g} images/s, is below the "
                    f"expected {expected:.3g} by {1 - speed / expected:.1%} (margin {MARGIN:.0%})"
                )
            if fallen and not (onward and self.best == upper):
                return fallen
            lower = upper
        if fallen:
            return fallen
        return "all experts fit" if lower == self._most else "the windows ended before throughput dropped"

    def draw(self, faithful: Random, stopped: str) -> MemorySearch:
        """Choose any number of the last window, as the paper does; draw again if the number does not fit."""
        while self.limit >= 1:
            lower, upper = self.window
            low, high = min(max(1, lower), self.limit), min(upper, self.limit)
            number = faithful.choice([number for number in range(low, high + 1) if number not in self.failed])
            if self.sample(number) is not None:
                return MemorySearch(
                    tuple(self.points), number, f"{stopped}; {number} was drawn from the window {lower} to {upper}"
                )
        raise ConfigError(_NOTHING_FITS)

    def refine(self, stopped: str) -> MemorySearch:
        """Halve the gaps next to the best number while they promise a gain, then choose the best number."""
        while (number := self._promising()) is not None:
            self.sample(number)
        if not self.speeds:
            raise ConfigError(_NOTHING_FITS)
        best = self.best
        highest = self.speeds[best]
        if self._most in self.speeds and self.speeds[self._most] >= highest * (1 - GAIN):
            return MemorySearch(
                tuple(self.points), self._most, f"all {self._most} experts fit, and no smaller number is faster"
            )
        gain = f"{best} experts gave the highest throughput of {len(self.speeds)} numbers tried, {highest:.3g} images/s"
        return MemorySearch(tuple(self.points), best, f"{stopped}; {gain}")

    def _promising(self) -> int | None:
        """Return the middle of the more promising gap next to the best number; None if neither promises a gain."""
        # With no expert loaded nothing runs.
        failed = {experts: 0.0 for experts in self.failed if experts <= self.limit}
        samples = sorted({0: 0.0, **failed, **self.speeds}.items())
        # Numbers beyond the largest sample may still fit.
        ends = [*(x for x, _ in samples), self.limit + 1]
        at = ends.index(self.best) if self.speeds else 0
        gaps: list[tuple[float, int]] = []
        for index in {max(0, at - 1), at}:
            left, right = ends[index], ends[index + 1]
            if right - left > 1:
                gaps.append((_ceiling(samples, index, right), (left + right) // 2))
        highest = max(self.speeds.values(), default=0.0)
        ceiling, number = max(gaps, default=(0.0, 0))
        return number if ceiling > highest * (1 + GAIN) else None


_NOTHING_FITS = (
    "not even one expert fits with the activations of one image; give a larger memory budget, or fewer executors"
)


def _foretold(line: LinearRegression, experts: int) -> float:
    """Return the images a second that the line through the first throughputs predicts (equation 2)."""
    return line.slope * experts + line.intercept


def _ceiling(samples: Sequence[tuple[int, float]], index: int, right: int) -> float:
    """Return the highest value of a curve that nowhere bends upwards, between a sample and the next one or `right`."""
    # The curve lies under the line through the two samples left of the gap, and under the line through the two right.
    x, y = samples[index]
    rise = (y - samples[index - 1][1]) / (x - samples[index - 1][0]) if index else math.inf
    if index + 1 == len(samples):
        return max(y, y + rise * (right - 1 - x)) if index else math.inf
    next_x, next_y = samples[index + 1]
    fall = math.inf
    if index + 2 < len(samples):
        fall = (next_y - samples[index + 2][1]) / (samples[index + 2][0] - next_x)
    width = next_x - x
    from_left = y + max(0.0, rise) * width
    from_right = next_y + max(0.0, fall) * width
    if math.isinf(from_left) or math.isinf(from_right) or rise <= 0 or fall <= 0:
        return max(y, next_y, min(from_left, from_right))
    # Where the rising line from the left meets the falling line from the right.
    meet = min(max((next_y - y + fall * width) / (rise + fall), 0.0), float(width))
    return max(y, next_y, min(y + rise * meet, next_y + fall * (width - meet)))


def search_executors(
    throughput: Callable[[dict[str, int]], float | None], devices: Sequence[str], most: Mapping[str, int]
) -> ExecutorSearch:
    """Add executors of the first device while throughput rises by more than 1 %, then those of the next (figure 17).

    The number of a device is kept while executors of the next device are added; a device that does not help is not in
    `chosen`. The paper tries a few more than it needs; we stop at the first that does not help: each costs a run.
    Raises ConfigError if no executor fits at all.
    """
    points: list[ExecutorsPoint] = []
    chosen: dict[str, int] = {}
    best = 0.0
    reasons = []
    for device in devices:
        why = f"{most.get(device, 0)} were allowed"
        for number in range(1, most.get(device, 0) + 1):
            numbers = {**chosen, device: number}
            speed = throughput(dict(numbers))
            if speed is None:
                why = f"{number} do not fit"
                break
            points.append(ExecutorsPoint(executors=numbers, threads={}, images_per_s=speed))
            if len(points) > 1 and speed <= best * (1 + GAIN):
                change = speed / best - 1 if best else 0.0
                why = f"with {number} throughput is {abs(change):.1%} {'lower' if change < 0 else 'higher'}"
                break
            chosen, best = numbers, speed
        reasons.append(f"{counted(chosen.get(device, 0), 'executor')} on {device}: {why}")
    if not chosen:
        raise ConfigError(_NOTHING_FITS)
    return ExecutorSearch(tuple(points), chosen, "; ".join(reasons))
