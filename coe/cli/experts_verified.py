"""`coe-experts calibrate` and `evaluate`: what pictures whose truth is known say of a board's experts; and their exams.

Exams are shown here for all commands that say what an expert's word is worth.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import track

from coe.board import rules
from coe.board.rules import Rules
from coe.cli.common import Exit, complain, err, out, point_out, show
from coe.cli.experts_options import WithKinds
from coe.cli.options import OfBoard, Record, Share, option
from coe.config import counted
from coe.core import Expert, Failure, FailureKind, Request, Result, Shown
from coe.errors import CoeError, ConfigError, list_few
from coe.helpers.rates import CONFIDENCE, Rate
from coe.helpers.visible import visible
from coe.inspector import weights_used
from coe.learn import calibration_text
from coe.pictures.photographs import Purpose
from coe.results.evaluation_report import EvaluationRow, write_evaluation
from coe.results.report_cards import PixelSource
from coe.store.exam import NO_EXAM, Exam, ExamItem, warnings_of
from coe.store.manifest import Manifest
from coe.store.store import Store
from coe.store.store_reader import StoreReader

if TYPE_CHECKING:
    from coe.learn.answers import BoardExperts
    from coe.learn.calibration import ExpertCalibration
    from coe.learn.evaluation import Evaluation
    from coe.pictures.photographs import Photograph

_AROUND = 20
_SHOWN = 5
"""So many thresholds on each side of the chosen one are shown."""
BOUNDS = "bounds of escapes hold only for defects like those in the pictures"
_NAMED = 20
"""So many wrong pictures of an expert are named; the report shows more."""


class _Verified(OfBoard, WithKinds):
    images_at: Path = option(
        "Verified pictures: <component>/<label>/<picture> (a label may be good or bad), "
        "<expert>/<label>/<picture>, or a table with the columns path, expert, label and, if needed, reference.",
        ...,
        "--images",
    )
    confidence: float = option("Confidence of the bounds of rates.", CONFIDENCE, min=0.5, max=0.9999)


class Calibrate(_Verified):
    """Find the threshold of each expert that keeps a rate on verified pictures, and calibrate its scores.

    Give the rate by --escapes or --false-calls; each expert must keep it. --write saves the thresholds as
    BOARD.calibration.yaml beside the board file. Lines that open later use them; to undo this, delete the file. The
    command refuses training pictures of an expert. Exit status 1 if a picture could not be judged, or if no threshold
    is proven to keep the rate.

    Example: coe-experts calibrate line7.yaml --images verified/ --escapes 0.01 --plots build/calibration
    """

    escapes: float | None = option("Largest share of bad parts that may pass, e.g. 0.01.", min=0, max=1)
    false_calls: float | None = option("Largest share of false calls among good parts, e.g. 0.02.", min=0, max=1)
    write: bool = option("Write the calibration file beside the board file, and repeat the experts' exams.", False)
    unproven: bool = option("Also accept thresholds that are not proven to keep the rate.", False)
    plots: Path | None = option("Folder for a plot (PNG) of each expert.")
    near: bool = option(
        "For classifiers that know no good parts, such as imported ones: train patch experts as a second check, "
        "and print lines for the board file.",
        False,
    )

    def run(self) -> Record:
        from coe.learn import behind, calibration, labelled
        from coe.learn.answers import BoardExperts
        from coe.learn.thresholds import Goal, WantedRate

        escapes, false_calls = self.escapes, self.false_calls
        if (escapes is None) == (false_calls is None):
            raise ConfigError("give the wanted rate: --escapes or --false-calls, not both")
        goal, rate = (Goal.ESCAPES, escapes) if escapes is not None else (Goal.FALSE_CALLS, false_calls)
        assert rate is not None
        wanted, loaded = WantedRate(goal, rate, self.confidence), self.rules
        if self.write:  # before the pictures are judged, which takes long
            with calibration_text.alone(loaded.path):
                pass
        found = labelled.by_expert(
            labelled.find(self.images_at, loaded.experts, loaded.components, purpose=Purpose.VERIFY)
        )
        asked = BoardExperts(loaded, self.shelf, self.allowed)
        outcomes: list[ExpertCalibration] = []
        trouble = False
        for id, of_expert in found.items():
            if id.removesuffix(behind.SUFFIX) in found.keys() - {id} and asked.learned_from(
                loaded.experts[id], of_expert
            ):
                continue  # it learned from them, to stand behind the other
            try:
                _check(asked, loaded.experts[id], of_expert)
                answers = asked.answers(id, _tracked(id, of_expert))
            except CoeError as error:
                complain(f"{id}: {error}")
                trouble = True
                continue
            for name, reason in answers.failed.items():
                complain(f"not judged: {name}: {reason}")
            if in_doubt := list_few(map(visible, answers.doubtful), _SHOWN):
                point_out("note", f"{id}: in doubt, so REVIEW whatever the threshold: {in_doubt}")
            outcome = calibration.calibrate(answers, wanted, unproven=self.unproven)
            outcomes.append(outcome)
            trouble |= not _told(id, outcome) or bool(answers.failed)
            if self.plots is not None:
                from coe.learn import draw_thresholds  # slow to import

                out.print(str(draw_thresholds.draw(outcome, self.plots / f"{id}.png")))
        for outcome in outcomes:
            _show_curve(outcome)
        with (
            calibration_text.alone(loaded.path) if self.write else nullcontext()
        ):  # another calibration may end at the same time
            _put(loaded, outcomes, write=self.write)
        judged = [outcome.answers.expert.id for outcome in outcomes]
        if self.write:
            _examine(rules.load(self.board), self.shelf, {id: found[id] for id in judged}, self.allowed)
        manifests = weights_used.manifests_of(loaded, self.shelf)
        unaware = weights_used.knowing_no_good_part(loaded, manifests)
        none = [id for id in judged if id in unaware]
        trouble |= not self._near(none, found)
        return Record(list(map(_calibrated, outcomes)), Exit.NOT_GOOD if trouble else Exit.OK)

    def _near(self, none: Sequence[str], found: Mapping[str, Sequence[Photograph]]) -> bool:
        """Let experts learn good parts, to stand behind those that know none, or say so; tell whether all could."""
        from coe.learn import behind

        if none and not self.near:
            told = "no good parts are known there, so an unknown defect may be OK; --near trains an expert for this"
            point_out("note", f"{list_few(none)}: {told}")
        root = self.images_at if self.images_at.is_dir() else self.images_at.parent
        done = True
        for id in none if self.near else ():
            try:
                made = behind.learn(self.rules, self.shelf, id, found[id], root)
            except CoeError as error:
                complain(f"{id}: {error}")
                done = False
                continue
            for remark in made.trained.remarks:
                point_out("note", f"{made.id}: {remark}")
            show_exam(made.id, made.trained.exam)
            out.print(
                f"{made.id} trained; add these lines to {self.rules.path.name}, the second wherever {id} inspects:"
            )
            out.print(f"  {made.entry}")
            out.print(f"  {made.then}")
        return done


def _tracked(id: str, pictures: Sequence[Photograph]) -> Iterable[Photograph]:
    """Yield pictures that an expert judges, and show on a terminal how many are judged."""
    return track(pictures, f"judging by {id}", console=err, transient=True, disable=not err.is_terminal)


def _examine(board: Rules, store: Store, pictures: Mapping[str, Sequence[Photograph]], allowed: Sequence[str]) -> None:
    """Show experts again what must not pass, by the thresholds that hold now; the rows go beside these thresholds."""
    from coe.learn import evaluation
    from coe.learn.answers import BoardExperts

    asked, taken = BoardExperts(board, store, allowed), dict[str, list[ExamItem]]()
    try:
        for id, of_expert in pictures.items():
            known = store.manifest(board.experts[id].weights)
            # At which angle its parts lie is no defect, and a surface has no part.
            no_defect = {Shown.TURNED: known.metrics.get("turned"), Shown.MISSING: known.exam and known.exam.is_surface}
            taken[id] = [one for one in evaluation.examined(board, asked, id, of_expert) if not no_defect.get(one.item)]
            show_exam(id, (known.exam or Exam()).again(taken[id]))
    finally:  # an expert that cannot run takes no exam of others along
        with calibration_text.alone(board.path):
            calibration_text.put_exams(board.path, taken)
    tell_gaps(rules.load(board.path), store)


def _told(id: str, outcome: ExpertCalibration) -> bool:
    """Say what the pictures do not prove of an expert's threshold; return whether it is proven to keep the rate."""
    from coe.learn import calibration

    if missing := calibration.unreached(outcome):
        if outcome.unproven and outcome.choice is not None:  # it is written, as the user wants
            point_out("note", f"{id}: {missing}")
        else:
            complain(f"{id}: {missing}")
    for warning in calibration.warnings(outcome):
        point_out("note", f"{id}: {warning}")
    return not missing


def _check(asked: BoardExperts, expert: Expert, pictures: Sequence[Photograph]) -> None:
    for remark in asked.remarks_on(expert, pictures):
        point_out("note", f"{expert.id}: {remark}")


def _bounded(confidence: float, **rates: Rate | None) -> dict[str, Any]:
    """Return rates with their bounds, two cells each, for a table."""
    cells: dict[str, Any] = {}
    for name, rate in rates.items():
        heading = name.replace("_", " ")
        cells[heading] = f"{rate.events} of {rate.trials}" if rate else None
        cells[f"{heading} at most"] = Share(rate.upper(confidence)) if rate else None
    return cells


def _calibrated(outcome: ExpertCalibration) -> dict[str, Any]:
    """Return the row of an expert."""
    honesty, choice, curve = outcome.honesty, outcome.choice, outcome.curve
    chosen = choice.point if choice is not None and curve is not None else None
    proven = "" if choice is None or choice.proven else " (not proven)"
    rates = (chosen.escapes, chosen.false_calls) if chosen else (None, None)
    return {
        "expert": outcome.answers.expert.id,
        "labels": ", ".join(curve.labels) if chosen and curve else None,
        "threshold": f"{chosen.threshold:.4g}{proven}" if chosen else None,
        **_bounded(outcome.wanted.confidence, escapes=rates[0], false_calls=rates[1]),
        "ECE": f"{honesty.before:.3f} to {honesty.after:.3f}" if honesty else None,
        "temperature": honesty.temperature if honesty else None,
    }


def _show_curve(outcome: ExpertCalibration) -> None:
    """Print the thresholds of an expert, the safest first: for each number of errors the best, the chosen marked."""
    from coe.learn.thresholds import frontier

    if outcome.curve is None or outcome.choice is None:
        return
    points = frontier(outcome.curve, outcome.wanted.goal)
    place = points.index(outcome.choice.point)
    shown = points[max(0, place - _AROUND) : place + _AROUND + 1]
    left = len(points) - len(shown)
    out.print()
    out.print(f"{outcome.answers.expert.id}{f', without {left} further thresholds' if left else ''}:")
    rows = []
    for point in shown:
        rates = _bounded(outcome.wanted.confidence, escapes=point.escapes, false_calls=point.false_calls)
        chosen = "chosen" if point is outcome.choice.point else None
        rows.append({"threshold": f"{point.threshold:.4g}", **rates, "": chosen})
    show(rows)


def _put(board: Rules, outcomes: Sequence[ExpertCalibration], *, write: bool) -> None:
    """Show what changes in the calibration file, or write it."""
    change = calibration_text.change(board, outcomes)
    if not change.experts:
        err.print("no expert was calibrated")
        return
    for note in change.notes:
        err.print(note)
    if write:
        change.write()
        found = sum(outcome.written is not None for outcome in outcomes)
        out.print(
            f"{change.path}: {counted(change.experts, 'expert')} calibrated, {counted(found, 'threshold')} written"
        )
        return
    lines, name = (change.before.splitlines(), change.after.splitlines()), change.path.name
    for line in difflib.unified_diff(*lines, name, name, lineterm="", n=1):
        # A line feed within a text would be shown as what it is.
        out.print(line)
    err.print("nothing was written; --write does")


class Evaluate(_Verified):
    """Count escapes and false calls of a board's experts on verified pictures, by expert and component.

    Each expert runs alone in full precision; the rules judge its findings. The command refuses training pictures of an
    expert.

    Exit status 0 if every picture is judged as labelled, 1 if some are not, 2 if the pictures cannot be used, 3 if a
    picture or an expert failed, 4 if the report cannot be written.

    Example: coe-experts evaluate line7.yaml --images verified/ --report build/evaluation.html
    """

    report: Path | None = option("HTML file for a report of the rates and of the wrongly judged pictures.")

    def run(self) -> Record:
        from coe.learn import evaluation, labelled
        from coe.learn.answers import BoardExperts

        board, shelf = self.rules, self.shelf
        pictures = labelled.by_expert(
            labelled.find(self.images_at, board.experts, board.components, purpose=Purpose.TEST)
        )
        asked = BoardExperts(board, shelf, self.allowed)
        self._check(asked, pictures)
        evaluations: list[Evaluation] = []
        unjudged: list[Result] = []
        for id, of_expert in pictures.items():
            try:
                said = asked.ask(board.experts[id], _tracked(id, of_expert))
                one = evaluation.by_rules(board, board.experts[id], said)
            except CoeError as error:
                complain(f"{id}: {error}")
                unjudged += [_failed(id, picture.name, str(error)) for picture in of_expert]
                continue
            evaluations.append(one)
            unjudged += [_failed(id, failed.picture.name, failed.failure) for failed in one.failed]
            tell(one, complain, out.print)
        rows = [row for one in evaluations for row in one.rows]
        if any(row.escapes for row in rows):
            out.print(BOUNDS)
        manifests = weights_used.manifests_of(board, shelf)
        exams = weights_used.exam_rows(board, manifests)
        show([{"expert": row.expert, **_cells(row.item), "": row.note or row.follows} for row in exams])
        for warning in (*weights_used.stale(board, manifests), *warnings_of(exams)):
            point_out("warning", warning, out)
        wrong = evaluation.wrong_of(evaluations)
        if self.report is not None:
            from coe.learn.answers import decoded

            paths = {picture.name: picture for of_expert in pictures.values() for picture in of_expert}
            source = PixelSource(lambda name: decoded(paths[name], board.bits))
            write_evaluation(self.report, board.board, rows, wrong, unjudged, source, exams, confidence=self.confidence)
            out.print(str(self.report))
        status = Exit.NOT_INSPECTED if unjudged else Exit.NOT_GOOD if wrong else Exit.OK
        return Record(list(map(self._row, rows)), status)

    def _row(self, row: EvaluationRow) -> dict[str, Any]:
        return {
            "expert": row.expert,
            "components": list_few(row.components, 4),
            "as labelled": f"{row.as_labelled} of {row.pictures}",
            **_bounded(self.confidence, escapes=row.escapes, false_calls=row.false_calls),
        }

    def _check(self, asked: BoardExperts, pictures: dict[str, list[Photograph]]) -> None:
        """Raise CoeError for experts whose weights do not fit the rules, and for pictures that they learned from."""
        chosen = {id: self.rules.experts[id] for id in pictures}
        weights_used.read_manifests(replace(self.rules, experts=chosen), self.shelf)
        self.rules.check_detectors(id for id, expert in chosen.items() if asked.detects(expert))
        faults = []
        for id, of_expert in pictures.items():
            try:
                _check(asked, chosen[id], of_expert)
            except ConfigError as error:
                faults.append(f"{id}: {error}")
        if faults:
            raise ConfigError("; ".join(faults))


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


def _failed(expert: str, name: str, reason: str) -> Result:
    return Result(Request(0, expert, name), None, (), 0.0, Failure(FailureKind.IMAGE, reason))


def show_exam(name: str, exam: Exam | None) -> None:
    """Print what an expert was shown that must not pass, and what of it passed, or that it took no exam."""
    if exam is None or not exam.is_taken:
        point_out("note", f"{name}: {NO_EXAM}", out)
    if exam is None:
        return
    show([{name: "", **_cells(item), "": "still passes" if item.is_blind else ""} for item in exam.items])
    for note in exam.notes:
        point_out("note", f"{name}: {note}", out)


def tell_gaps(board: Rules, store: StoreReader) -> bool:
    """Print what passes the experts of a board by their exams, and tell whether anything does."""
    warnings = warnings_of(weights_used.exam_rows(board, weights_used.manifests_of(board, store)))
    for warning in warnings:
        point_out("still passes", warning, out)
    return bool(warnings)


def lets_pass(manifest: Manifest) -> str:
    """Return in a few words what an expert lets pass by its training; the exam of a calibration lies with its board."""
    exam = manifest.exam
    blind = [item.name for item in exam.blind] if exam is not None and exam.is_taken else ["no exam in training"]
    return ", ".join([*blind, *(["small defects"] if manifest.few_pixels else [])]) or "·"


def _cells(item: ExamItem | None) -> dict[str, Any]:
    if item is None:
        return {"exam": None, "passed": None, "at most": None}
    return {"exam": item.name, "passed": f"{item.passed} of {item.shown}", "at most": Share(item.rate.upper())}
