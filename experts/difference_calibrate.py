"""Calibrating the kind `difference`: its limit lies above every difference that good parts show."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import torch

from coe.core import Expert
from coe.errors import ConfigError
from coe.store.kinds import ModuleKind, Progress, Trained, TrainingPlan
from experts import pair_data
from experts.difference_network import UNIT, averaged
from experts.geometry import letterbox
from experts.pair_data import PairFiles
from experts.proposals import OPENING

_ABOVE = 1.1
"""The limit is this many times the largest difference of the good parts."""
_LEAST, _MOST = 20.0, 240.0
"""The limits, in grey levels, between which a calibrated limit lies: noise of a camera, and no contrast left."""


def calibrate(kind: ModuleKind, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
    """Return the limit for good parts: the pairs of the data set that have no box.

    `good_parts` among the measures is how many there were, `largest` their largest difference in grey levels, and
    `held_out_called` the share of the held-out good parts in which the expert would see something. Raises ConfigError
    if there is no good part, or if good parts differ too much from their references.
    """
    remarks: list[str] = []
    training, held = (_largest(expert, part, plan, remarks) for part in pair_data.read(expert, plan))
    if not training:
        raise ConfigError(f"data set '{plan.data}' has no image without a box; calibrate on good parts")
    largest = max(training)
    limit = max(_LEAST, _ABOVE * largest)
    if limit > _MOST:
        raise ConfigError(
            f"good parts of '{plan.data}' differ from their references by {largest:.0f} of 255 grey levels; is each "
            "reference of the same part, and are all these parts good?"
        )
    called = sum(value > limit for value in held) / len(held) if held else 0.0
    state = kind.skeleton(expert).state_dict()
    state["limit"], state["unit"] = torch.tensor([limit]), torch.tensor([UNIT])
    metrics = {"good_parts": float(len(training)), "largest": largest, "limit": limit, "held_out_called": called}
    progress(plan.epochs, plan.epochs, metrics)
    metrics["held_out"] = float(len(held))
    return Trained(state=dict(state), labels=expert.labels, metrics=metrics, remarks=tuple(remarks))


def _largest(expert: Expert, pairs: Sequence[PairFiles], plan: TrainingPlan, remarks: list[str]) -> list[float]:
    """Return for each good part the largest difference, in grey levels, that lasts as the expert would see it."""
    largest = []
    for pair in pair_data.labelled(pairs, len(expert.labels), plan.data, remarks):
        if len(pair.boxes):
            continue
        fitting = letterbox(pair.stack, expert.input_size, (0, 0, 0))
        mean = averaged(torch.from_numpy(fitting.pixels[None, 2:]).float())[0, 0].numpy()
        largest.append(float(cv2.morphologyEx(mean, cv2.MORPH_OPEN, OPENING).max()))
    return largest
