"""What was measured, beside its goal. A figure has a goal unless nobody set any for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np


class Part(StrEnum):
    """The parts of the benchmark, in the order in which they run."""

    SPEED = "speed"
    DECISIONS = "decisions"
    INTAKE = "intake"
    PAGES = "pages"
    CLIENTS = "clients"
    PACE = "pace"
    SOAK = "soak"


@dataclass(frozen=True, slots=True)
class Aim:
    """What a figure must not exceed or, with `at_least`, must reach."""

    value: float
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure in `unit`, of so many `samples`; `note` says what else was seen in the same run."""

    part: Part
    name: str
    value: float
    unit: str
    samples: int
    goal: Aim | None = None
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; None without a goal."""
        if self.goal is None:
            return None
        return self.value >= self.goal.value if self.goal.at_least else self.value <= self.goal.value


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed."""
    return float(np.quantile(np.asarray(values, dtype=float), share))


def times_ms(
    part: Part, name: str, times_s: Sequence[float], p99_goal_ms: float | None, note: str = ""
) -> list[Measured]:
    """Return the median and the 99th percentile of times, in milliseconds."""
    goal = None if p99_goal_ms is None else Aim(p99_goal_ms)
    return [
        Measured(part, f"{name}, p50", 1e3 * quantile(times_s, 0.5), "ms", len(times_s)),
        Measured(part, f"{name}, p99", 1e3 * quantile(times_s, 0.99), "ms", len(times_s), goal, note),
    ]
