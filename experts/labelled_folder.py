"""Reading labelled photographs into memory: `coe.board.labelled_photographs` says which, and with which labels.

With `data/test/<label>/*` as well, `val` chooses the best epoch, and `test` measures the outcome.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from coe.board import labelled_photographs
from coe.core import Expert
from coe.errors import ConfigError, ImageError, TooFewPictures, readable
from coe.pictures.decoding import decode
from coe.pictures.photographs import LabelledPhotograph
from coe.store.kinds import Kind, TrainingPlan
from experts.proof import MANY, halved
from experts.taken import DataPart, TakenPictures


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """Images ready for a network, (n, 3, S, S) uint8, and the indices of their labels, (n,) int64."""

    images: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True, slots=True)
class LabelledParts:
    """The images to learn from, those to choose the best epoch by (there may be none), and those held out."""

    training: LabelledImages
    choosing: LabelledImages
    held_out: LabelledImages


def read(kind: Kind, expert: Expert, plan: TrainingPlan, taken: TakenPictures) -> LabelledParts:
    """Return the images in three parts, and note them in `taken`; see `experts.proof`.

    Without a `val` or `test` folder, a share `plan.held_out` of each label's images is held out, by `plan.seed`; none
    if it is 0. What is held out and was learned as well, under another name, measures nothing and is left out. Raises
    ConfigError if folders and labels do not match, a label has too few images, pictures lie elsewhere, or one cannot be
    read.
    """
    with readable(plan.data):
        listed = _parts(expert, plan)
    loaded = {part: _loaded(listed.get(part, {}), kind, expert, plan, taken, part) for part in DataPart}
    held, leaked = loaded[DataPart.HELD_OUT], taken.leaked
    clean = [picture.path not in leaked for picture in taken.pictures if picture.part is DataPart.HELD_OUT]
    kept = torch.tensor(clean, dtype=torch.bool)
    return LabelledParts(
        loaded[DataPart.TRAINING], loaded[DataPart.CHOOSING], LabelledImages(held.images[kept], held.labels[kept])
    )


def _parts(expert: Expert, plan: TrainingPlan) -> dict[DataPart, dict[str, list[Path]]]:
    if len(expert.labels) < 2:
        raise ConfigError(
            f"expert '{expert.id}' has only one label ({', '.join(expert.labels)}) and would give it to every image; "
            "a classifier needs two or more"
        )
    found = labelled_photographs.read(plan.data, expert) if plan.photographs is None else plan.photographs
    parts = {one.part for one in found}
    listed = {part: _listed(plan.data / part, [one for one in found if one.part == part], expert) for part in parts}
    if "test" in listed:
        choosing = {DataPart.CHOOSING: listed["val"]} if "val" in listed else {}
        return {DataPart.TRAINING: listed["train"], DataPart.HELD_OUT: listed["test"], **choosing}
    if "val" in listed:
        training, held = listed["train"], listed["val"]
    else:
        training, held = _held_out(
            listed.get("train") or listed.get("") or _listed(plan.data, [], expert), plan, expert
        )
    return {DataPart.TRAINING: training, **(_halves(held, plan) if any(held.values()) else {})}


def _halves(held: dict[str, list[Path]], plan: TrainingPlan) -> dict[DataPart, dict[str, list[Path]]]:
    if sum(map(len, held.values())) < MANY:
        return {DataPart.HELD_OUT: held}
    halves = {label: halved(paths, plan.seed) for label, paths in held.items()}
    return {
        DataPart.CHOOSING: {label: half for label, (half, _) in halves.items()},
        DataPart.HELD_OUT: {label: half for label, (_, half) in halves.items()},
    }


def _listed(root: Path, found: Sequence[LabelledPhotograph], expert: Expert) -> dict[str, list[Path]]:
    listed: dict[str, list[Path]] = {label: [] for label in expert.labels}
    for one in found:
        listed[one.label].append(one.path)
    if missing := [label for label, paths in listed.items() if not paths]:
        raise TooFewPictures(
            f"'{root}' holds no pictures of {', '.join(missing)}, and expert '{expert.id}' has the labels "
            f"{list(expert.labels)}; give a folder of pictures for each"
        )
    return {label: sorted(paths) for label, paths in listed.items()}


def _held_out(
    listed: dict[str, list[Path]], plan: TrainingPlan, expert: Expert
) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    training, held = {}, {}
    for label, paths in listed.items():
        if len(paths) < 2:
            raise TooFewPictures(
                f"expert '{expert.id}' has one image of '{label}'; training needs two, one to hold out"
            )
        shuffled = paths[:]
        random.Random(plan.seed).shuffle(shuffled)
        count = min(len(paths) - 1, max(1, round(len(paths) * plan.held_out))) if plan.held_out else 0
        held[label], training[label] = shuffled[:count], shuffled[count:]
    return training, held


def _loaded(
    listed: dict[str, list[Path]], kind: Kind, expert: Expert, plan: TrainingPlan, taken: TakenPictures, part: DataPart
) -> LabelledImages:
    images, labels = [], []
    for place, label in enumerate(expert.labels):
        for path in listed.get(label, []):
            try:
                pixels = decode(path, bits=plan.bits)
                images.append(torch.from_numpy(kind.preprocess(pixels, expert).pixels))
            except ImageError as error:
                raise ConfigError(f"'{path}' {error}; remove it or save it again") from error
            taken.add(path, pixels, part, label)
            labels.append(place)
    size = expert.input_size
    stacked = torch.stack(images) if images else torch.zeros(0, 3, size, size, dtype=torch.uint8)
    return LabelledImages(stacked, torch.tensor(labels, dtype=torch.int64))
