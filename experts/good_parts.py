"""Pictures of good parts in a folder. Law: what stands in a folder of another name is not taken for good, and refused.

A folder that means good has the name of a component, a usual word for good, or that of a label which speaks for the
part; a label that speaks against the part never does, whatever the word.
"""

from __future__ import annotations

from pathlib import Path

from coe.board.decoding import decode
from coe.board.images import EXTENSIONS
from coe.core import NOTHING, Expert
from coe.errors import ConfigError, ImageError
from coe.store.kinds import Image, TrainingPlan
from experts.taken import Part, Taken

_WORDS = frozenset({NOTHING, "good", "ok", "okay", "pass", "passed", "normal", "no_defect", "nodefect", "defect_free"})
"""Usual names of folders with good parts."""


def pictures(expert: Expert, plan: TrainingPlan) -> list[tuple[str, Path]]:
    """Return the pictures of a plan's folder, sorted, each with its component: of `<component>/*`, or of all of it.

    Without a folder of a component, all pictures are of the first component. Raises ConfigError if there is no folder.
    """
    if not plan.data.is_dir():
        raise ConfigError(f"{plan.data}: give a folder with images of good parts")
    folders = [component for component in plan.references if (plan.data / component).is_dir()]
    if folders:
        return [(component, path) for component in folders for path in _good(plan.data / component, expert)]
    return [(next(iter(plan.references)), path) for path in _good(plan.data, expert)]


def _good(folder: Path, expert: Expert) -> list[Path]:
    """Return the pictures in a folder and in its folders that mean good; raises ConfigError if any means else."""
    against = {label.casefold() for label in (*expert.labels, *expert.reject)}
    if folder.resolve().name.casefold() in against:
        raise ConfigError(f"{folder}: '{folder.name}' is a label against a part; give a folder with good parts alone")
    found, others = [], set()
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.suffix.lower() not in EXTENSIONS or any(name.startswith(".") for name in inside.parts):
            continue
        if all(name.casefold() in _WORDS - against for name in inside.parts[:-1]):
            found.append(path)
        else:
            others.add(inside.parent.as_posix())
    if others:
        good = next((path.parent for path in found if path.parent != folder), folder / "good")
        raise ConfigError(
            f"{folder} holds pictures in {', '.join(sorted(others))}, and expert '{expert.id}' learns from good parts "
            f"alone; take such folders out, or give --data the folder of the good parts, as {good}"
        )
    return found


def pixels(path: Path, plan: TrainingPlan, taken: Taken, part: Part = Part.TRAINING) -> Image:
    """Return a picture, (H, W, 3) uint8 RGB, and note it; raises ConfigError if it cannot be read."""
    try:
        image = decode(path, bits=plan.bits)
    except ImageError as error:
        raise ConfigError(f"'{path}' {error}; remove it from the folder of good parts") from error
    taken.add(path, image, part)
    return image
