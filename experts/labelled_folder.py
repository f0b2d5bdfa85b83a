"""Reading photographs into memory: `coe.learn.labelled` says which, and with which labels.

With `data/test/<label>/*` as well, `val` chooses the best epoch, and `test` measures the outcome. Of good parts each
picture has its component; what is known to be bad is left out, and what is unclear refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from coe.core import Expert
from coe.errors import ConfigError, ImageError, TooFewPictures, list_few, readable
from coe.helpers import regular
from coe.learn import labelled
from coe.pictures.decoding import decode
from coe.pictures.label_folders import letters
from coe.pictures.photographs import Photograph, Purpose, by_purpose
from coe.store.kinds import Image, Kind, TrainingPlan
from experts.proof import divided
from experts.taken import TakenPictures

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """Images ready for a network, (n, 3, S, S) uint8, and the indices of their labels, (n,) int64."""

    images: torch.Tensor
    labels: torch.Tensor


def read(kind: Kind, expert: Expert, plan: TrainingPlan, taken: TakenPictures) -> dict[Purpose, LabelledImages]:
    """Return the images by what they are for, and note them in `taken`; see `experts.proof`. VERIFY may have none.

    Without a `val` or `test` folder, a share `plan.held_out` of each label's images is held out, by `plan.seed`; none
    if it is 0. What is held out and was learned as well, under another name, measures nothing and is left out. Raises
    ConfigError if folders and labels do not match, a label has too few images, pictures lie elsewhere, or one cannot be
    read.
    """
    with readable(plan.data):
        listed = _parts(expert, plan)
    loaded = {part: _loaded(listed[part], kind, expert, plan, taken, part) for part in Purpose}
    held, leaked = loaded[Purpose.TEST], taken.leaked
    clean = [picture.path not in leaked for picture in taken.pictures if picture.part is Purpose.TEST]
    kept = torch.tensor(clean, dtype=torch.bool)
    return loaded | {Purpose.TEST: LabelledImages(held.images[kept], held.labels[kept])}


def _parts(expert: Expert, plan: TrainingPlan) -> dict[Purpose, dict[str, list[Path]]]:
    if len(expert.labels) < 2:
        raise ConfigError(
            f"expert '{expert.id}' has only one label ({', '.join(expert.labels)}) and would give it to every image; "
            "a classifier needs two or more"
        )
    given = {
        purpose: _listed(plan.data, rows, expert)
        for purpose, rows in by_purpose(_rows(expert, plan)).items()
        if rows or purpose is Purpose.LEARN
    }
    few = [label for label, paths in given[Purpose.LEARN].items() if len(paths) < 2]
    if few and len(given) == 1:
        raise TooFewPictures(
            f"expert '{expert.id}' has one image of '{few[0]}'; give two, one to train with and one to hold out"
        )
    return divided(given, plan.held_out, plan.seed)


def _rows(expert: Expert, plan: TrainingPlan, *, good_only: bool = False) -> Sequence[Photograph]:
    """Return the photographs of a plan; without any, those in its folder, by the labels of the expert alone.

    Raises ConfigError for a file that is there as a good part and as a bad one.
    """
    components = plan.references if good_only else ()
    rows = plan.photographs
    if rows is None:
        rows = labelled.of_expert(plan.data, expert, good_only=good_only, components=components)
    first: dict[str, Photograph] = {}
    same = [(first.setdefault(regular.sha256(one.path), one), one) for one in rows]
    if both := [f"{other.name} = {one.name}" for other, one in same if other.good is not one.good]:
        few = list_few(both, _SHOWN, "; ")
        raise ConfigError(f"'{plan.data}': the same picture is good and bad: {few}; remove it from the wrong folder")
    return rows


def _listed(root: Path, found: Sequence[Photograph], expert: Expert) -> dict[str, list[Path]]:
    listed: dict[str, list[Path]] = {label: [] for label in expert.labels}
    for one in found:
        listed[one.label].append(one.path)
    if missing := [label for label, paths in listed.items() if not paths]:
        root = root / found[0].name.partition("/")[0] if found and found[0].purpose else root
        raise TooFewPictures(
            f"'{root}' holds no pictures of {', '.join(missing)}, and expert '{expert.id}' has the labels "
            f"{list(expert.labels)}; give a folder of pictures for each"
        )
    return {label: sorted(paths) for label, paths in listed.items()}


def _loaded(
    listed: dict[str, list[Path]], kind: Kind, expert: Expert, plan: TrainingPlan, taken: TakenPictures, part: Purpose
) -> LabelledImages:
    images, labels = [], []
    for place, label in enumerate(expert.labels):
        for path in listed.get(label, []):
            shown = pixels(path, plan, taken, part, label)
            images.append(torch.from_numpy(kind.preprocess(shown, expert).pixels))
            labels.append(place)
    size = expert.input_size
    stacked = torch.stack(images) if images else torch.zeros(0, 3, size, size, dtype=torch.uint8)
    return LabelledImages(stacked, torch.tensor(labels, dtype=torch.int64))


# Good parts


def shown_parts(expert: Expert, plan: TrainingPlan) -> list[Photograph]:
    """Return the pictures of good parts, and of those known to be bad, in a plan's folder, by component and path.

    Without a folder of a component, all pictures are of the first component. Raises ConfigError if there is no folder.
    """
    if not plan.data.is_dir():
        raise ConfigError(f"{plan.data}: give a folder with images of good parts")
    if letters(name := plan.data.resolve().name) in {letters(label) for label in (*expert.labels, *expert.reject)}:
        raise ConfigError(f"{plan.data}: '{name}' is a label of bad parts; give a folder with good parts only")
    order = list(plan.references) or [""]
    found = [replace(one, component=one.component or order[0]) for one in _rows(expert, plan, good_only=True)]
    return sorted(found, key=lambda one: (order.index(one.component) if one.component in order else 0, one.path))


def pixels(
    path: Path, plan: TrainingPlan, taken: TakenPictures, part: Purpose = Purpose.LEARN, label: str = ""
) -> Image:
    """Return a picture, (H, W, 3) uint8 RGB, and note it; raises ConfigError if it cannot be read."""
    try:
        image = decode(path, bits=plan.bits)
    except ImageError as error:
        raise ConfigError(f"'{path}' {error}; remove it or save it again") from error
    taken.add(path, image, part, label)
    return image
