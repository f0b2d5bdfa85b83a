"""Numbers drawn from measured batches: the paper's K and B, the largest useful batch, what a batch holds.

Other work on the machine only ever adds time, so what stands for repeats is the median of the faster half of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from coe.schema import Record, Seconds

ON_THE_LINE = 0.05
"""A size whose time is further from the line, in parts of that time, does not lie on it."""

_LEAST_SLOPE = 1e-3
"""The least K, in parts of the best average latency: time never falls with the number of images."""


class Line(Record):
    """The paper's K and B, and the median relative error of the line on the sizes that it was fitted to."""

    per_image_s: Seconds
    base_s: Seconds
    error: Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a batch of n holds at most beside the weights: `activation_bytes * n + workspace_bytes`."""

    activation_bytes: int
    workspace_bytes: int

    def bytes(self, images: int) -> int:
        """Return the bytes of a batch."""
        return self.activation_bytes * images + self.workspace_bytes


def typical(repeats: Sequence[float]) -> float:
    """Return what stands for repeats of one thing: the median of the faster half of them."""
    ranked = sorted(repeats)
    return statistics.median(ranked[: (len(ranked) + 1) // 2])


def spread(repeats: Sequence[float]) -> float:
    """Return the interquartile range of repeats over their median; 0 for fewer than two."""
    if len(repeats) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(repeats, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0


def fit(times: Mapping[int, float]) -> Line:
    """Fit K and B to the latencies of batches, in seconds by size, over the linear part of them.

    Least squares of the relative errors, with K > 0 and B >= 0. The linear part is what is left when, as long as a
    size lies off the line by more than `ON_THE_LINE`, the smallest or the largest is left out, whichever gives the
    better line; at least half of the sizes, and three of them, are kept. Raises ValueError if there is no size, or a
    time that is not above 0.
    """
    if not times or min(times) < 1 or min(times.values()) <= 0:
        raise ValueError(f"no line goes through {dict(times)}: sizes and times must be above 0")
    sizes = sorted(times)
    least = max(3, (len(sizes) + 1) // 2)
    best = _through(times, sizes)
    while len(sizes) > least and max(_errors(times, sizes, best)) > ON_THE_LINE:
        ends = [(part, _through(times, part)) for part in (sizes[:-1], sizes[1:])]
        sizes, best = min(ends, key=lambda end: max(_errors(times, *end)))
    k, b = best
    return Line(per_image_s=k, base_s=b, error=statistics.median(_errors(times, sizes, best)))


def plateau(times: Mapping[int, float], gain: float = 0.05) -> int:
    """Return the size at which the average latency plateaus (the paper's maximum batch, section 4.5).

    That is the smallest from which no larger one has an average lower by `gain` (0.05: 5 %) or more.
    """
    average = {size: times[size] / size for size in sorted(times)}
    for size, own in average.items():
        if all(later > (1 - gain) * own for other, later in average.items() if other > size):
            return size
    raise ValueError("no size was measured")


def memory(held: Mapping[int, int], least_bytes: int = 0) -> Memory:
    """Return a bound on what batches hold, from the bytes measured by size: none of them is above it.

    An image counts `least_bytes` at least. The slope is that from the smallest to the largest size.
    """
    small, large = min(held), max(held)
    slope = -((held[small] - held[large]) // max(1, large - small))
    image = max(least_bytes, slope)
    return Memory(image, max(0, *(taken - size * image for size, taken in held.items())))


def _through(times: Mapping[int, float], sizes: Sequence[int]) -> tuple[float, float]:
    """Return K and B that minimise the sum of ((K n + B - t) / t)**2, within what makes sense."""
    weights = [times[n] ** -2 for n in sizes]
    w = sum(weights)
    wn = sum(v * n for v, n in zip(weights, sizes, strict=True))
    wnn = sum(v * n * n for v, n in zip(weights, sizes, strict=True))
    wt = sum(v * times[n] for v, n in zip(weights, sizes, strict=True))
    wnt = sum(v * n * times[n] for v, n in zip(weights, sizes, strict=True))
    determinant = w * wnn - wn * wn
    k = (w * wnt - wn * wt) / determinant if len(sizes) > 1 else wnt / wnn
    k = max(k, _LEAST_SLOPE * min(times[n] / n for n in sizes))
    b = (wt - k * wn) / w
    return (k, b) if b >= 0 and len(sizes) > 1 else (wnt / wnn, 0.0)


def _errors(times: Mapping[int, float], sizes: Sequence[int], line: tuple[float, float]) -> list[float]:
    k, b = line
    return [abs(k * n + b - times[n]) / times[n] for n in sizes]
