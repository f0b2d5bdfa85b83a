"""Compare a run with the true defects of rendered boards: `python -m apps.demo.verdicts RUN --images IMAGES`.

A verdict is right if it is OK for a good
part and NG for a bad one; REVIEW is never counted as right.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from apps.demo.production import read_truth
from coe.core import Result, Verdict
from coe.results.records import RESULTS, read


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


def counted(run: Path, images: Path) -> Count:
    """Count the verdicts of a run's folder against the truth of a folder of images."""
    truth, count = read_truth(images), Count()
    for result in read(run / RESULTS):
        request = result.request  # whose image has another name if it was cut from a whole board
        count.add(truth[f"{request.serial}/{request.refdes}__{request.component}.png"], result)
    return count


def sentence(count: Count) -> str:
    """Return a sentence on the right verdicts, false calls and escapes of a run."""
    ng = count.bad - count.escapes - count.bad_reviewed
    return (
        f"right verdicts: {count.accuracy:.1%} of {count.images}; of {count.bad} bad parts: {ng} NG, "
        f"{count.bad_reviewed} REVIEW, {count.escapes} OK (escapes); of {count.good} good parts: "
        f"{count.false_calls} NG, {count.good_reviewed} REVIEW"
    )


def main(arguments: list[str] | None = None) -> None:
    """Compare a run with the truth, and print a sentence."""
    parser = argparse.ArgumentParser(prog="python -m apps.demo.verdicts", description=__doc__)
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("--images", type=Path, required=True, help="the boards' images")
    options = parser.parse_args(arguments)
    print(sentence(counted(options.run, options.images)))


if __name__ == "__main__":
    main()
