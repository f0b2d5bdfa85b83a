"""A data set of pairs: that of a YOLO detector, with the picture of a good part for each image.

The YAML has `path`, `train`, `val` and `names`. The image `images/train/a.png` has its boxes in `labels/train/a.txt` (a
line of class, centre x, centre y, width and height, as shares, for each box; no file means no box), and its reference
in `references/train/a.png`, or a file of that name with the ending of another picture format.

The YAML may have `inverse`: for each label that of the same defect in the negative of both pictures, as `{short: open,
open: short}` where dark traces become gaps. Training then sees negatives, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coe.comparing.motion import Numbers
from coe.core import Expert
from coe.errors import ConfigError, ImageError
from coe.learn import data_set
from coe.pictures.decoding import decode
from coe.pictures.formats import EXTENSIONS
from coe.pictures.photographs import Purpose, by_purpose
from coe.store.kinds import Image, Reference, TrainingPlan
from coe.store.learned import PictureDigests
from experts import yolo_images
from experts.pair import Compared, compared, in_picture
from experts.taken import digests_of


@dataclass(frozen=True, slots=True)
class PairFiles:
    """An image of a data set: its own path, that of its reference, and that of its boxes, which need not exist."""

    image: Path
    reference: Path
    boxes: Path


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """A pair that could be aligned. `boxes` (n, 4) are x1, y1, x2, y2 in the reference's frame; `labels` is (n,).

    `path` and `digests` are those of the picture, not of its reference. `misfit` is what its correlation lacks of 1.
    """

    path: Path
    digests: PictureDigests
    stack: Image
    boxes: Numbers
    labels: np.ndarray  # type: ignore[type-arg]
    misfit: float

    @property
    def name(self) -> str:
        """The name of the picture's file."""
        return self.path.name


def read(expert: Expert, plan: TrainingPlan) -> dict[Purpose, list[PairFiles]]:
    """Return the pairs to train on, to choose by (there may be none), and held out; see `experts.yolo_images.read`.

    Raises ConfigError if the labels differ from the expert's, if an image has no reference, or if there are too few.
    """
    images = by_purpose(yolo_images.read(expert, plan))
    return {purpose: [_files(image.path, plan.data) for image in rows] for purpose, rows in images.items()}


def inverse(expert: Expert, source: Path) -> tuple[int, ...] | None:
    """Return for each label the place of its label in the negative; None if the data set has none.

    Raises ConfigError.
    """
    entry = data_set.read(source).get("inverse")
    if entry is None:
        return None
    if not isinstance(entry, dict) or sorted(entry) != sorted(expert.labels) or not {*entry.values()} <= {*entry}:
        raise ConfigError(f"data set '{source}': 'inverse' must give one of {list(expert.labels)} for each of them")
    return tuple(expert.labels.index(entry[label]) for label in expert.labels)


def _files(image: Path, source: Path) -> PairFiles:
    parts = list(image.parts)
    if "images" not in parts[:-1]:
        raise ConfigError(
            f"data set '{source}': '{image}' is not in a folder `images` beside `references`; move it there"
        )
    place = len(parts) - 2 - parts[-2::-1].index("images")

    def beside(folder: str, suffix: str) -> Path:
        return Path(*parts[:place], folder, *parts[place + 1 :]).with_suffix(suffix)

    wanted = [beside("references", suffix) for suffix in dict.fromkeys((image.suffix, *sorted(EXTENSIONS)))]
    reference = next((path for path in wanted if path.is_file()), None)
    if reference is None:
        raise ConfigError(f"data set '{source}': '{image.name}' has no reference '{wanted[0]}'")
    return PairFiles(image, reference, beside("labels", ".txt"))


def labelled(pairs: Sequence[PairFiles], labels: int, plan: TrainingPlan, remarks: list[str]) -> Iterator[LabelledPair]:
    """Yield the pairs that can be aligned, with their boxes; `labels` is the number of labels.

    To `remarks` a sentence is added for each pair that is left out.

    Raises ConfigError for a picture that cannot be decoded, for damaged boxes, and if most pairs cannot be aligned.
    """
    lost, source = 0, plan.data
    for files in pairs:
        try:
            image, reference = (decode(path, bits=plan.bits) for path in (files.image, files.reference))
        except ImageError as error:
            raise ConfigError(f"data set '{source}': '{files.image.name}' or its reference {error}") from error
        pair = compared(image, Reference(reference, np.zeros(reference.shape[:2], np.uint8)))
        if pair.stack is None:
            lost += 1
            remarks.append(f"left out: {files.image.name}: {pair.doubt}")
            if lost > len(pairs) / 2:
                raise ConfigError(
                    f"data set '{source}': most pairs cannot be compared, such as '{files.image.name}': {pair.doubt}"
                )
            continue
        yield _with_boxes(files, pair, pair.stack, image, labels)


def _with_boxes(files: PairFiles, pair: Compared, stack: Image, image: Image, labels: int) -> LabelledPair:
    height, width = image.shape[:2]
    rows = _rows(files.boxes, labels)
    middle, half = rows[:, 1:3] * (width, height), rows[:, 3:5] * (width, height) / 2
    boxes = np.hstack((middle - half, middle + half))
    assert pair.alignment is not None
    whole = np.vstack((pair.alignment.to_picture, (0.0, 0.0, 1.0)))
    boxes = in_picture(boxes, np.linalg.inv(whole)[:2])
    digests = digests_of(files.image, image)
    return LabelledPair(files.image, digests, stack, boxes, rows[:, 0].astype(np.int64), 1 - pair.alignment.fit)


def _rows(path: Path, labels: int) -> Numbers:
    """Read the boxes of an image, (n, 5); none without a file. Raises ConfigError."""
    if not path.is_file():
        return np.zeros((0, 5))
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = [float(word) for word in line.split()]
        except ValueError:
            row = []
        if len(row) != 5 or not all(0 <= share <= 1 for share in row[1:]) or row[0] not in range(labels):
            raise ConfigError(
                f"{path}:{number}: not a box; write a class from 0 to {labels - 1}, then centre x, centre y, width and "
                "height as fractions of the picture"
            )
        rows.append(row)
    return np.array(rows, np.float64).reshape(-1, 5)
