"""`coe-experts calibrate`: sets thresholds and temperatures of a board's experts from verified pictures."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from coe.board import calibration_file, rules
from coe.board.board_spec import BoardSpec, StatedScores
from coe.board.calibration_file import BoardCalibration, CalibratedExpert
from coe.board.rules import Rules
from coe.cli import experts_exam
from coe.cli.common import Exit, complain, err, out, point_out, wide
from coe.cli.console import table_of
from coe.cli.options import AllowKindOption, StoreOption
from coe.config import counted
from coe.core import NOTHING, Expert
from coe.errors import CoeError, ConfigError, list_few
from coe.helpers import strict_yaml
from coe.helpers.files import FolderLock, NoLocks, NotWritten, write_atomically
from coe.helpers.rates import CONFIDENCE, Rate
from coe.helpers.strict_model import of_yaml
from coe.helpers.visible import visible
from coe.learn import calibration_text
from coe.pictures.photo_split import Purpose
from coe.store.exam import Exam
from coe.store.store import Store

if TYPE_CHECKING:
    from coe.learn.answers import BoardExperts
    from coe.learn.calibration import ExpertCalibration
    from coe.learn.thresholds import ThresholdPoint
    from coe.learn.verified import VerifiedPicture

VerifiedOption = Annotated[
    Path,
    typer.Option(
        "--images",
        help="Verified pictures: photographs <component>/<label>/<picture>, where a label may be good or bad, or a "
        "folder <expert>/<label>/<picture>, or a table with the columns path, expert and label (and reference).",
    ),
]
_AROUND = 20
_SHOWN = 5
"""So many thresholds on each side of the chosen one are shown."""


def calibrate(  # noqa: PLR0913
    board: Annotated[str, typer.Argument(help="Board: a name or a YAML file of routing rules.")],
    images_at: VerifiedOption,
    escapes: Annotated[
        float | None, typer.Option(min=0, max=1, help="The share of bad parts that may pass, as 0.01.")
    ] = None,
    false_calls: Annotated[
        float | None,
        typer.Option("--false-calls", min=0, max=1, help="The share of good parts that may be called, as 0.02."),
    ] = None,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="How sure it must be that the share is not exceeded.")
    ] = CONFIDENCE,
    write: Annotated[bool, typer.Option("--write", help="Write the calibration file beside the board file.")] = False,
    unproven: Annotated[
        bool, typer.Option("--unproven", help="Take thresholds that are not proven to hold the rate, too.")
    ] = False,
    plots: Annotated[Path | None, typer.Option(help="Folder for a picture (PNG) of each expert.")] = None,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Set thresholds for a wanted rate, and make scores honest, from pictures whose truth is known.

    Give --escapes or --false-calls. With --write the result goes into BOARD.calibration.yaml beside the board file, and
    counts from then on; delete that file to go back. Without --write the changes are shown, and nothing is written.
    The rate is that of each expert as a whole. Pictures that an expert learned from are refused. Exit status 1 if a
    picture could not be judged, or if no threshold of an expert is proven to hold the wanted rate.

    Example: coe-experts calibrate line7.yaml --images verified/ --escapes 0.01 --plots build/calibration
    """
    from coe.learn import calibration, draw_thresholds, verified
    from coe.learn.answers import BoardExperts
    from coe.learn.thresholds import Goal, WantedRate

    if (escapes is None) == (false_calls is None):
        raise ConfigError("give the rate that is wanted: --escapes, or --false-calls, and not both")
    goal, rate = (Goal.ESCAPES, escapes) if escapes is not None else (Goal.FALSE_CALLS, false_calls)
    assert rate is not None
    wanted = WantedRate(goal, rate, confidence)
    loaded = rules.load(board)
    if write:  # before the pictures are judged, which takes long
        with _alone(loaded.path):
            pass
    found = verified.find(images_at, loaded.experts, loaded.components, purpose=Purpose.VERIFY)
    asked = BoardExperts(loaded, Store(store), allow_kind or ())
    outcomes: list[ExpertCalibration] = []
    trouble = False
    for id, of_expert in verified.by_expert(found).items():
        try:
            check_pictures(asked, loaded.experts[id], of_expert)
            answers = asked.answers(id, of_expert)
        except CoeError as error:
            complain(f"{id}: {error}")
            trouble = True
            continue
        for name, reason in answers.failed.items():
            complain(f"not judged: {name}: {reason}")
        if in_doubt := list_few(map(visible, answers.doubtful), _SHOWN):
            point_out("note", f"{id}: in doubt, so REVIEW whatever the threshold: {in_doubt}")
        outcome = calibration.calibrate(answers, wanted, unproven=unproven)
        outcomes.append(outcome)
        if missing := calibration.unreached(outcome):
            complain(f"{id}: {missing}")
        for warning in calibration.warnings(outcome):
            point_out("note", f"{id}: {warning}")
        trouble = trouble or bool(missing or answers.failed)
        if plots is not None:
            out.print(str(draw_thresholds.draw(outcome, plots / f"{id}.png")))
    wide(out).print(_table(outcomes))
    for outcome in outcomes:
        _show_curve(outcome)
    with _alone(loaded.path) if write else nullcontext():  # another calibration may end at the same time
        put(loaded, outcomes, write=write)
    if write:
        calibrated, pictures = [outcome.answers.expert.id for outcome in outcomes], verified.by_expert(found)
        _examine(rules.load(board), Store(store), {id: pictures[id] for id in calibrated}, allow_kind or ())
    raise typer.Exit(Exit.NOT_GOOD if trouble else Exit.OK)


def _examine(
    board: Rules, store: Store, pictures: Mapping[str, Sequence[VerifiedPicture]], allowed: Sequence[str]
) -> None:
    """Show experts again what must not pass, by the thresholds that hold now; the rows go into their exams."""
    from coe.learn import evaluation
    from coe.learn.answers import BoardExperts

    asked = BoardExperts(board, store, allowed)
    for id, of_expert in pictures.items():
        weights = board.experts[id].weights
        if store.manifest(weights).metrics.get("turned"):  # at which angle its parts lie is no defect
            continue
        items = evaluation.examined(board, asked, id, of_expert)
        with store.changing(weights) as manifest:
            exam = (manifest.exam or Exam()).again(items)
            if items and exam != manifest.exam:
                store.rewrite(manifest.model_copy(update={"exam": exam}))
        experts_exam.show(id, exam)
    experts_exam.tell_gaps(board, store)


@contextmanager
def _alone(board: Path) -> Iterator[None]:
    """Hold the lock of a board file's folder, in which its calibration is written; raises NotWritten."""
    path, lock = calibration_file.path_for(board), None
    try:
        with suppress(NoLocks):
            lock = FolderLock.take(path.parent, wait=True)
    except OSError as error:
        way = (
            f"copy {board.name}, with its calibration if it has one, into a folder of your own, and calibrate it there"
        )
        raise NotWritten(f"{path} cannot be written: {error.strerror}; {way}") from error
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def check_pictures(asked: BoardExperts, expert: Expert, pictures: Sequence[VerifiedPicture]) -> None:
    """Raise ConfigError for pictures of labels that an expert cannot give, and for such as it learned from.

    Say if nobody knows what it learned from, and which pictures contradict each other.
    """
    for remark in asked.under_two_labels(pictures):
        point_out("note", f"{expert.id}: {remark}")
    if not asked.detects(expert) and (nothing := [one.name for one in pictures if one.label == NOTHING]):
        raise ConfigError(f"it is no detector, and {nothing[0]} is labelled '{NOTHING}'")
    if made := asked.in_references(expert, pictures):
        told = (
            f"{expert.id}: its reference is made from {len(made)} of its {len(pictures)} pictures, such as "
            f"{list_few(made)}: these fit it better than others will; take them out"
        )
        point_out("note", told)
    known = asked.learned_from(expert, pictures)
    if known is None:
        told = f"nobody knows which pictures '{expert.weights}' learned from; give it none of these"
        point_out("note", told)
    elif known:
        raise ConfigError(
            f"it learned from {len(known)} of its {len(pictures)} pictures, such as {list_few(known)}: their scores "
            "are better than those of others; take them out, or give other pictures"
        )


def rates_text(rates: Sequence[Rate | None], confidence: float) -> list[str]:
    """Return rates with their bounds, two cells each, for a table."""
    return [
        text
        for rate in rates
        for text in ((f"{rate.events} of {rate.trials}", f"{rate.upper(confidence):.2%}") if rate else ("", ""))
    ]


def _rates(point: ThresholdPoint) -> tuple[Rate | None, Rate | None]:
    return point.escapes, point.false_calls


def _table(outcomes: Sequence[ExpertCalibration]) -> Table:
    columns = ("expert", "labels", "threshold", "escapes", "at most", "false calls", "at most", "ECE", "temperature")
    table = table_of(*columns, left=columns[:2])
    for outcome in outcomes:
        honesty, choice = outcome.honesty, outcome.choice
        cells = (f"{honesty.before:.3f} to {honesty.after:.3f}", f"{honesty.temperature:g}") if honesty else ("", "")
        chosen = [""] * 6
        if choice is not None and outcome.curve is not None:
            threshold = f"{choice.point.threshold:.4g}{'' if choice.proven else ' (not proven)'}"
            rates = rates_text(_rates(choice.point), outcome.wanted.confidence)
            chosen = [", ".join(outcome.curve.labels), threshold, *rates]
        table.add_row(outcome.answers.expert.id, *chosen, *cells)
    return table


def _show_curve(outcome: ExpertCalibration) -> None:
    """Print the thresholds of an expert, the safest first: for each number of errors the best, the chosen marked."""
    from coe.learn.thresholds import frontier

    if outcome.curve is None or outcome.choice is None:
        return
    points = frontier(outcome.curve, outcome.wanted.goal)
    place = points.index(outcome.choice.point)
    shown = points[max(0, place - _AROUND) : place + _AROUND + 1]
    table = table_of("threshold", "escapes", "at most", "false calls", "at most", "", left=())
    for point in shown:
        mark = "chosen" if point is outcome.choice.point else ""
        table.add_row(f"{point.threshold:.4g}", *rates_text(_rates(point), outcome.wanted.confidence), mark)
    left = len(points) - len(shown)
    out.print()
    out.print(f"{outcome.answers.expert.id}{f', without {left} further thresholds' if left else ''}:")
    wide(out).print(table)


def _tell_scores_of_steps(before: Rules, after: Rules, entries: Mapping[str, StatedScores]) -> None:
    """Say which components state scores of their own: a finding must reach `min_score`, and `min_scores` go first."""
    for id, entry in entries.items():
        rescaled = before.experts[id].temperature != after.experts[id].temperature
        defaults = entry.min_scores
        least, first = [], []
        for name, component in after.components.items():
            steps = component.steps_of(id)
            if (defaults or rescaled) and any(step.min_score > 0 for step in steps):
                least.append(name)
            if any(step.min_scores != defaults for step in steps):
                first.append(name)
        scale = "; its scores have another scale now, so check it" if rescaled else ""
        if least:
            err.print(f"{id}: `min_score` of {list_few(least)} still counts, too{scale}")
        if first:
            told = f"{id}: `min_scores` of {list_few(first)} count in the place of those written here{scale}"
            err.print(told)


def put(board: Rules, outcomes: Sequence[ExpertCalibration], *, write: bool) -> None:
    """Show the changes of the calibration file, or write it; what would not load afterwards is not written."""
    raw, old = strict_yaml.content(board.path), calibration_file.content(board.path)
    before = rules.of_bytes(board.path, raw, old)
    spec = of_yaml(strict_yaml.parse(board.path, raw), BoardSpec)
    entries = calibration_text.entries(board.path, old) if old is not None else {}
    changed: dict[str, CalibratedExpert] = {}
    for outcome in outcomes:
        id = outcome.answers.expert.id
        if id not in spec.experts:
            raise ConfigError(f"{board.path.name}: expert '{id}' was taken out meanwhile; calibrate again")
        if outcome.answers.answers:  # else the expert stays as it is
            stated = spec.experts[id].stated_scores()
            changed[id] = outcome.entry(entries.get(id, stated), stated, date.today().isoformat())
    if not changed:
        err.print("no expert was calibrated")
        return
    new = calibration_text.text(board.path, BoardCalibration(board=spec.board, experts={**entries, **changed}))
    _tell_scores_of_steps(before, rules.of_bytes(board.path, raw, new.encode()), changed)
    path = calibration_file.path_for(board.path)
    if write:
        write_atomically(path.resolve(), [new])  # a link stays a link
        found = [outcome for outcome in outcomes if outcome.written is not None]
        out.print(f"{path}: {counted(len(changed), 'expert')} calibrated, {counted(len(found), 'threshold')} written")
        return
    lines = (old or b"").decode().splitlines(), new.splitlines()
    for line in difflib.unified_diff(*lines, path.name, path.name, lineterm="", n=1):
        # A line feed within a text would be shown as what it is.
        out.print(line)
    err.print("nothing was written; --write does")
