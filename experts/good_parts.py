"""Pictures of good parts in a folder; what stands in a folder of another name is refused.

A folder that means good has the name of a component, or a usual word for good; a label that speaks against the part
never does, whatever the word. A date says nothing of parts: such a folder is as good as the one in which it lies.
"""

from __future__ import annotations

import re
from pathlib import Path

from coe.core import NOTHING, Expert
from coe.errors import ConfigError, ImageError
from coe.pictures.decoding import decode
from coe.pictures.finding import EXTENSIONS
from coe.store.kinds import Image, TrainingPlan
from experts.taken import DataPart, TakenPictures

_WORDS = frozenset(
    {NOTHING, "good", "goodparts", "gut", "io", "ok", "okay", "pass", "passed", "normal", "nodefect", "defectfree"}
)
"""Usual names of folders with good parts, without what stands between their letters."""
_DATE = re.compile(r"\d{6,}")


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
    against = {_letters(label) for label in (*expert.labels, *expert.reject)}
    if _letters(folder.resolve().name) in against:
        raise ConfigError(f"{folder}: '{folder.name}' is a label against a part; give a folder with good parts alone")
    found, others = [], set()
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.suffix.lower() not in EXTENSIONS or any(name.startswith(".") for name in inside.parts):
            continue
        names = set(map(_letters, inside.parts[:-1]))
        if names.isdisjoint(against) and all(name in _WORDS or _DATE.fullmatch(name) for name in names):
            found.append(path)
        else:
            others.add(inside.parent.as_posix())
    if others:
        raise ConfigError(
            f"{folder} holds pictures in {', '.join(sorted(others))}, and expert '{expert.id}' learns from good parts "
            f"alone; take such folders out, and put the pictures of good parts straight into {folder / 'good'}"
        )
    return found


def _letters(name: str) -> str:
    """Return the name of a folder without case and without what stands between its words."""
    return re.sub(r"[-_. ]", "", name.casefold())


def pixels(path: Path, plan: TrainingPlan, taken: TakenPictures, part: DataPart = DataPart.TRAINING) -> Image:
    """Return a picture, (H, W, 3) uint8 RGB, and note it; raises ConfigError if it cannot be read."""
    try:
        image = decode(path, bits=plan.bits)
    except ImageError as error:
        raise ConfigError(f"'{path}' {error}; remove it from the folder of good parts") from error
    taken.add(path, image, part)
    return image
