"""Reading a labelled folder into memory: `data/<label>/*`, or `data/train/<label>/*` beside `data/val/<label>/*`.

With `data/test/<label>/*` as well, `val` chooses the best epoch, and `test` measures the outcome.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import torch

from coe.core import Expert
from coe.errors import ConfigError, ImageError
from coe.pictures.decoding import decode
from coe.pictures.finding import EXTENSIONS
from coe.spelling import by_spelling, composed
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

    Without a `val` or `test` folder, a share `plan.held_out` of each label's images is held out, by `plan.seed`. What
    is held out and was learned as well, under another name, measures nothing and is left out. Raises ConfigError if
    folders and labels do not match, a label has too few images, pictures lie elsewhere, or one cannot be read.
    """
    try:
        listed = _parts(expert, plan)
    except OSError as error:
        raise ConfigError(f"'{error.filename or plan.data}' cannot be read: {error.strerror or error}") from error
    loaded = {part: _loaded(listed.get(part, {}), kind, expert, plan, taken, part) for part in DataPart}
    held, leaked = loaded[DataPart.HELD_OUT], taken.leaked
    clean = [picture.path not in leaked for picture in taken.pictures if picture.part is DataPart.HELD_OUT]
    kept = torch.tensor(clean, dtype=torch.bool)
    return LabelledParts(
        loaded[DataPart.TRAINING], loaded[DataPart.CHOOSING], LabelledImages(held.images[kept], held.labels[kept])
    )


def _parts(expert: Expert, plan: TrainingPlan) -> dict[DataPart, dict[str, list[Path]]]:
    root = plan.data
    if not root.is_dir():
        raise ConfigError(f"'{root}' is not a folder; give one with a folder of images for each label")
    if len(expert.labels) < 2:
        raise ConfigError(
            f"expert '{expert.id}' has only one label ({', '.join(expert.labels)}) and would give it to every image; "
            "a classifier needs two or more"
        )
    if not (root / "train").is_dir():
        training, held = _held_out(_listed(root, expert), plan, expert)
        return {DataPart.TRAINING: training, **_halves(held, plan)}
    splits = _folders(root)
    if others := splits - {"train", "val", "test"}:
        raise ConfigError(
            f"'{root}' has 'train', and beside it {sorted(others)}; only 'val' and 'test' may stand there"
        )
    training = _listed(root / "train", expert)
    if "test" in splits:
        test = {DataPart.TRAINING: training, DataPart.HELD_OUT: _listed(root / "test", expert)}
        return {**test, DataPart.CHOOSING: _listed(root / "val", expert)} if "val" in splits else test
    if "val" in splits:
        held = _listed(root / "val", expert)
    else:
        training, held = _held_out(training, plan, expert)
    return {DataPart.TRAINING: training, **_halves(held, plan)}


def _halves(held: dict[str, list[Path]], plan: TrainingPlan) -> dict[DataPart, dict[str, list[Path]]]:
    if sum(map(len, held.values())) < MANY:
        return {DataPart.HELD_OUT: held}
    halves = {label: halved(paths, plan.seed) for label, paths in held.items()}
    return {
        DataPart.CHOOSING: {label: half for label, (half, _) in halves.items()},
        DataPart.HELD_OUT: {label: half for label, (_, half) in halves.items()},
    }


def _folders(root: Path) -> set[str]:
    """Return the folders in a folder; raises ConfigError if pictures, whose label nobody knows, lie beside them."""
    paths = [path for path in root.iterdir() if not path.name.startswith(".")]
    if loose := sorted(path.name for path in paths if path.suffix.lower() in EXTENSIONS):
        raise ConfigError(f"'{root}' holds {loose[0]} beside the folders of labels; put each picture into one of them")
    return {path.name for path in paths if path.is_dir()}


def _listed(root: Path, expert: Expert) -> dict[str, list[Path]]:
    try:
        folders = by_spelling(_folders(root))
    except ValueError as error:
        raise ConfigError(f"'{root}': {error}") from error
    if set(folders) != set(map(composed, expert.labels)):
        raise ConfigError(
            f"'{root}' has folders for {sorted(folders.values())}, expert '{expert.id}' has the labels "
            f"{list(expert.labels)}; they must match"
        )
    return {label: _pictures(root / folders[composed(label)]) for label in expert.labels}


def _pictures(folder: Path) -> list[Path]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS)
    paths = [path for path in paths if not any(name.startswith(".") for name in path.relative_to(folder).parts)]
    if not paths:
        raise ConfigError(f"'{folder}' holds no image")
    if deeper := [path for path in paths if path.parent != folder]:
        raise ConfigError(
            f"'{folder}' holds a folder with pictures, {deeper[0].parent.relative_to(folder)}; take it out, or put its "
            "pictures among the others"
        )
    return paths


def _held_out(
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
