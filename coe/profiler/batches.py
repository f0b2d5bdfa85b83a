"""Times of batches by size. Rounds go through the sizes upwards and downwards in turn, so that a slow moment of the
machine hits all sizes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field

from coe.runtime.cost_fit import plateau, spread
from coe.runtime.trial import Trial

_LOOK = 8
"""All sizes up to this one run: the first times alone may be disturbed, and do not end the climb."""
_LEAST = 3
"""At least this many sizes run, however long they take."""
_ROUNDS = 5
_SMALL_SPREAD = 0.05
_CLIMB = 0.6
"""The part of the time limit in which all sizes must have run for the first time."""
_BATCHES = 0.9
"""The part of the time limit that batches take; the rest is for loads and images."""


@dataclass(slots=True)
class TimeLimit:
    """How much of the time limit has passed, and whether the measurement shall stop."""

    limit_s: float
    tick: Callable[[float], None]
    stop: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.perf_counter)

    def restart(self) -> None:
        """Start the time limit now."""
        self.began = time.perf_counter()

    def passed(self) -> float:
        """Return the part of the time limit that has passed."""
        return (time.perf_counter() - self.began) / max(self.limit_s, 1e-9)

    def step(self) -> None:
        """Report progress between two batches; raises CancelledError if `stop` is set."""
        if self.stop.is_set():
            raise CancelledError
        self.tick(min(0.99, self.passed()))


def climb(trial: Trial, sizes: Sequence[int], limit: TimeLimit) -> tuple[dict[int, int], dict[int, list[float]]]:
    """Run each size once until larger ones bring nothing; return the bytes that batches hold and the times, by size."""
    held: dict[int, int] = {}
    repeats: dict[int, list[float]] = {}
    for n, following in zip(sizes, [*sizes[1:], None], strict=True):
        limit.step()
        held[n] = trial.batch_bytes(n)
        limit.step()
        repeats[n] = [trial.batch_s(n)]
        if n >= _LOOK and n >= 2 * plateau({size: times[0] for size, times in repeats.items()}):
            break
        # The next size runs three times.
        if (
            following
            and len(held) >= _LEAST
            and limit.passed() + 3 * repeats[n][0] * following / n / limit.limit_s > _CLIMB
        ):
            break
    return held, repeats


def rounds(trial: Trial, repeats: dict[int, list[float]], limit: TimeLimit) -> None:
    """Time all sizes again and again, until the times of each lie close together or the time is up."""
    done = 0
    while done < _ROUNDS or max(spread(each) for each in repeats.values()) > _SMALL_SPREAD:
        done += 1
        for n in sorted(repeats, reverse=bool(done % 2)):
            if limit.passed() > _BATCHES:
                return
            limit.step()
            repeats[n].append(trial.batch_s(n))
