"""Where a calibration tells what it does, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


class Steps:
    """Steps whose lengths are known roughly, in seconds; what is done of a step adds to those before it.

    `say` is told sentences, `step` the step that is being done, and how many seconds of how many in all are done.
    """

    def __init__(self, say: Callable[[str], None], step: Callable[[str, float, float], None]) -> None:
        self.say, self._step = say, step
        self._total_s = self._before_s = self._length_s = 0.0
        self._coming: Iterator[tuple[str, float]] = iter(())
        self._what = ""

    def expect(self, lengths_s: Sequence[tuple[str, float]]) -> None:
        """Note the steps that come, in their order."""
        self._coming, self._total_s = iter(lengths_s), sum(length for _, length in lengths_s)

    def begin(self, what: str) -> None:
        """Go on to a step; those before it that were not begun count as done."""
        while self._what != what:
            self._before_s += self._length_s
            self._what, self._length_s = next(self._coming)
        self.part(0.0)

    def part(self, done: float) -> None:
        """Note how much of this step is done, 0 to 1."""
        self._step(self._what, self._before_s + min(1.0, done) * self._length_s, self._total_s)
