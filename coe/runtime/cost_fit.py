"""Numbers derived from measured batches: the paper's K and B, the largest useful batch, the memory of a batch.

Other work on the machine only ever adds time, so the median of the faster half of the repeats represents them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from coe import config
from coe.helpers.strict_model import Seconds, StrictModel

ON_THE_LINE = 0.05
"""A batch size lies on the line if its time differs from the line by at most this share of the time."""

_LEAST_SLOPE = 1e-3
"""The least K, as a share of the best average latency: time never falls with the number of images."""


class LatencyLine(StrictModel):
    """The paper's K and B, and the median relative error of the line over the sizes that it was fitted to."""

    per_image_s: Seconds
    base_s: Seconds
    error: Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class BatchMemory:
    """A batch of n images holds at most `activation_bytes * n + workspace_bytes` bytes beside the weights."""

    activation_bytes: int
    workspace_bytes: int

    def bytes(self, images: int) -> int:
        """Return the bytes of a batch."""
        return self.activation_bytes * images + self.workspace_bytes


def typical(repeats: Sequence[float]) -> float:
    """Return the time that represents repeats of one measurement: the median of their faster half."""
    ranked = sorted(repeats)
    return statistics.median(ranked[: (len(ranked) + 1) // 2])


def spread(repeats: Sequence[float]) -> float:
    """Return the interquartile range of repeats over their median; 0 for fewer than two."""
    if len(repeats) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(repeats, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0


def fit(times: Mapping[int, float]) -> LatencyLine:
    """Fit K and B to the latencies of batches, in seconds by size, over the linear part of them.

    Least squares of the relative errors, with K > 0 and B >= 0. To find the linear part: as long as any size lies off
    the line by more than `ON_THE_LINE`, the size without which the line is best is left out: the smallest or the
    largest where times bend, another where other work disturbed it. At least half of the sizes, and at least three,
    are kept. Raises ValueError if there is no size, or a time that is
    not above 0.
    """
    if not times or min(times) < 1 or min(times.values()) <= 0:
        raise ValueError(f"no line goes through {dict(times)}: sizes and times must be above 0")
    sizes = sorted(times)
    least = max(3, (len(sizes) + 1) // 2)
    best = _through(times, sizes)
    while len(sizes) > least and max(_errors(times, sizes, best)) > ON_THE_LINE:
        parts = [sizes[:place] + sizes[place + 1 :] for place in range(len(sizes))]
        lines = [(part, _through(times, part)) for part in parts]
        sizes, best = min(lines, key=lambda line: max(_errors(times, *line)))
    k, b = best
    return LatencyLine(per_image_s=k, base_s=b, error=statistics.median(_errors(times, sizes, best)))


def plateau(times: Mapping[int, float], gain: float = config.LITTLE_GAIN) -> int:
    """Return the size at which the average latency plateaus (the paper's maximum batch, section 4.5).

    That is the smallest size such that no larger size has an average lower by `gain` (0.05: 5 %) or more.
    """
    averages = {size: times[size] / size for size in sorted(times)}
    for size, average in averages.items():
        if all(later > (1 - gain) * average for other, later in averages.items() if other > size):
            return size
    raise ValueError("no size was measured")


def batch_memory(held: Mapping[int, int], least_bytes: int = 0) -> BatchMemory:
    """Return a bound on the memory of batches, from the bytes measured by size: no measured batch exceeds it.

    An image counts at least `least_bytes`. The slope is the slope from the smallest to the largest size.
    """
    small, large = min(held), max(held)
    slope = -((held[small] - held[large]) // max(1, large - small))
    image = max(least_bytes, slope)
    return BatchMemory(image, max(0, *(taken - size * image for size, taken in held.items())))


def _through(times: Mapping[int, float], sizes: Sequence[int]) -> tuple[float, float]:
    """Return the K >= the least slope and the B >= 0 that minimise the sum of ((K n + B - t) / t)**2."""
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
