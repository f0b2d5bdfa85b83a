"""How far good parts lie from their references, and the limits for further parts: those of a component are its own.

Two distances tell a part that is not good: the largest difference that lasts, which a defect makes, and what the fit
lacks, which is much where a part is turned or another. Both are measured without the part's own pixels in the
reference. Their logarithms are taken as normal: a limit is the one-sided prediction limit of a component's own good
parts, whose deviation leans on that of all components, because two boards show two parts of each.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from coe.board.steps import polarity_is_known
from coe.comparing.alternates import best_of
from coe.comparing.comparison import Comparison, compare, compare_aligned
from coe.comparing.motion import LEAST_FIT, fit_of, grey_of
from coe.core import Expert, GoodLimits, Shown
from coe.errors import ConfigError, list_few
from coe.helpers.rates import prediction_factor, tolerance_factor
from coe.learn import golden_reference
from coe.pictures.photographs import Purpose
from coe.store.exam import LEAST_SHOWN, MOST, Exam, ExamItem, added, apart
from coe.store.kinds import Progress, Reference, Trained, TrainingPlan
from experts import exam, labelled_folder, pair_data
from experts.difference_network import LIMIT, UNIT
from experts.pair import PairKind, stacked_of
from experts.pair_data import LabelledPair
from experts.taken import TakenPictures, TrainingPicture

SHARE = 0.02
"""The share of good parts that may lie over each of the two limits."""
_LEAST = (20.0, 0.003)
"""The least difference in grey levels, and the least misfit: parts that differ less differ equally."""
_CAP, _MOST = 1.1, 240.0
"""No limit lies above so many times the largest difference of all good parts, nor above so many grey levels."""
_WIDE = 128.0
"""Above a limit of so many grey levels few defects stand out."""
_USUAL, _PRIOR, _LEANS = 0.4, 4, 10
"""The deviation of the logarithms that is usual, by how many good parts that is thought to be known, and the most good
parts of other components that count beside a component's own."""
_FOLDS = 5
"""Into so many groups, at most, the parts of a component are divided: each is compared with a reference of the others.
"""
_FEW = 5
"""With fewer good parts, none is strange; with fewer of a component, training says so."""
_STRANGE = 0.01
"""A part is left out if it differs more than all but such a share of parts like the others would."""
_FAR, _MOST_STRANGE = 3.5, 1 / 3
"""A part is left out at the latest at so many times the median, because the spread of a few parts says little; and the
largest share of the parts of a component that may be left out."""
_TO_DEVIATION = 1.4826
"""The standard deviation of normal values, in median absolute deviations."""
_OF_EACH = 6
"""Of so many good parts of each component, at least, an exam is made: if three of six pass, it is blind."""
_ALIKE_PX = 2
"""Pictures of one package differ by no more than this in width and height."""


@dataclass(frozen=True, slots=True)
class GoodPart:
    """A good part of a component: its name, the id of its reference, and how far it lies from that.

    `largest` is the largest difference that lasts, in grey levels, and `misfit` what its correlation lacks of 1.
    """

    component: str
    name: str
    reference: str
    largest: float
    misfit: float


@dataclass(frozen=True, slots=True)
class ExamPicture:
    """A picture that must not pass, made of a good part, and how far it lies from the reference; see `GoodPart`.

    Both distances are infinite if it cannot be compared. With `matters` it tightens the limit of the misfit.
    """

    component: str
    reference: str
    item: Shown
    largest: float
    misfit: float
    matters: bool = True


@dataclass(frozen=True, slots=True)
class _Parts:
    """Good parts to set limits by, and what is made of them; the sizes (width, height) of all references by id.

    `remarks` say why other pictures are left out.
    """

    parts: list[GoodPart]
    shown: list[ExamPicture]
    sizes: Mapping[str, tuple[int, int]]
    remarks: list[str]
    taken: TakenPictures


def calibrate(kind: PairKind, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
    """Return an expert with limits for good parts: the pictures of a folder, or the pairs of a data set without a box.

    `good_parts` among the measures is how many there were, `largest` their largest difference in grey levels, `limit`
    the largest limit, and `called` the share of these parts that the expert would not call good. A part that differs
    far more than the others is left out, and named. Raises ConfigError if there is no good part, or if good parts
    differ too much from their references.
    """
    if plan.false_calls is not None:
        why = "this kind sets its limits from its good parts"
        raise ConfigError(f"expert '{expert.id}': {why}; leave the rate of false calls out")
    if plan.init is not None:
        raise ConfigError(f"expert '{expert.id}': this kind starts from no other expert; leave --init and --body out")
    found = _in_folder(kind, expert, plan) if plan.data.is_dir() else _in_data_set(kind, expert, plan)
    parts = typical(found.parts)
    remarks = found.remarks + [
        f"left out: {part.name}: it differs by {part.largest:.0f} of 255 grey levels, far more than the others; is the "
        "part good?"
        for part in found.parts
        if part not in parts
    ]
    limits = limits_of(parts, found.sizes, found.shown)
    called = [part for part in parts if _is_over(part, limits[part.reference])]
    remarks += [
        f"{part.name} would be called: it differs by {part.largest:.0f} of 255 grey levels, and fits by "
        f"{1 - part.misfit:.2f}; if the part is good, give more good parts"
        for part in called
    ]
    remarks += _taught(parts, found.sizes, limits)
    largest = max((part.largest for part in parts), default=0.0)
    if largest > _MOST / _CAP:
        raise ConfigError(
            f"good parts of '{plan.data}' differ from their references by {largest:.0f} of 255 grey levels; is each "
            "reference of the same part, and are all these parts good?"
        )
    state = kind.skeleton(expert).state_dict()
    state["limit"], state["unit"] = torch.tensor([LIMIT]), torch.tensor([UNIT])
    metrics = {"good_parts": float(len(parts)), "largest": largest}
    metrics["limit"] = max(own.largest for own in limits.values())
    metrics["called"] = len(called) / max(1, len(parts))
    progress(plan.epochs, plan.epochs, metrics)
    taken = found.taken
    remarks += taken.identical()
    return Trained(
        dict(state),
        expert.labels,
        metrics,
        tuple(remarks),
        taken.sentence(),
        learned=taken.learned,
        exam=_graded(found.shown, limits) if found.shown else None,
        limits=limits,
    )


def limits_of(
    parts: Sequence[GoodPart], sizes: Mapping[str, tuple[int, int]], shown: Sequence[ExamPicture] = ()
) -> dict[str, GoodLimits]:
    """Return the limits of each reference; `sizes` holds the width and height of each, by id.

    A reference without a good part has those of its package, if a reference of its size has good parts. Else nobody
    knows how its good parts differ: its limits are of 0 pictures. What is `shown` and must not pass tightens the limit
    of the misfit; see `experts.exam.tightened`.
    """
    distances = {
        id: np.log(np.maximum([(part.largest, part.misfit) for part in parts if part.reference == id], _LEAST))
        for id in dict.fromkeys(part.reference for part in parts)
    }
    untaught = GoodLimits(LIMIT, 0.0, 0)
    if not distances:
        return dict.fromkeys(sizes, untaught)
    within = np.concatenate([rows - rows.mean(axis=0) for rows in distances.values()])
    known = len(within) - len(distances) + _PRIOR
    usual = ((within**2).sum(axis=0) + _PRIOR * _USUAL**2) / known
    cap = min(_MOST, max(LIMIT, _CAP * max(part.largest for part in parts)))
    limits = {}
    for id, size in sizes.items():
        rows = distances.get(id)
        if rows is None:
            package = [distances[other] for other in distances if _are_alike(size, sizes[other])]
            if not package:
                limits[id] = untaught
                continue
            rows = np.concatenate(package)
        leans = min(known, _LEANS)
        # Logarithms of both distances. The `usual` variances are as if so many further parts had told them.
        variance = (((rows - rows.mean(axis=0)) ** 2).sum(axis=0) + leans * usual) / (len(rows) - 1 + leans)
        centre, deviation = rows.mean(axis=0), np.sqrt(variance * (1 + 1 / len(rows)))  # of the next part
        factor = prediction_factor(len(rows), SHARE, leans) / math.sqrt(1 + 1 / len(rows))
        largest = min(cap, math.exp(centre[0] + factor * deviation[0]))
        for item in (Shown.MISSING, Shown.TURNED):
            own = [one for one in shown if (one.reference, one.item) == (id, item) and one.matters]
            far = [math.inf if one.largest > largest else math.log(max(one.misfit, _LEAST[1])) for one in own]
            factor = _tightened(factor, [(one - centre[1]) / deviation[1] for one in far])
        limits[id] = GoodLimits(largest, math.exp(centre[1] + factor * deviation[1]), len(rows))
    return limits


def _tightened(limit: float, deviations: Sequence[float]) -> float:
    """Return the limit at which nearly none of what must not pass does; the same limit if there is none.

    A limit that lets it pass all the same would call good parts for nothing: the exam says so, and a person looks.
    """
    tighter = exam.tightened(limit, deviations)
    return tighter if sum(one <= tighter for one in deviations) <= MOST * len(deviations) else limit


def _graded(shown: Sequence[ExamPicture], limits: Mapping[str, GoodLimits]) -> Exam:
    """Return the exam of pictures: a row for each item, and one for each component that is blind to it by itself."""
    rows = added(
        ExamItem(item=one.item, shown=1, passed=int(not _is_over(one, limits[one.reference])), component=one.component)
        for one in shown
    )
    return Exam.of(apart(rows))


def _are_alike(size: tuple[int, int], other: tuple[int, int]) -> bool:
    return all(abs(one - two) <= _ALIKE_PX for one, two in zip(size, other, strict=True))


def _is_over(part: GoodPart | ExamPicture, limits: GoodLimits) -> bool:
    return part.largest > limits.largest or part.misfit > limits.misfit


def _taught(
    parts: Sequence[GoodPart], sizes: Mapping[str, tuple[int, int]], limits: Mapping[str, GoodLimits]
) -> Iterator[str]:
    """Yield sentences about references with few good parts, or none, or whose good parts differ much."""
    counts = {id: sum(part.reference == id for part in parts) for id in sizes}
    if untaught := [id for id, own in limits.items() if not own.pictures]:
        yield (
            f"no good part shows how parts differ from {list_few(untaught)}: their pictures go to REVIEW; give two "
            "good parts of each, better ten"
        )
    if by_package := [id for id, own in limits.items() if own.pictures and not counts[id]]:
        yield f"no good part of {list_few(by_package)}: the limits are those of parts of the same size; give good parts"
    if few := [f"{id or 'pairs'} ({counts[id]})" for id in limits if 0 < counts[id] < _FEW]:
        yield (
            f"few good parts of {list_few(few)}: their limits depend on other parts, and a bad part among them may "
            f"hide defects; give {_FEW} of each, better ten"
        )
    if wide := [f"{id or 'pairs'} ({own.largest:.0f})" for id, own in limits.items() if own.largest > _WIDE]:
        yield (
            f"good parts of {list_few(wide)} differ by so many of 255 grey levels from their reference that most "
            "defects lie below the limit: give each look a reference of its own, or train patch"
        )


def typical(parts: Sequence[GoodPart]) -> list[GoodPart]:
    """Return the parts without those that differ far more than the others: one bad part would hide all defects.

    Parts are compared with those of their component, or with all if it has few. A part is left out if it differs more
    than `_usual` says. Raises ConfigError if too many of a component would be left out: then these are no exceptions.
    """
    by_component: dict[str, list[GoodPart]] = {}
    for part in parts:
        by_component.setdefault(part.component, []).append(part)
    kept: list[GoodPart] = []
    for component, alike in by_component.items():
        most = _usual(alike if len(alike) >= _FEW else parts)
        strange = [part for part in alike if part.largest > most]
        if len(alike) >= _FEW and len(strange) > _MOST_STRANGE * len(alike):
            names = list_few(part.name for part in strange)
            place = f" of {component}" if component else ""
            raise ConfigError(
                f"{len(strange)} of {len(alike)} parts{place} differ far more than the others ({names}); are they "
                "good? Remove bad parts, or make the reference from parts of both kinds"
            )
        kept += [part for part in alike if part not in strange]
    return kept


def _usual(parts: Sequence[GoodPart]) -> float:
    """Return the largest difference of parts like these, in grey levels; infinite for few parts.

    It is the tolerance limit (see `coe.helpers.rates.tolerance_factor`) of normal values with the median and the median
    absolute deviation of the logarithms, which stand as long as most parts are good, and at most `_FAR` times the
    median. The deviation is at least the usual one: parts that happen to differ equally vary all the same.
    """
    if len(parts) < _FEW:
        return math.inf
    logarithms = np.log([max(part.largest, _LEAST[0]) for part in parts])
    middle = float(np.median(logarithms))
    deviation = max(_TO_DEVIATION * float(np.median(np.abs(logarithms - middle))), _USUAL)
    beyond = tolerance_factor(len(parts), _STRANGE) * deviation
    return math.exp(middle + min(beyond, math.log(_FAR)))


def of_pair(kind: PairKind, expert: Expert, pair: LabelledPair) -> GoodPart:
    """Return how far a labelled pair lies from its reference, but for its boxes."""
    stack = pair.stack.copy()
    for x1, y1, x2, y2 in pair.boxes.round().astype(int).tolist():
        around = max(x2 - x1, y2 - y1) // 4 + 1
        stack[max(0, y1 - around) : y2 + around, max(0, x1 - around) : x2 + around, 2] = 0
    return GoodPart("", pair.name, "", kind.largest(stack, expert), pair.misfit)


def _in_data_set(kind: PairKind, expert: Expert, plan: TrainingPlan) -> _Parts:
    remarks: list[str] = []
    taken = TakenPictures(plan.data.parent)
    good: list[GoodPart] = []
    # Nothing is chosen by held-out parts here, and limits are measured without a part's own pixels: all parts teach.
    files = [pair for pairs in pair_data.read(expert, plan).values() for pair in pairs]
    for pair in pair_data.labelled(files, len(expert.labels), plan, remarks):
        if not len(pair.boxes):
            taken.pictures.append(TrainingPicture(pair.path, "", Purpose.LEARN, pair.digests))
            good.append(of_pair(kind, expert, pair))
    if not good:
        raise ConfigError(f"data set '{plan.data}' has no image without a box; calibrate on good parts")
    return _Parts(good, [], {"": (0, 0)}, remarks, taken)


def _in_folder(kind: PairKind, expert: Expert, plan: TrainingPlan) -> _Parts:
    """Compare the good parts of each component with its reference, and with one that is made of the others."""
    if not plan.references:
        raise ConfigError(
            f"expert '{expert.id}' compares good parts with their references; make these with `coe-experts "
            "reference`, and train with --board, whose rules name them"
        )
    if len(plan.references) > 1 and not any((plan.data / component).is_dir() for component in plan.references):
        raise ConfigError(f"{plan.data}: give a folder with a folder of each component: {', '.join(plan.references)}")
    pictures = [one for one in labelled_folder.shown_parts(expert, plan) if one.good]
    if not pictures:
        places = f"in {plan.data} itself, or in a folder of each component ({', '.join(plan.references)})"
        raise ConfigError(f"{plan.data} holds no images of good parts; put them {places}")
    remarks: list[str] = []
    taken = TakenPictures(plan.data)
    parts: list[GoodPart] = []
    shown: list[ExamPicture] = []
    fitting, examined = 0, max(_OF_EACH, -(-LEAST_SHOWN // len(plan.references)))
    for component, reference in plan.references.items():
        is_polar = plan.polarity and (len(plan.references) == 1 or polarity_is_known(component))
        alike: dict[str, dict[str, Comparison]] = {}
        looks = {look.id: look for look in reference.alternates}
        paths = [one.path for one in pictures if one.component == component]
        random.Random(plan.seed).shuffle(paths)
        for path in paths:
            name = path.relative_to(plan.data).as_posix()
            image = labelled_folder.pixels(path, plan, taken)
            look = best_of(image, reference.alternates)
            comparison = compare(image, look.image, look.spread)
            if comparison.difference is None:
                remarks.append(f"left out: {name}: {comparison.doubt}")
                continue
            alike.setdefault(look.id, {})[name] = comparison
        for id, compared in alike.items():
            fitting += len(compared)
            parts += _measured(kind, expert, component, looks[id], compared)
            few = exam.evenly(list(compared.values()), examined)
            shown += _must_not_pass(kind, expert, component, looks[id], few, is_polar)
    if not fitting or fitting < len(pictures) / 2:
        why = f", such as {remarks[0].removeprefix('left out: ')}" if remarks else ""
        raise ConfigError(f"{plan.data}: {fitting} of {len(pictures)} images fit their references{why}")
    sizes = {look.id: look.image.shape[1::-1] for one in plan.references.values() for look in one.alternates}
    return _Parts(parts, shown, {id: (width, height) for id, (width, height) in sizes.items()}, remarks, taken)


def _measured(
    kind: PairKind, expert: Expert, component: str, reference: Reference, compared: Mapping[str, Comparison]
) -> Iterator[GoodPart]:
    """Yield the good parts of one reference, each as far as it lies from it, or from one of the others if that is more.

    A reference shows the very parts that it is made of: alone, its distance from them says nothing. Of two parts each
    is the other's reference, and they are one measurement.
    """
    names = list(compared)
    aligned = [one.alignment for one in compared.values() if one.alignment is not None]
    groups = min(len(names), _FOLDS)
    measured = [_distances(kind, expert, one) for one in compared.values()]
    for group in range(groups if len(names) > 1 else 0):
        others = [one.image for place, one in enumerate(aligned) if place % groups != group]
        median = golden_reference.median_and_spread(others)
        grey = grey_of(median.image)
        for place in range(group, len(names), groups):
            fit = fit_of(grey_of(aligned[place].image), grey)
            again = compare_aligned(replace(aligned[place], fit=fit), median.image, median.spread)
            measured[place] = np.maximum(measured[place], _distances(kind, expert, again))
    if len(names) == 2:
        measured, names = [np.maximum(*measured)], [names[1]]
    for name, (largest, misfit) in zip(names, measured, strict=True):
        if largest or misfit > 0 or len(names) > 1:
            yield GoodPart(component, name, reference.id, float(largest), float(misfit))


def _must_not_pass(
    kind: PairKind, expert: Expert, component: str, reference: Reference, good: Sequence[Comparison], is_polar: bool
) -> Iterator[ExamPicture]:
    """Yield what is made of good parts of a reference, where they lie in its frame: so they are aligned once."""
    found = exam.part_of(reference.image)
    for alignment in [one.alignment for one in good if one.alignment is not None]:
        for item, image in exam.made_of(alignment.image, found):
            if found is None:  # turned as a whole, it may fit after another motion
                again = compare(image, reference.image, reference.spread)
            else:
                fit = fit_of(grey_of(image), grey_of(reference.image))
                again = compare_aligned(replace(alignment, image=image, fit=fit), reference.image, reference.spread)
            largest, misfit = math.inf, math.inf
            if again.difference is not None and again.alignment is not None and again.alignment.fit >= LEAST_FIT:
                largest, misfit = _distances(kind, expert, again)
            matters = is_polar or item is not Shown.TURNED
            yield ExamPicture(component, reference.id, item, float(largest), float(misfit), matters)


def _distances(kind: PairKind, expert: Expert, comparison: Comparison) -> NDArray[np.float64]:
    assert comparison.alignment is not None
    return np.array([kind.largest(stacked_of(comparison), expert), 1 - comparison.alignment.fit])
