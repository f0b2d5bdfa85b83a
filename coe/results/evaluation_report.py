"""The report of an evaluation: the page of a run's report, with rates by expert, and the pictures that are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coe import config
from coe.core import Result
from coe.helpers.files import write_atomically
from coe.helpers.rates import Rate
from coe.results.report import page
from coe.results.report_cards import PixelSource, card
from coe.results.summary import RunFigures, summarise
from coe.store.exam import ExamRow


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """What an expert's pictures show by the rules of components where they fare alike; a rate is None without parts."""

    expert: str
    components: tuple[str, ...]
    pictures: int
    as_labelled: int
    escapes: Rate | None
    false_calls: Rate | None


@dataclass(frozen=True, slots=True)
class WrongPicture:
    """A picture that is judged otherwise than it is labelled, and what is wrong with it, for people."""

    result: Result
    said: str


def write_evaluation(
    path: Path,
    board: str,
    rows: Sequence[EvaluationRow],
    wrong: Sequence[WrongPicture],
    failed: Sequence[Result],
    source: PixelSource,
    exams: Sequence[ExamRow] = (),
    *,
    confidence: float,
) -> None:
    """Write the report, as a whole or not at all: all rates, and the first `config.REPORT_PICTURES` wrong pictures.

    `exams` are those of the board's experts, `failed` the pictures that could not be judged. Raises DiskFull, or
    NotWritten for another reason.
    """
    shown = wrong[: config.REPORT_PICTURES]
    summary = summarise([one.result for one in wrong], RunFigures(board))
    write_atomically(
        path,
        page(
            "evaluation.html.j2",
            board=board,
            summary=summary,
            rows=rows,
            confidence=confidence,
            cards=(card(one.result, source, config.REPORT_PICTURE_SIDE, one.said) for one in shown),
            shown=len(shown),
            left_out=len(wrong) - len(shown),
            gallery_components=sorted({one.result.request.component for one in shown}),
            boards=[],
            errors=failed,
            used=None,
            exams=exams,
        ),
    )
