"""The images of a YOLO data set, to train on, to choose by, and held out: folders or lists, relative to its `path`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from coe.core import Expert
from coe.errors import ConfigError, ImageError
from coe.helpers.spelling import composed
from coe.helpers.system import usable_cores
from coe.learn import data_set
from coe.pictures import finding
from coe.pictures.decoding import decode
from coe.pictures.label_folders import TO_CHOOSE
from coe.pictures.photographs import Photograph, Purpose
from coe.store.kinds import TrainingPlan
from coe.store.learned import PictureDigests
from experts.proof import divided
from experts.taken import TakenPictures, TrainingPicture, digests_of

_LEAST_SHARE = 1e-9
"""A detector is measured with one picture at least."""


def read(expert: Expert, plan: TrainingPlan) -> list[Photograph]:
    """Return the images that the YAML of a data set (`path`, `train`, `val`, `test`, `names`) lists, with purposes.

    `train`, `val` and `test` are folders or list files, relative to `path` (itself relative to the YAML). `val` chooses
    the epoch, and `test` measures it; without them see `experts.proof.divided`. Raises ConfigError if the labels differ
    from the expert's, or if there are too few images.
    """
    raw = data_set.read(plan.data)
    names = data_set.names(raw, plan.data)
    if names != tuple(map(composed, expert.labels)):
        raise ConfigError(
            f"data set '{plan.data}' has the labels {list(names)}, expert '{expert.id}' has {list(expert.labels)}; "
            "they must be the same in the same order"
        )
    root = data_set.root_of(plan.data)
    choosing = next((raw[name] for name in TO_CHOOSE if raw.get(name)), None)
    entries = zip(Purpose, (raw["train"], choosing, raw.get("test")), strict=True)
    given = {purpose: {"": images_of(root, entry, plan.data)} for purpose, entry in entries if entry}
    parts = divided(given, plan.held_out or _LEAST_SHARE, plan.seed)
    if not all(parts[purpose].get("") for purpose in (Purpose.LEARN, Purpose.TEST)):
        raise ConfigError(f"data set '{plan.data}' has too few images to train on and to hold some out")
    return [
        Photograph(path, name=str(path), purpose=purpose)
        for purpose, by_label in parts.items()
        for path in by_label.get("", [])
    ]


def prove(images: Sequence[Photograph], plan: TrainingPlan) -> TakenPictures:
    """Return what is taken; raises ConfigError for the first image that is not whole: ultralytics would learn it."""

    def proved(path: Path) -> PictureDigests:
        try:
            return digests_of(path, decode(path, bits=plan.bits))
        except ImageError as error:
            raise ConfigError(f"'{path}' {error}; remove it or save it again with 8 bits a channel") from error

    taken = TakenPictures(data_set.root_of(plan.data))
    with ThreadPoolExecutor(usable_cores()) as pool:
        try:
            for one, digests in zip(images, pool.map(proved, [one.path for one in images]), strict=True):
                taken.pictures.append(TrainingPicture(one.path, "", one.purpose or Purpose.LEARN, digests))
        except ConfigError:
            pool.shutdown(cancel_futures=True)
            raise
    return taken


def images_of(root: Path, entry: Any, source: Path) -> list[Path]:
    """Return the images of an entry (`train` or `val`) of a data set: a folder, a list file, or several of these.

    Raises ConfigError, which names the data set's file `source`, or a picture that is not read.
    """
    images: list[Path] = []
    for place in _places(root, entry, source):
        if place.is_dir():
            images += sorted(finding.pictures(place))
        elif place.is_file():
            try:
                lines = place.read_text(encoding="utf-8-sig").split("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"data set '{source}': '{place}' cannot be read as a list ({error})") from error
            images += [_found(line.strip(), place.parent) for line in lines if line.strip()]
        else:
            raise ConfigError(
                f"data set '{source}': '{place}' is neither a folder nor a list of images; correct the "
                "entry, or remove it"
            )
    return images


def _places(root: Path, entry: Any, source: Path) -> list[Path]:
    parts = entry if isinstance(entry, list) else [entry]
    return [_found(str(part), root, source.parent) for part in parts]


def labels_of(image: Path) -> Path:
    """Return the file of an image's labels: in 'labels' beside a folder 'images', in any case, or else beside it."""
    folders = image.parts[:-1]
    for at in reversed([number for number, name in enumerate(folders) if name.casefold() == "images"]):
        for name in ("labels", "Labels", "LABELS"):
            if (folder := Path(*folders[:at], name)).is_dir():
                return folder.joinpath(*folders[at + 1 :], image.name).with_suffix(".txt")
    return image.with_suffix(".txt")


def _found(entry: str, *bases: Path) -> Path:
    """Return what an entry names in one of some folders; what it names in the first if there is nothing.

    Programs count from other folders, or write where it lay on another machine: then its end counts, two names or more.
    """
    names = [name for name in re.split(r"[/\\]", entry) if name not in ("", ".", "..")]
    ends = [names[start:] for start in range(max(1, len(names) - 1))]
    places = [base / entry for base in bases] + [base.joinpath(*end) for end in ends for base in bases]
    return next((place for place in places if place.exists()), places[0])
