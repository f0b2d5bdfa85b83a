"""Times of batches by size. They are taken in rounds, up and down in turn, so that whatever slows the machine hits all
sizes alike.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field

from coe.runtime.fit import plateau, spread
from coe.runtime.trial import Trial

_LOOK = 8
"""Sizes up to this are looked at whatever the first times say, which may be disturbed."""
_LEAST = 3
"""So many sizes are looked at whatever the time."""
_ROUNDS = 5
_SMALL_SPREAD = 0.05
_CLIMB = 0.6
"""The part of the time limit in which all sizes must have run for the first time."""
_BATCHES = 0.9
"""The part of the time limit that batches take; the rest is for loads and images."""


@dataclass(slots=True)
class Pace:
    """How much of the time has passed, and whether somebody wants it to end."""

    limit_s: float
    tick: Callable[[float], None]
    stop: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.perf_counter)

    def restart(self) -> None:
        """Let the time begin now."""
        self.began = time.perf_counter()

    def passed(self) -> float:
        """Return the part of the time limit that has passed."""
        return (time.perf_counter() - self.began) / max(self.limit_s, 1e-9)

    def step(self) -> None:
        """Between two batches: tell how far it is, and end here if that is wanted."""
        if self.stop.is_set():
            raise CancelledError
        self.tick(min(0.99, self.passed()))


def climb(trial: Trial, sizes: Sequence[int], pace: Pace) -> tuple[dict[int, int], dict[int, list[float]]]:
    """Run each size for the first time, as far as it is of use; return the bytes held and the first times, by size."""
    held: dict[int, int] = {}
    repeats: dict[int, list[float]] = {}
    for n, following in zip(sizes, [*sizes[1:], None], strict=True):
        pace.step()
        held[n] = trial.batch_bytes(n)
        pace.step()
        repeats[n] = [trial.batch_s(n)]
        if n >= _LOOK and n >= 2 * plateau({size: times[0] for size, times in repeats.items()}):
            break
        # The next one runs three times.
        if (
            following
            and len(held) >= _LEAST
            and pace.passed() + 3 * repeats[n][0] * following / n / pace.limit_s > _CLIMB
        ):
            break
    return held, repeats


def rounds(trial: Trial, repeats: dict[int, list[float]], pace: Pace) -> None:
    """Time all sizes again and again, until the times of each lie close together or the time is up."""
    done = 0
    while done < _ROUNDS or max(spread(each) for each in repeats.values()) > _SMALL_SPREAD:
        done += 1
        for n in sorted(repeats, reverse=bool(done % 2)):
            if pace.passed() > _BATCHES:
                return
            pace.step()
            repeats[n].append(trial.batch_s(n))
