"""Verdicts against the truth, counted in the words of the trade."""

from __future__ import annotations

from dataclasses import dataclass

from coe.core import Result, Verdict


@dataclass(slots=True)
class Count:
    """Verdicts against the truth. `escapes` are bad parts called OK, `false_calls` good parts called NG."""

    good: int = 0
    bad: int = 0
    escapes: int = 0
    false_calls: int = 0
    good_reviewed: int = 0
    bad_reviewed: int = 0
    errors: int = 0

    def add(self, defect: str, result: Result) -> None:
        """Count one result of a part whose defect ("" for none) is known."""
        self.errors += result.verdict is None
        if defect:
            self.bad += 1
            self.escapes += result.verdict is Verdict.OK
            self.bad_reviewed += result.verdict is Verdict.REVIEW
        else:
            self.good += 1
            self.false_calls += result.verdict is Verdict.NG
            self.good_reviewed += result.verdict is Verdict.REVIEW

    @property
    def images(self) -> int:
        """Parts that were inspected."""
        return self.good + self.bad

    @property
    def wrong(self) -> int:
        """Verdicts that are not the truth."""
        return self.escapes + self.false_calls + self.good_reviewed + self.bad_reviewed + self.errors

    @property
    def accuracy(self) -> float:
        """Share of right verdicts."""
        return 1 - self.wrong / self.images if self.images else 1.0
