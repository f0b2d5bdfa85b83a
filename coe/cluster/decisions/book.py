"""The books of a placement: the seconds that each box works and loads, by board, and the bytes that it holds.

Every number of the objective (`coe.cluster.decisions.place_experts`) is read here, and depends only on what lies where.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coe.helpers.arithmetic import added

Floats = npt.NDArray[np.float64]

WHOLE = ""
"""The row that counts the images of all boards together."""


@dataclass(frozen=True, slots=True)
class Size:
    """A burden in three numbers: seconds of work, seconds of loads, and bytes."""

    work_s: float
    loads_s: float
    held_bytes: float


@dataclass(frozen=True, slots=True)
class Burden:
    """The work, loads and bytes that an expert, or a group, puts on its box, for each image of the cluster.

    `work_s` and `loads_s` are seconds of a processor and of the disk, by board; both name the same boards, and WHOLE.
    An expert that is worth holding asks for `held_bytes` instead of loads.
    """

    work_s: Mapping[str, float]
    loads_s: Mapping[str, float]
    held_bytes: float

    @property
    def size(self) -> Size:
        """The burden in three numbers."""
        return Size(self.work_s.get(WHOLE, 0.0), self.loads_s.get(WHOLE, 0.0), self.held_bytes)

    def part(self, share: float) -> Burden:
        """Return the burden of a replica that takes a share of the images; it holds all bytes."""
        return Burden(
            {board: seconds * share for board, seconds in self.work_s.items()},
            {board: seconds * share for board, seconds in self.loads_s.items()},
            self.held_bytes,
        )


def joint(burdens: Iterable[Burden]) -> Burden:
    """Return the sum of burdens."""
    burdens = tuple(burdens)
    return Burden(
        _by_board(burden.work_s for burden in burdens),
        _by_board(burden.loads_s for burden in burdens),
        added(burden.held_bytes for burden in burdens),
    )


def _by_board(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for board, seconds in part.items():
            total[board] = total.get(board, 0.0) + seconds
    return total


class Book:
    """What has been put on each box so far. Vectors have an entry for each box, in the order of the boxes.

    `mean_s` is the mean over all boxes of the seconds that a board asks of a box, for each image of the cluster. Bytes
    beyond a budget displace the experts that are worth least: that costs `worth_s` of loads for each byte.
    """

    def __init__(
        self, budgets: Sequence[int], speeds: Sequence[float], mean_s: Mapping[str, float], worth_s: float
    ) -> None:
        self.budget_bytes, self.speeds = np.array(budgets, dtype=np.float64), np.array(speeds)
        # A board that nobody uses weighs nothing: the inverse of so few seconds is no number.
        self._weight = {
            board: 0.5 / seconds if seconds >= sys.float_info.min else 0.0 for board, seconds in mean_s.items()
        }
        self._worth_s = worth_s
        self._work_s = {board: np.zeros(len(budgets)) for board in mean_s}
        self._loads_s = {board: np.zeros(len(budgets)) for board in mean_s}
        self._held_bytes = np.zeros(len(budgets))

    def __repr__(self) -> str:
        return f"<Book of {len(self.speeds)} boxes, the busiest {self.busy_s().max():.6f} s an image>"

    def busy_s(self) -> Floats:
        """Return the seconds of work and loads of each box, for each image of the cluster."""
        busy_s: Floats = self._work_s[WHOLE] + self._loads_s[WHOLE] + self._displaced_s(self._held_bytes)
        return busy_s

    def objective(self) -> float:
        """Return the second sum of the objective: how unevenly boxes work and load."""
        total = 0.0
        for board, weight in self._weight.items():
            loads_s = self._loads_s[board]
            if board == WHOLE:
                loads_s = loads_s + self._displaced_s(self._held_bytes)
            total += weight * float((self._work_s[board] ** 2 + loads_s**2).sum())
        return total

    def rise(self, burden: Burden) -> Floats:
        """Return by how much the objective would rise with a burden, for each box that might take it."""
        rises = np.zeros(len(self.speeds))
        for board, seconds in burden.work_s.items():
            work_s = seconds / self.speeds
            before_s, loads_s = self._loads_s[board], np.full(len(self.speeds), burden.loads_s[board])
            if board == WHOLE:
                displaced_s = self._displaced_s(self._held_bytes)
                before_s = before_s + displaced_s
                loads_s = loads_s + self._displaced_s(self._held_bytes + burden.held_bytes) - displaced_s
            rises += self._weight[board] * (
                work_s * (2 * self._work_s[board] + work_s) + loads_s * (2 * before_s + loads_s)
            )
        return rises

    def add(self, burden: Burden, box: int) -> None:
        """Put a burden on a box."""
        self._post(burden, box, 1)

    def remove(self, burden: Burden, box: int) -> None:
        """Take a burden off the box that it was put on."""
        self._post(burden, box, -1)

    def _post(self, burden: Burden, box: int, sign: int) -> None:
        for board, seconds in burden.work_s.items():
            self._work_s[board][box] += sign * seconds / self.speeds[box]
            self._loads_s[board][box] += sign * burden.loads_s[board]
        self._held_bytes[box] += sign * burden.held_bytes

    def _displaced_s(self, held_bytes: Floats) -> Floats:
        """Return the seconds of loads of the experts that find no room."""
        displaced_s: Floats = self._worth_s * np.maximum(0.0, held_bytes - self.budget_bytes)
        return displaced_s
