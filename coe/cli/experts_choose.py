"""`coe-experts choose`: the kind of expert that suits the photographs of each component, learned and compared."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coe import config
from coe.board import drafting, rules
from coe.board.steps import polarity_is_known
from coe.cli import experts_prepare
from coe.cli.common import Exit, Steps, complain, err, out, point_out, show
from coe.cli.experts_options import (
    BitsOption,
    InputOption,
    InStore,
    NoPrepareOption,
    PolarityOption,
    ThreadsOption,
    TurnedOption,
)
from coe.cli.experts_verified import BOUNDS, show_exam, tell_gaps
from coe.cli.options import SeedOption, argument, option, words_of
from coe.core import Expert
from coe.errors import CoeError, ConfigError, did_you_mean, list_few
from coe.helpers.files import write_atomically
from coe.helpers.strict_model import name_fault
from coe.pictures.finding import LAYOUT
from coe.pictures.photographs import Photograph
from coe.store import kinds
from coe.store.expert_id import ExpertId
from coe.store.kinds import Kind, TrainingPlan
from coe.store.store import Store

if TYPE_CHECKING:
    from coe.learn.choosing import CandidateKind, CrossValidated


_SHOWN = 5


class Choose(InStore):
    """Compare kinds of experts on the photographs of each component, train the best, and write the board file.

    patch needs good parts only; probe needs 4 pictures of each label, efficientnet-lite0 40. They are compared
    by cross-validation, in which an escape weighs as much as four false calls. The output shows the chosen kind, the
    reason, how certain it is, and which defects still pass. If the board file exists, the command prints the lines that
    belong in it.

    Exit status 1 if a component has no expert.

    Example: coe-experts choose line7.yaml --images photos/
    """

    board: str = argument("Board: a name or a YAML file of rules. A missing file is written.", ...)
    images_at: Path = option(f"Photographs: {LAYOUT}, or your own labels beside good.", ..., "--images")
    kinds_of: str = option(
        "Kinds to compare; on a tie, the first listed wins.", ",".join(config.CHOSEN_KINDS), "--kinds"
    )
    input_size: InputOption = None
    turned: TurnedOption = False
    polarity: PolarityOption = None
    seed: SeedOption = 0
    threads: ThreadsOption = 0
    bits: BitsOption = None
    no_prepare: NoPrepareOption = False

    def run(self) -> Exit:
        from coe.learn import choosing

        shelf, path, images_at = self.shelf, Path(self.board), self.images_at
        there, name, bits = _board_of(path, self.board, self.bits)
        known = [kinds.resolve(word) for word in words_of(self.kinds_of)]
        if self.turned:
            known = [kind for kind in known if kind.learns_turned or kind.good_only]
        parts, empty = choosing.parts_of(images_at)
        if empty:
            point_out("note", f"no pictures in {list_few(empty)}")
        _check_names(name, parts)
        polarities = _polarities(parts, self.polarity)
        plan = TrainingPlan(
            data=images_at,
            work=Path(),
            epochs=config.CHOSEN_EPOCHS,
            batch=16,
            learning_rate=1e-3,
            seed=self.seed,
            threads=self.threads,
            held_out=0.0,
            bits=bits,
            turned=self.turned,
        )
        chosen: list[tuple[Expert, Kind]] = []
        for component, found in parts.items():
            try:
                with_polarity = polarities[component] or (
                    polarities[component] is None and polarity_is_known(component)
                )
                of_component = replace(plan, photographs=choosing.checked(found), polarity=with_polarity)
                others = [one.path for other, those in parts.items() if other != component for one in those if one.good]
                chosen.append(_chosen(shelf, f"{name}/{component}", of_component, known, self.input_size, others))
            except CoeError as error:
                complain(f"{component}: {error}")
        if not chosen:
            raise ConfigError(f"{images_at}: no component has an expert now")
        for expert, _ in () if self.no_prepare else chosen:
            pictures = [one.path for one in parts[expert.id]]
            experts_prepare.prepare_new(self.store, expert.weights, pictures, experts_prepare.LABELLED, bits=bits)
        lines = drafting.lines_of(
            (expert for expert, _ in chosen),
            detectors=[expert.id for expert, kind in chosen if kind.task == "detect"],
            polarity=polarities,
        )
        text = drafting.board_text(name, lines, bits)
        tell_gaps(rules.of_bytes(Path(f"{name}.yaml"), text.encode()), shelf)
        if there is None:
            write_atomically(path, [text])
            out.print(f"written: {path}")
        else:
            out.print(f"{there} exists already; add these experts and components, or replace those of the same names:")
            for line in lines.splitlines():
                out.print(line)
        return Exit.OK if len(chosen) == len(parts) else Exit.NOT_GOOD


def _polarities(components: Iterable[str], given: str | None) -> dict[str, bool | None]:
    """Return whether the parts of each component have a polarity: as known, as given, as asked; None if nobody says."""
    components = list(components)
    unknown = [name for name in components if not polarity_is_known(name)]
    if given is None and unknown and sys.stdin.isatty():
        err.print("A part with a polarity is a defect when rotated by 180 degrees. Which of these have one?")
        err.print(f"  {', '.join(unknown)}")
        given = typer.prompt("Names separated by commas, - for none", default="-", err=True)
    if given is None:
        if unknown:
            few = list_few(unknown)
            point_out(
                "note", f"no polarity is assumed for {few}: turned parts may pass (--polarity names those with one)"
            )
        return {name: None if name in unknown else True for name in components}
    named = [] if given == "-" else words_of(given)
    if strange := [name for name in named if name not in components]:
        raise ConfigError(f"polarity: there is no component '{strange[0]}'{did_you_mean(strange[0], components)}")
    return {name: name not in unknown or name in named for name in components}


def _check_names(board: str, components: Iterable[str]) -> None:
    """Raise ConfigError for names of components that a board file cannot have, before anything learns."""
    if fault := name_fault(components := list(components)):
        raise ConfigError(f"folders of components: {fault}")
    experts = [Expert(name, "any", ("bad",), 64, f"{board}/{name}", frozenset({"bad"})) for name in components]
    drafting.board_text(board, drafting.lines_of(experts, detectors=components))


def _board_of(path: Path, board: str, bits: int | None) -> tuple[Path | None, str, int | None]:
    """Return the file of a board if there is one, its name, and `bits`, or its own, of 16-bit samples."""
    if path.suffix in (".yaml", ".yml") and not path.exists():
        if not path.parent.is_dir():  # before the training, which takes long
            raise ConfigError(f"{path}: there is no folder {path.parent}; make it, or give another file")
        name = path.stem
        ExpertId.of(f"{name}/x")
        return None, name, bits
    loaded = rules.load(board)
    return loaded.path, loaded.board, bits or loaded.bits


def _sound(component: str, plan: TrainingPlan) -> tuple[TrainingPlan, int]:
    """Return a plan with each picture once, and the longer side of the first in pixels; what is odd is told.

    Raises ConfigError for a picture that cannot be read, or stands under two labels.
    """
    from coe.learn import choosing

    found = plan.photographs or ()
    looks = choosing.seen(found, plan.bits)
    if pairs := choosing.under_two_labels(found, looks):
        few = list_few((f"{one} and {other}" for one, other in pairs), _SHOWN, "; ")
        raise ConfigError(f"{few}: the same picture under two labels; remove it from the wrong folder")
    for remark in choosing.remarks_on(found, looks, plan.bits):
        point_out("note", f"{component}: {remark}")
    different = choosing.different(found, looks)
    if copies := len(found) - len(different):
        point_out("note", f"{component}: {copies} of {len(found)} pictures are copies of others, and are skipped")
    return replace(plan, photographs=different), choosing.side_of(looks[0])


def _chosen(
    shelf: Store,
    weights: str,
    plan: TrainingPlan,
    known: Sequence[Kind],
    input_size: int | None,
    others: Sequence[Path],
) -> tuple[Expert, Kind]:
    """Compare kinds for a component, train the best on all pictures, store it; raises CoeError if none can learn.

    `others` are photographs of other components of the board.
    """
    from coe.learn import choosing, learning

    component = ExpertId.of(weights).name
    plan, side = _sound(component, plan)
    found = plan.photographs or ()
    candidates = choosing.candidates(shelf, weights, plan, known, input_size or side)
    results: list[CrossValidated] = []
    with Steps(component) as steps:
        folds = choosing.folds_of(shelf, candidates, plan) if candidates else []

        def judge(one: CandidateKind) -> None:
            def progress(done: int, total: int) -> None:
                steps.at(done, total, doing=f"{component}: {one.name}")

            results.append(choosing.judged(shelf, one, found, folds, progress, time.perf_counter))

        for one in candidates:
            if choosing.is_superfluous(one, results):
                skipped = f"{one.name}: not tried, since another kind judges every picture correctly"
                point_out("note", f"{component}: {skipped}")
            else:
                judge(one)
        for one in () if plan.turned else choosing.turned_too(candidates, results, polarity=plan.polarity):
            judge(one)
    failures = [f"{result.candidate.name}: {result.failure}" for result in results if result.failure]
    best = choosing.best_of(results, found)
    if best is None:
        why = "; ".join(failures) or "give more pictures"
        raise ConfigError(f"no kind can be compared on {_counts(found)}; {why}")
    for failure in failures:
        point_out("note", f"{component}: {failure}")
    _tell(component, found, results, best)
    _tell_untried(component, found, known)
    with Steps(f"{component}: {best.candidate.name} on all pictures") as steps:
        taken = best.candidate
        trained = learning.learn(shelf, taken.expert, taken.kind, taken.plan, taken.start, lambda *_: None)
        trained = choosing.shown_neighbours(taken, trained, others)
        steps.at(1, 1)
    for remark in trained.remarks:
        point_out("note", f"{component}: {remark}")
    if trained.unproven is None:
        trained = replace(trained, unproven=choosing.unproven(best, found))
    if trained.unproven:
        point_out("unproven", f"{component}: {trained.unproven}")
    source = f"chosen by {len(found)} photographs, seed {plan.seed}"
    manifest = learning.put(shelf, taken.expert, trained, taken.start, source)
    if manifest.few_pixels:
        point_out("warning", f"{component}: {manifest.few_pixels}")
    show_exam(component, manifest.exam)
    return taken.expert, taken.kind


def _counts(found: Sequence[Photograph]) -> str:
    """Say how many photographs there are of each label."""
    return ", ".join(f"{count} {label}" for label, count in Counter(one.label for one in found).items())


def _tell(component: str, found: Sequence[Photograph], results: Sequence[CrossValidated], best: CrossValidated) -> None:
    """Print how the kinds judged what they had not learned, which was taken, and how sure that is."""
    from coe.learn import choosing

    folders = Counter((one.good, Path(one.name).parent.as_posix()) for one in found)
    good, bad = (
        list_few(f"{count} in {at}" for (is_good, at), count in folders.items() if is_good is of)
        for of in (True, False)
    )
    out.print(f"{component}: taken as good: {good}; as bad: {bad or 'none'}")
    out.print(f"{component}: each picture is judged by experts trained without it")
    rows = []
    for result in results:
        if not result.failure:
            escapes, false_calls = ("·" if rate is None else str(rate) for rate in result.rates(found))
            rows.append(
                {
                    "kind": result.candidate.name,
                    "escapes": escapes,
                    "false calls": false_calls,
                    "s to train": round(result.seconds, 1),
                    "": "chosen" if result is best else None,
                }
            )
    show(rows)
    out.print(f"{component}: {best.candidate.name} is chosen: {choosing.why(best, results, found)}")
    if all(one.good for one in found):
        out.print(f"{component}: the escape rate is unknown: there is no picture of a bad part")
    else:
        out.print(f"{component}: {BOUNDS}")
    for other in results:
        if other is not best and not other.failure:
            chance = choosing.chance_of(best, other)
            sure = "is better" if chance < 0.05 else "is not proven to be better"
            names = f"{best.candidate.name} {sure} than {other.candidate.name}"
            out.print(f"{component}: {names} (p = {chance:.2g})")


def _tell_untried(component: str, found: Sequence[Photograph], known: Sequence[Kind]) -> None:
    """Print which kinds could not learn from these photographs, and what they need."""
    from coe.learn import choosing

    untried: dict[str, list[str]] = {}
    for kind in known:
        if why := choosing.obstacle(kind, found):
            untried.setdefault(why, []).append(kind.name)
    for why, names in untried.items():
        out.print(f"{component}: not tried: {', '.join(names)}; {why}")
