"""The numbers that the paper's text states, each with its section. Numbers that only its pictures show are left out.

The paper is CoServe (sections 5.1 to 5.3). Devices go by the names of our presets for the paper's hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NUMA, UMA = "numa-rtx3080ti", "uma-m2"
BASELINES = ("samba", "samba-fifo", "samba-parallel")
CASUAL, BEST = "coserve-casual", "coserve"


@dataclass(frozen=True, slots=True)
class Span:
    """The least and the most of a number."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class BestAndCasual:
    """Throughput in images a second with the best and the casual configuration; the paper does not name the task."""

    best_images_per_s: float
    casual_images_per_s: float


@dataclass(frozen=True, slots=True)
class Switches:
    """Switches of CoServe, and of a baseline that the paper does not name."""

    device: str
    task: str
    baseline: int
    coserve: int


@dataclass(frozen=True, slots=True)
class Window:
    """The window of experts to load, the chosen number, and its throughput on the NUMA device."""

    low: int
    high: int
    chosen: int
    images_per_s: float


THROUGHPUT_RATIO: Mapping[str, Span] = {
    NUMA: Span(4.5, 10.5),  # section 5.2, figure 13
    UMA: Span(4.6, 12.0),  # section 5.2, figure 13
}
"""Throughput of CoServe over that of the baselines."""

CASUAL_RATIO: Mapping[str, float] = {
    NUMA: 8.5,  # section 5.2, figure 13
    UMA: 10.6,  # section 5.2, figure 13
}
"""Throughput of casual CoServe over that of the baselines, at most."""

BEST_AND_CASUAL: Mapping[str, tuple[BestAndCasual, ...]] = {
    NUMA: (
        BestAndCasual(24.5, 23.1),  # section 5.2, figure 13: the least loss, 5.71 %
        BestAndCasual(27.2, 22.1),  # section 5.2, figure 13: the greatest loss, 18.75 %
    )
}
SWITCHES = (
    Switches(NUMA, "B2", 1060, 65),  # section 5.2, figure 14: the greatest reduction, 93.87 %
    Switches(UMA, "B1", 293, 63),  # section 5.2, figure 14: the least reduction, 78.5 %
)
CASUAL_SWITCH_CUT: Mapping[str, Span] = {
    NUMA: Span(0.0128, 0.1818),  # section 5.2, figure 14
    UMA: Span(0.1648, 0.3113),  # section 5.2, figure 14
}
"""Share of the switches of casual CoServe that the best configuration saves."""

BEST_EXECUTORS: Mapping[str, str] = {"A": "3G+1C", "B": "4G+1C"}
"""The executors with the highest throughput by board, on both devices (section 5.3, figure 17)."""

WINDOWS: Mapping[str, Window] = {
    "A": Window(28, 39, 35, 25.4),  # section 5.3, figure 18
    "B": Window(31, 42, 34, 26.7),  # section 5.3, figure 18
}
"""The windows by board, on the GPU of the NUMA device."""


def board_of(task: str) -> str | None:
    """Return the board of one of the paper's tasks, or of a sample of its requests; None for any other task.

    A task with another tail of counts ("A1 narrow") counts as the paper's: the paper does not tell its tail.
    """
    return {"A": "A", "A1": "A", "A2": "A", "B": "B", "B1": "B", "B2": "B"}.get(task.partition(" ")[0])
