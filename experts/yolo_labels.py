"""The files of labels of a YOLO data set, read before training: ultralytics leaves out pictures whose file is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coe.errors import ConfigError, list_few
from coe.pictures.photographs import Purpose
from experts import yolo_images
from experts.taken import TrainingPicture

_SHOWN = 10
_WHY = "ignoring corrupt image/label: "
_OVER = 0.02
"""Rounding puts boxes less far over the edge of their picture, as a share of its side."""
_SMALLEST = 0.05
_MOSTLY = 0.1
"""If more boxes reach over an edge, other numbers were written, unless they are cut."""


@dataclass(frozen=True, slots=True)
class CheckedLabels:
    """Sentences about images without a file and odd boxes, and the sizes of the boxes.

    `smallest` is the shorter side of boxes, as a share of the longer side of their pictures, that a twentieth of them
    does not reach.
    """

    remarks: tuple[str, ...]
    smallest: float


def check(pictures: Sequence[TrainingPicture], labels: int, source: Path) -> CheckedLabels:
    """Read all files of labels; raises ConfigError with all files that are wrong.

    Also if no image to learn from has an object. `labels` is the number of labels, and `source` the file of the data
    set. `ultralytics` must be quiet by now.
    """
    from ultralytics.data import utils

    missing, wrong, over, learns, file = list[str](), list[str](), list[str](), False, source
    marked, shares = [np.zeros((0, 5), np.float32)], [np.zeros(0, np.float32)]
    for picture in pictures:
        file = yolo_images.labels_of(picture.path)
        _, boxes, shape, *_, message = utils.verify_image_label(
            (str(picture.path), str(file), "", False, labels, 0, 0, False)
        )
        learns |= picture.part is Purpose.LEARN and boxes is not None and len(boxes) > 0
        if boxes is not None:
            over += [f"{_named(file)} ({' '.join(f'{one:.4g}' for one in box)})" for box in _over_edge(boxes)]
            marked.append(boxes)
            height, width = shape
            shares.append((boxes[:, 3:5] * (width, height)).min(axis=1) / max(height, width))
        if _WHY in message:
            wrong.append(f"{_named(file)} ({message.partition(_WHY)[2]:.120})")
        elif not file.is_file():
            missing.append(_named(picture.path))
    if wrong:
        raise ConfigError(
            f"data set '{source}': {len(wrong)} label files are wrong: {list_few(wrong, _SHOWN, '; ')}; each line "
            f"is the number of a label, 0 to {labels - 1}, then centre and size of a box, or the corners of a polygon, "
            "as fractions of the picture"
        )
    each = np.concatenate(marked)
    if len(over) > _MOSTLY * len(each) and not _are_cut(each):
        raise ConfigError(
            f"data set '{source}': {len(over)} of {len(each)} boxes have no area, or extend beyond their "
            f"picture: {list_few(over, _SHOWN, '; ')}; each line is the middle and the size of a box, not its corners"
        )
    if not learns:
        raise ConfigError(
            f"data set '{source}': no training image has a label; those of the last were searched in "
            f"'{file}' (those of a folder 'images' in 'labels' beside it, if there is such a folder)"
        )
    told = {
        "without a label file, and so without an object": missing,
        "boxes without area, or extending beyond their picture": over,
    }
    remarks = tuple(f"{what}: {len(where)}, {list_few(where, _SHOWN, '; ')}" for what, where in told.items() if where)
    sides = np.concatenate(shares)
    return CheckedLabels(remarks, float(np.quantile(sides[sides > 0], _SMALLEST)) if (sides > 0).any() else 0.0)


def _over_edge(boxes: NDArray[np.float32]) -> list[list[float]]:
    """Return the boxes, as (centre, size), without area or over the edge of their picture, of (label, centre, size)."""
    middle, half = boxes[:, 1:3], boxes[:, 3:5] / 2
    odd = (half <= 0) | (middle - half < -_OVER) | (middle + half > 1 + _OVER)
    return [[float(one) for one in box] for box in boxes[odd.any(axis=1), 1:]]


def _are_cut(boxes: NDArray[np.float32]) -> bool:
    """Tell whether boxes (label, centre, size) are those of objects that the edges of tiles cut.

    They reach over opposite edges. Two corners in their place do so too, but no size is less than its middle then; and
    a left upper corner with a size never reaches over the right or lower edge.
    """
    middle, size = boxes[:, 1:3], boxes[:, 3:5]
    beyond = (middle - size / 2 < -_OVER).any(), (middle + size / 2 > 1 + _OVER).any()
    return all(beyond) and bool((size < middle).any() and (size > 0).all())


def _named(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"  # each part may have a file of one name
