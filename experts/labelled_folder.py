"""Reading a labelled folder into memory: `data/<label>/*`, or `data/train/<label>/*` beside `data/val/<label>/*`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch

from coe.board.decoding import decode
from coe.board.images import EXTENSIONS
from coe.core import Expert
from coe.errors import ConfigError, ImageError
from coe.store.kinds import Kind, TrainingPlan
from experts.taken import Part, Taken


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """Images ready for a network, (n, 3, S, S) uint8, and the indices of their labels, (n,) int64."""

    images: torch.Tensor
    labels: torch.Tensor


def read(kind: Kind, expert: Expert, plan: TrainingPlan, taken: Taken) -> tuple[LabelledImages, LabelledImages]:
    """Return the training images and the held-out images, and note them in `taken`.

    Without a `val` folder, a share `plan.held_out` of each label's images is held out, by `plan.seed`. Raises
    ConfigError if folders and labels do not match, a label has too few images, or an image cannot be read.
    """
    try:
        return _read(kind, expert, plan, taken)
    except OSError as error:
        raise ConfigError(f"'{error.filename or plan.data}' cannot be read: {error.strerror or error}") from error


def _read(kind: Kind, expert: Expert, plan: TrainingPlan, taken: Taken) -> tuple[LabelledImages, LabelledImages]:
    root = plan.data
    if not root.is_dir():
        raise ConfigError(f"'{root}' is not a folder; give one with a folder of images for each label")
    if len(expert.labels) < 2:
        raise ConfigError(
            f"expert '{expert.id}' has only one label ({', '.join(expert.labels)}) and would give it to every image; "
            "a classifier needs two or more"
        )
    if (root / "train").is_dir():
        training = _listed(root / "train", expert)
        held = _listed(root / "val", expert) if (root / "val").is_dir() else None
    else:
        training, held = _listed(root, expert), None
    if held is None:
        training, held = _parted(training, plan, expert)
    parts = ((training, Part.TRAINING), (held, Part.CHOOSING))
    first, second = (_loaded(listed, kind, expert, taken, part) for listed, part in parts)
    return first, second


def _listed(root: Path, expert: Expert) -> dict[str, list[Path]]:
    folders = {path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")}
    if folders != set(expert.labels):
        raise ConfigError(
            f"'{root}' has folders for {sorted(folders)}, expert '{expert.id}' has the labels {list(expert.labels)}; "
            "they must match"
        )
    listed = {
        label: sorted(path for path in (root / label).iterdir() if path.suffix.lower() in EXTENSIONS)
        for label in expert.labels
    }
    for label, paths in listed.items():
        if not paths:
            raise ConfigError(f"'{root / label}' holds no image")
    return listed


def _parted(
    listed: dict[str, list[Path]], plan: TrainingPlan, expert: Expert
) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    training, held = {}, {}
    for label, paths in listed.items():
        if len(paths) < 2:
            raise ConfigError(f"expert '{expert.id}' has one image of '{label}'; training needs two, one to hold out")
        shuffled = paths[:]
        random.Random(plan.seed).shuffle(shuffled)
        count = min(len(paths) - 1, max(1, round(len(paths) * plan.held_out)))
        held[label], training[label] = shuffled[:count], shuffled[count:]
    return training, held


def _loaded(listed: dict[str, list[Path]], kind: Kind, expert: Expert, taken: Taken, part: Part) -> LabelledImages:
    images, labels = [], []
    for place, label in enumerate(expert.labels):
        for path in listed[label]:
            try:
                pixels = decode(path)
                images.append(torch.from_numpy(kind.preprocess(pixels, expert).pixels))
            except ImageError as error:
                raise ConfigError(f"'{path}' {error}; remove it or save it again") from error
            taken.add(path, pixels, part, label)
            labels.append(place)
    return LabelledImages(torch.stack(images), torch.tensor(labels, dtype=torch.int64))
