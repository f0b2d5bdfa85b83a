"""Pictures of good parts, each with its component; what is known to be bad is left out, and what is unclear refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coe.board import labelled_photographs
from coe.core import Expert
from coe.errors import ConfigError, ImageError
from coe.pictures.decoding import decode
from coe.pictures.label_folders import letters
from coe.pictures.photographs import LabelledPhotograph
from coe.store.kinds import Image, TrainingPlan
from experts.taken import DataPart, TakenPictures


def pictures(expert: Expert, plan: TrainingPlan) -> list[tuple[str, Path]]:
    """Return the pictures of good parts in a plan's folder, sorted, each with its component.

    Without a folder of a component, all pictures are of the first component. Raises ConfigError if there is no folder.
    """
    if not plan.data.is_dir():
        raise ConfigError(f"{plan.data}: give a folder with images of good parts")
    if letters(name := plan.data.resolve().name) in {letters(label) for label in (*expert.labels, *expert.reject)}:
        raise ConfigError(f"{plan.data}: '{name}' is a label against a part; give a folder with good parts alone")
    found = _photographs(expert, plan)
    first = next(iter(plan.references), "")
    of_component = [(one.component or first, one.path) for one in found if one.good]
    order = list(plan.references) or [first]
    return sorted(of_component, key=lambda pair: (order.index(pair[0]) if pair[0] in order else 0, pair[1]))


def bad_pictures(expert: Expert, plan: TrainingPlan) -> list[Path]:
    """Return the pictures in a plan's folder that are known to be bad, sorted."""
    return sorted(one.path for one in _photographs(expert, plan) if not one.good)


def _photographs(expert: Expert, plan: TrainingPlan) -> Sequence[LabelledPhotograph]:
    if plan.photographs is not None:
        return plan.photographs
    return labelled_photographs.read(plan.data, expert, good_only=True, components=plan.references)


def pixels(path: Path, plan: TrainingPlan, taken: TakenPictures, part: DataPart = DataPart.TRAINING) -> Image:
    """Return a picture, (H, W, 3) uint8 RGB, and note it; raises ConfigError if it cannot be read."""
    try:
        image = decode(path, bits=plan.bits)
    except ImageError as error:
        raise ConfigError(f"'{path}' {error}; remove it from the folder") from error
    taken.add(path, image, part)
    return image
