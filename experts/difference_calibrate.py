"""Calibrating the kind `difference`: its limit lies above every difference that good parts show."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch

from coe.comparing.alternates import best_of
from coe.core import Expert
from coe.errors import ConfigError, list_few
from coe.rates import tolerance_factor
from coe.store.kinds import Image, ModuleKind, Progress, Trained, TrainingPlan
from experts import good_parts, pair_data
from experts.backbone import smooth
from experts.difference_network import LIMIT, UNIT
from experts.geometry import letterbox
from experts.pair import compared
from experts.proposals import OPENING
from experts.taken import DataPart, TakenPictures, TrainingPicture

_ABOVE = 1.1
"""The limit is this many times the largest difference of the good parts."""
_LEAST, _MOST = 20.0, 240.0
"""The limits, in grey levels, between which a calibrated limit lies: noise of a camera, and no contrast left."""
_FEW, _ADVISED = 5, 10
"""With fewer good parts, none is held out and none is strange; with fewer than advised, training says so."""
_UNPROVED = 3
"""With fewer good parts than this, the limit is at least that of an expert that was not calibrated."""
_STRANGE = 0.05
"""A part is left out if it differs more than all but such a share of parts like the others would."""
_LEAST_DEVIATION = 0.2
"""The least standard deviation of the logarithms of differences: parts that happen to differ equally vary all the
same."""
_FAR, _MOST_STRANGE = 3.0, 1 / 3
"""A part is left out at the latest at so many times the median, because the spread of a few parts says little; and the
largest share of the parts of a component that may be left out."""
_TO_DEVIATION = 1.4826
"""The standard deviation of normal values, in median absolute deviations."""


@dataclass(frozen=True, slots=True)
class GoodPart:
    """A good part of a component: its name, and its largest difference from its reference, in grey levels.

    That is the difference as the expert sees it.
    """

    component: str
    name: str
    largest: float


@dataclass(frozen=True, slots=True)
class _Parts:
    """Good parts to set the limit on, others that are held out, and why further parts are left out."""

    training: list[GoodPart]
    held_out: list[GoodPart]
    remarks: list[str]
    taken: TakenPictures


def calibrate(kind: ModuleKind, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
    """Return the limit for good parts: the pictures of a folder, or the pairs of a data set that have no box.

    `good_parts` among the measures is how many there were, `largest` their largest difference in grey levels,
    `held_out` the number of other good parts, and `held_out_called` the share of these in which the expert would see
    something. A part that differs far more than the others is left out, and named. Raises ConfigError if there is no
    good part, or if good parts differ too much from their references.
    """
    if plan.false_calls is not None:
        why = "this kind sets its limit above all good parts"
        raise ConfigError(f"expert '{expert.id}': {why}; leave the rate of false calls out")
    if plan.init is not None:
        raise ConfigError(f"expert '{expert.id}': this kind starts from no other expert; leave --init and --body out")
    parts = _in_folder(expert, plan) if plan.data.is_dir() else _in_data_set(expert, plan)
    training = typical(parts.training)
    largest = max(part.largest for part in training)
    least = _LEAST if len(training) >= _UNPROVED else LIMIT
    limit = max(least, _ABOVE * largest)
    remarks = parts.remarks + [
        f"left out: {part.name}: it differs by {part.largest:.0f} of 255 grey levels, far more than the others; is the "
        "part good?"
        for part in parts.training
        if part not in training
    ]
    remarks += [
        f"held out: {part.name} would be called: it differs by {part.largest:.0f} of 255 grey levels, and the limit is "
        f"{limit:.0f}; if the part is good, give more good parts"
        for part in parts.held_out
        if part.largest > limit
    ]
    if len(training) < _ADVISED:
        remarks.append(
            f"only {len(training)} good parts set the limit: others may be called, and a bad one among them may hide "
            f"defects; give {_ADVISED} or more"
        )
    if limit > _MOST:
        raise ConfigError(
            f"good parts of '{plan.data}' differ from their references by {largest:.0f} of 255 grey levels; is each "
            "reference of the same part, and are all these parts good?"
        )
    called = [part.largest > limit for part in parts.held_out]
    state = kind.skeleton(expert).state_dict()
    state["limit"], state["unit"] = torch.tensor([limit]), torch.tensor([UNIT])
    metrics = {"good_parts": float(len(training)), "largest": largest, "limit": limit}
    metrics["held_out_called"] = float(np.mean(called)) if called else 0.0
    progress(plan.epochs, plan.epochs, metrics)
    metrics["held_out"] = float(len(called))
    taken = parts.taken
    remarks += taken.identical()
    return Trained(dict(state), expert.labels, metrics, tuple(remarks), taken.sentence(), learned=taken.learned)


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

    It is the tolerance limit (see `coe.rates.tolerance_factor`) of normal values with the median and the median
    absolute deviation of the logarithms, which stand as long as most parts are good, and at most `_FAR` times the
    median. All below the least limit count as equal.
    """
    if len(parts) < _FEW:
        return math.inf
    logarithms = np.log([max(part.largest, _LEAST) for part in parts])
    middle = float(np.median(logarithms))
    deviation = max(_TO_DEVIATION * float(np.median(np.abs(logarithms - middle))), _LEAST_DEVIATION)
    beyond = tolerance_factor(len(parts), _STRANGE) * deviation
    return math.exp(middle + min(beyond, math.log(_FAR)))


def _in_data_set(expert: Expert, plan: TrainingPlan) -> _Parts:
    remarks: list[str] = []
    taken = TakenPictures(plan.data.parent)

    def good(pairs: Sequence[pair_data.PairFiles], part: DataPart) -> Iterator[GoodPart]:
        for pair in pair_data.labelled(pairs, len(expert.labels), plan, remarks):
            if not len(pair.boxes):
                taken.pictures.append(TrainingPicture(pair.path, "", part, pair.digests))
                yield GoodPart("", pair.name, _largest(pair.stack, expert))

    parts = pair_data.read(expert, plan)
    training = list(good(parts[DataPart.TRAINING], DataPart.TRAINING))
    # Nothing is chosen by held-out parts here.
    held = list(good(parts[DataPart.CHOOSING] + parts[DataPart.HELD_OUT], DataPart.HELD_OUT))
    if not training:
        raise ConfigError(f"data set '{plan.data}' has no image without a box; calibrate on good parts")
    return _Parts(training, held, remarks, taken)


def _in_folder(expert: Expert, plan: TrainingPlan) -> _Parts:
    """Compare the good parts of each component with its reference; a share of them is held out."""
    parts: list[GoodPart] = []
    remarks: list[str] = []
    if not plan.references:
        raise ConfigError(
            f"expert '{expert.id}' compares good parts with their references; make these with `coe-experts "
            "reference`, and train with --board, whose rules name them"
        )
    if len(plan.references) > 1 and not any((plan.data / component).is_dir() for component in plan.references):
        raise ConfigError(f"{plan.data}: give a folder with a folder of each component: {', '.join(plan.references)}")
    pictures = good_parts.pictures(expert, plan)
    if not pictures:
        places = f"in {plan.data} itself, or in a folder of each component ({', '.join(plan.references)})"
        raise ConfigError(f"{plan.data} holds no images of good parts; put them {places}")
    taken = TakenPictures(plan.data)
    for component, path in pictures:
        name = path.relative_to(plan.data).as_posix()
        image = good_parts.pixels(path, plan, taken)
        pair = compared(image, best_of(image, plan.references[component].alternates))
        if pair.stack is None:
            remarks.append(f"left out: {name}: {pair.doubt}")
        else:
            parts.append(GoodPart(component, name, _largest(pair.stack, expert)))
    if not parts or len(parts) < len(pictures) / 2:
        why = f", such as {remarks[0].removeprefix('left out: ')}" if remarks else ""
        raise ConfigError(f"{plan.data}: {len(parts)} of {len(pictures)} images fit their references{why}")
    random.Random(plan.seed).shuffle(parts)
    training: list[GoodPart] = []
    held: list[GoodPart] = []
    for component in plan.references:
        alike = [part for part in parts if part.component == component]
        count = round(len(alike) * plan.held_out) if len(alike) > _FEW else 0
        held, training = held + alike[:count], training + alike[count:]
        if not alike:
            remarks.append(f"no good parts of {component}: the limit is not proved for it")
        elif len(alike) < _FEW < len(parts):
            remarks.append(
                f"only {len(alike)} good parts of {component}: a bad one among them is found only if it differs far "
                f"more than those of other components; give {_FEW} or more"
            )
    taken.hold_out({plan.data / part.name for part in held})
    return _Parts(training, held, remarks, taken)


def _largest(stack: Image, expert: Expert) -> float:
    """Return the largest difference of a stack, in grey levels, that lasts as the expert would see it."""
    fitting = letterbox(stack, expert.input_size, (0, 0, 0))
    mean = smooth(torch.from_numpy(fitting.pixels[None, 2:]).float())[0, 0].numpy()
    return float(cv2.morphologyEx(mean, cv2.MORPH_OPEN, OPENING).max())
