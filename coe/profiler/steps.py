"""The progress of profiling, in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


class ProgressSteps:
    """ProgressSteps of roughly known lengths in seconds; the part done of a step adds to the steps before it.

    `say` gets sentences; `step` gets the name of the current step, the seconds done, and the seconds in all.
    """

    def __init__(self, say: Callable[[str], None], step: Callable[[str, float, float], None]) -> None:
        self.say, self._step = say, step
        self._total_s = self._before_s = self._length_s = 0.0
        self._coming: Iterator[tuple[str, float]] = iter(())
        self._what = ""

    def expect(self, lengths_s: Sequence[tuple[str, float]]) -> None:
        """Take the names and seconds of all steps, in their order."""
        self._coming, self._total_s = iter(lengths_s), sum(length for _, length in lengths_s)

    def begin(self, what: str) -> None:
        """Go on to a step; steps before it that did not begin count as done."""
        while self._what != what:
            self._before_s += self._length_s
            self._what, self._length_s = next(self._coming)
        self.part(0.0)

    def part(self, done: float) -> None:
        """Report how much of the current step is done, 0 to 1."""
        self._step(self._what, self._before_s + min(1.0, done) * self._length_s, self._total_s)
