"""Where a calibration tells what it does, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a calibration tells what it does: sentences, and the step that it is in with how much of all is done."""

    say: Callable[[str], None]
    step: Callable[[str, float, float], None]


class Steps:
    """Steps whose lengths are known roughly, in seconds; what is done of one adds to those before it."""

    def __init__(self, step: Callable[[str, float, float], None], lengths_s: Sequence[tuple[str, float]]) -> None:
        self._step, self._total_s, self._before_s = step, sum(length for _, length in lengths_s), 0.0
        self._coming = iter(lengths_s)
        self._what, self._length_s = "", 0.0

    def begin(self, what: str) -> None:
        """Go on to a step; those before it that were not begun count as done."""
        while self._what != what:
            self._before_s += self._length_s
            self._what, self._length_s = next(self._coming)
        self.part(0.0)

    def part(self, done: float) -> None:
        """Note how much of this step is done, 0 to 1."""
        self._step(self._what, self._before_s + min(1.0, done) * self._length_s, self._total_s)
