"""`coe-experts calibrate`: sets thresholds and temperatures of a board's experts from verified pictures."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from coe.board import rules
from coe.board.rules import Rules
from coe.cli.common import Exit, complain, err, out, wide
from coe.cli.console import styled
from coe.cli.options import AllowKindOption, StoreOption
from coe.core import NOTHING, Expert
from coe.errors import CoeError, ConfigError
from coe.files import replacing
from coe.rates import CONFIDENCE, Rate
from coe.store.store import Store

if TYPE_CHECKING:
    from coe.calibrate.answers import BoardExperts
    from coe.calibrate.edit import RulesEntry
    from coe.calibrate.result import Calibrated, StatedScores
    from coe.calibrate.thresholds import ThresholdPoint
    from coe.calibrate.verified import VerifiedPicture

_AROUND = 20
"""So many thresholds on each side of the chosen one are shown."""


def calibrate(  # noqa: PLR0913
    board: Annotated[str, typer.Argument(help="Board: a name or a YAML file of routing rules.")],
    images_at: Annotated[
        Path,
        typer.Option(
            "--images",
            help="Verified pictures: a folder <expert>/<label>/<picture>, or a table with the columns path, expert "
            "and label (and reference).",
        ),
    ],
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
    write: Annotated[bool, typer.Option("--write", help="Write the result into the board file.")] = False,
    unproven: Annotated[
        bool, typer.Option("--unproven", help="Take thresholds that are not proven to hold the rate, too.")
    ] = False,
    plots: Annotated[Path | None, typer.Option(help="Folder for a picture (PNG) of each expert.")] = None,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Set thresholds for a wanted rate, and make scores honest, from pictures whose truth is known.

    Give --escapes or --false-calls. Without --write the changes of the board file are shown, and nothing is written.
    The rate is that of each expert as a whole. Pictures that an expert learned from are refused. Exit status 1 if a
    picture could not be judged, or if no threshold of an expert is proven to hold the wanted rate.

    Example: coe-experts calibrate line7.yaml --images verified/ --escapes 0.01 --plots build/calibration
    """
    from coe.calibrate import draw_thresholds, result, verified
    from coe.calibrate.answers import BoardExperts
    from coe.calibrate.thresholds import Goal, WantedRate

    if (escapes is None) == (false_calls is None):
        raise ConfigError("give the rate that is wanted: --escapes, or --false-calls, and not both")
    goal, rate = (Goal.ESCAPES, escapes) if escapes is not None else (Goal.FALSE_CALLS, false_calls)
    assert rate is not None
    wanted = WantedRate(goal, rate, confidence)
    loaded = rules.load(board)
    pictures: dict[str, list[VerifiedPicture]] = {}
    for picture in verified.find(images_at, loaded.experts):
        pictures.setdefault(picture.expert, []).append(picture)
    shelf = Store(store)
    asked = BoardExperts(loaded, shelf, allow_kind or ())
    outcomes: list[Calibrated] = []
    trouble = False
    for id, of_expert in pictures.items():
        try:
            check_pictures(asked, shelf, loaded.experts[id], of_expert, loaded.bits)
            answers = asked.answers(id, of_expert)
        except CoeError as error:
            complain(f"{id}: {error}")
            trouble = True
            continue
        for name, reason in answers.failed.items():
            complain(f"not judged: {name}: {reason}")
        outcome = result.calibrate(answers, wanted, unproven=unproven)
        outcomes.append(outcome)
        if missing := result.unreached(outcome):
            complain(f"{id}: {missing}")
        for warning in result.warnings(outcome):
            err.print(styled(("note:", "yellow"), f" {id}: {warning}"), soft_wrap=True)
        trouble = trouble or bool(missing or answers.failed)
        if plots is not None:
            out.print(str(draw_thresholds.draw(outcome, plots / f"{id}.png")), soft_wrap=True, markup=False)
    wide(out).print(_table(outcomes))
    for outcome in outcomes:
        _show_curve(outcome)
    _put(loaded, outcomes, write=write)
    raise typer.Exit(Exit.NOT_GOOD if trouble else Exit.OK)


def check_pictures(
    asked: BoardExperts, shelf: Store, expert: Expert, pictures: Sequence[VerifiedPicture], bits: int | None
) -> None:
    """Raise ConfigError for pictures of labels that an expert cannot give, and for such as it learned from.

    Say if nobody knows what it learned from.
    """
    from coe.calibrate.learned_pictures import among

    if not asked.detects(expert) and (nothing := [one.name for one in pictures if one.label == NOTHING]):
        raise ConfigError(f"it is no detector, and {nothing[0]} is labelled '{NOTHING}'")
    if made := asked.in_references(expert, pictures):
        told = (
            f" {expert.id}: its reference is made from {len(made)} of its {len(pictures)} pictures, such as "
            f"{_few(made)}: these fit it better than others will; take them out"
        )
        err.print(styled(("note:", "yellow"), told), soft_wrap=True)
    weights = expert.weights
    learned = shelf.learned(weights)
    if learned is None:
        told = f" nobody knows which pictures '{weights}' learned from; give it none of these"
        err.print(styled(("note:", "yellow"), told), soft_wrap=True)
    elif known := among(learned, pictures, bits):
        raise ConfigError(
            f"it learned from {len(known)} of its {len(pictures)} pictures, such as {_few(known)}: their scores are "
            "better than those of others; take them out, or give other pictures"
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


def _table(outcomes: Sequence[Calibrated]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("expert", "labels", "threshold", "escapes", "at most", "false calls", "at most", "ECE", "temperature"):
        table.add_column(name, justify="left" if name in ("expert", "labels") else "right")
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


def _show_curve(outcome: Calibrated) -> None:
    """Print the thresholds of an expert, the safest first: for each number of errors the best, the chosen marked."""
    from coe.calibrate.thresholds import frontier

    if outcome.curve is None or outcome.choice is None:
        return
    points = frontier(outcome.curve, outcome.wanted.goal)
    place = points.index(outcome.choice.point)
    shown = points[max(0, place - _AROUND) : place + _AROUND + 1]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("threshold", "escapes", "at most", "false calls", "at most", ""):
        table.add_column(name, justify="right")
    for point in shown:
        mark = "chosen" if point is outcome.choice.point else ""
        table.add_row(f"{point.threshold:.4g}", *rates_text(_rates(point), outcome.wanted.confidence), mark)
    left = len(points) - len(shown)
    out.print()
    out.print(f"{outcome.answers.expert.id}{f', without {left} further thresholds' if left else ''}:", markup=False)
    wide(out).print(table)


def _tell_scores_of_steps(before: Rules, after: Rules, entries: Mapping[str, RulesEntry]) -> None:
    """Say which components state scores of their own: a finding must reach `min_score`, and `min_scores` go first."""
    for id, entry in entries.items():
        rescaled = before.experts[id].temperature != after.experts[id].temperature
        defaults = entry.values.get("min_scores", {})
        least, first = [], []
        for name, component in after.components.items():
            steps = [step for step in component.root.walk() if step.expert == id]
            if (defaults or rescaled) and any(step.min_score > 0 for step in steps):
                least.append(name)
            if any(step.min_scores != defaults for step in steps):
                first.append(name)
        scale = "; its scores have another scale now, so check it" if rescaled else ""
        if least:
            err.print(f"{id}: `min_score` of {_few(least)} still counts, too{scale}", soft_wrap=True, markup=False)
        if first:
            told = f"{id}: `min_scores` of {_few(first)} count in the place of those written here{scale}"
            err.print(told, soft_wrap=True, markup=False)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _stated(board: Rules, id: str, entry: Mapping[str, Any]) -> StatedScores:
    """Return what a board file says of an expert, whose entry has these keys."""
    from coe.calibrate.result import StatedScores

    expert = board.experts[id]
    min_scores = {label: float(score) for label, score in (entry.get("min_scores") or {}).items()}
    return StatedScores(expert.temperature, min_scores, expert.ignore_under)


def _put(board: Rules, outcomes: Sequence[Calibrated], *, write: bool) -> None:
    """Show the changes of the board file, or write them; a file that would not load afterwards is not written."""
    from coe import strict_yaml
    from coe.calibrate.edit import RulesEntry, edited

    raw = strict_yaml.content(board.path)
    text, today = raw.decode(), date.today().isoformat()
    before, entries = rules.of_bytes(board.path, raw), strict_yaml.parse(board.path, raw).data["experts"]
    # An expert none of whose pictures could be judged stays as it is.
    by_expert = {outcome.answers.expert.id: outcome for outcome in outcomes if outcome.answers.answers}
    for id in by_expert:
        if id not in entries:
            raise ConfigError(f"{board.path.name}: expert '{id}' was taken out meanwhile; calibrate again")
    entries = {
        id: RulesEntry(outcome.entries(_stated(before, id, entries[id])), outcome.comment(today))
        for id, outcome in by_expert.items()
    }
    changed = edited(board.path, text, entries)
    _tell_scores_of_steps(before, rules.of_bytes(board.path, changed.encode()), entries)
    if write:
        # A link stays a link: the file to which it leads is replaced.
        with replacing(board.path.resolve()) as file:
            file.write(changed.encode())
        noun = "expert" if len(entries) == 1 else "experts"
        out.print(f"{board.path}: {len(entries)} {noun} calibrated", soft_wrap=True, markup=False)
        return
    lines = difflib.unified_diff(
        text.splitlines(), changed.splitlines(), board.path.name, board.path.name, lineterm="", n=1
    )
    for line in lines:  # a line feed within a text would be shown as what it is
        out.print(line, soft_wrap=True, markup=False, highlight=False)
    err.print("nothing was written; --write does")
