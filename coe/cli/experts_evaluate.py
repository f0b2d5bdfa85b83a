"""`coe-experts evaluate`: how a board's experts judge pictures whose truth is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from coe.board import rules
from coe.cli import experts_exam
from coe.cli.common import Exit, complain, out, point_out, wide
from coe.cli.console import table_of
from coe.cli.experts_calibrate import VerifiedOption, check_pictures, rates_text
from coe.cli.options import AllowKindOption, StoreOption
from coe.core import Failure, FailureKind, Request, Result
from coe.errors import CoeError, ConfigError, list_few
from coe.helpers.rates import CONFIDENCE
from coe.inspector import weights_used
from coe.pictures.photo_split import Purpose
from coe.results.evaluation_report import EvaluationRow, write_evaluation
from coe.results.report_cards import PixelSource
from coe.store.exam import warnings_of
from coe.store.store import Store

if TYPE_CHECKING:
    from coe.learn.answers import BoardExperts
    from coe.learn.evaluation import Evaluation
    from coe.learn.verified import VerifiedPicture

_NAMED = 20
"""So many wrong pictures of an expert are named; the report shows more."""


def evaluate(
    board: Annotated[str, typer.Argument(help="Board: a name or a YAML file of routing rules.")],
    images_at: VerifiedOption,
    report: Annotated[
        Path | None, typer.Option(help="Write a page (HTML) with the rates and the wrong pictures.")
    ] = None,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="How sure the bounds of the rates are.")
    ] = CONFIDENCE,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Count escapes and false calls of a board's experts on pictures whose truth is known, by expert and component.

    Each expert runs by itself, in full precision, and the rules of each component judge its findings. Pictures that an
    expert learned from are refused.

    Exit status 0 if every picture is judged as it is labelled, 1 if there are escapes, false calls or other labels, 2
    if the pictures cannot be used, 3 if a picture or an expert could not be judged, 4 if the report cannot be written.

    Example: coe-experts evaluate line7.yaml --images verified/ --report build/evaluation.html
    """
    from coe.learn import evaluation, verified
    from coe.learn.answers import BoardExperts

    loaded, shelf = rules.load(board), Store(store)
    pictures = verified.by_expert(verified.find(images_at, loaded.experts, loaded.components, purpose=Purpose.TEST))
    asked = BoardExperts(loaded, shelf, allow_kind or ())
    _check(asked, loaded, shelf, pictures)
    evaluations: list[Evaluation] = []
    unjudged: list[Result] = []
    for id, of_expert in pictures.items():
        try:
            one = evaluation.by_rules(loaded, loaded.experts[id], asked.ask(loaded.experts[id], of_expert))
        except CoeError as error:
            complain(f"{id}: {error}")
            unjudged += [_failed(id, picture.name, str(error)) for picture in of_expert]
            continue
        evaluations.append(one)
        unjudged += [_failed(id, failed.picture.name, failed.failure) for failed in one.failed]
        tell(one, complain, out.print)
    rows = [row for one in evaluations for row in one.rows]
    wide(out).print(_table(rows, confidence))
    exams = weights_used.exam_rows(loaded, weights_used.manifests_of(loaded, shelf))
    experts_exam.show_rows(exams)
    for warning in warnings_of(exams):
        point_out("warning", warning, out)
    wrong = evaluation.wrong_of(evaluations)
    if report is not None:
        from coe.learn.answers import decoded

        paths = {picture.name: picture for of_expert in pictures.values() for picture in of_expert}
        source = PixelSource(lambda name: decoded(paths[name], loaded.bits))
        write_evaluation(report, loaded.board, rows, wrong, unjudged, source, exams, confidence=confidence)
        out.print(str(report))
    raise typer.Exit(Exit.NOT_INSPECTED if unjudged else Exit.NOT_GOOD if wrong else Exit.OK)


def tell(one: Evaluation, fault: Callable[[str], None], say: Callable[..., None]) -> None:
    """Say how many pictures of an expert are judged as labelled, which are not, and which could not be judged."""
    for failed in one.failed:
        fault(f"not judged: {failed.picture.name}: {failed.failure}")
    right = sum(picture.is_as_labelled for picture in one.judged)
    say(f"{one.expert.id}: {right} of {len(one.judged)} as labelled")
    wrong = one.wrong
    for picture in wrong[:_NAMED]:
        say(f"  {picture.result.request.image}: {picture.said}")
    if len(wrong) > _NAMED:
        say(f"  and {len(wrong) - _NAMED} more")


def _check(asked: BoardExperts, board: rules.Rules, shelf: Store, pictures: dict[str, list[VerifiedPicture]]) -> None:
    """Raise CoeError for experts whose weights do not fit the rules, and for pictures that an expert learned from."""
    chosen = {id: board.experts[id] for id in pictures}
    weights_used.read_manifests(replace(board, experts=chosen), shelf)
    board.check_detectors(id for id, expert in chosen.items() if asked.detects(expert))
    faults = []
    for id, of_expert in pictures.items():
        try:
            check_pictures(asked, chosen[id], of_expert)
        except ConfigError as error:
            faults.append(f"{id}: {error}")
    if faults:
        raise ConfigError("; ".join(faults))


def _failed(expert: str, name: str, reason: str) -> Result:
    return Result(Request(0, expert, name), None, (), 0.0, Failure(FailureKind.IMAGE, reason))


def _table(rows: Iterable[EvaluationRow], confidence: float) -> Table:
    columns = ("expert", "components", "as labelled", "escapes", "at most", "false calls", "at most")
    table = table_of(*columns, left=columns[:2])
    for row in rows:
        cells = rates_text((row.escapes, row.false_calls), confidence)
        table.add_row(row.expert, list_few(row.components, 4), f"{row.as_labelled} of {row.pictures}", *cells)
    return table
