"""Masks: a picture of numbers beside each picture; each connected region of a number is an object."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from coe.annotations.marked import Findings, MarkedBox
from coe.annotations.picture_index import PictureIndex, opened
from coe.errors import first_line
from coe.pictures.finding import EXTENSIONS

LOSSLESS = {".png", ".bmp", ".tif", ".tiff"}
ENDINGS = ("_mask", "-mask", ".mask", "_gt")
"""What may stand behind the name of a picture in that of its mask."""


def files(folder: Path, images: Path) -> list[Path]:
    """Return the masks in `folder`; in the folder of the pictures, if that lies in it, those whose names say so."""
    found = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in EXTENSIONS and path.is_file()]
    found = [path for path in found if not path.name.startswith(".")]
    inner = images.resolve()
    if not inner.is_relative_to(folder.resolve()):
        return found
    return [path for path in found if path.stem.endswith(ENDINGS) or not path.resolve().is_relative_to(inner)]


def read(masks: Iterable[Path], labels: tuple[str, ...], index: PictureIndex, findings: Findings) -> tuple[str, ...]:
    """Add the pictures that have one of the masks to `index`; return the labels.

    Of one label all that is not 0 is an object; of several, 1 is the first label, 2 the second, and so on. A mask of
    zeros is a good picture. Pixels that touch at a corner belong together.
    """
    for mask in masks:
        if mask.suffix.lower() not in LOSSLESS:
            findings.fault("a mask is a JPEG, whose numbers are not exact; save it as PNG", mask.name)
            continue
        stem = mask.with_suffix("")
        plain = [stem.with_name(stem.name.removesuffix(end)) for end in ENDINGS if stem.name.endswith(end)]
        path = index.find([name.as_posix() for name in (*plain, stem)], f"mask {mask.name}", told=False)
        if path is not None and (size := index.size(path)):
            values = _values(mask, size, findings)
            if values is not None:
                index.add(path, size, _boxes(values, labels, mask, findings))
    return labels


def _values(mask: Path, size: tuple[int, int], findings: Findings) -> NDArray[np.int64] | None:
    """Return the numbers of a mask, (H, W); of a picture with a palette these are its indices, not its colours."""
    try:
        with opened(mask) as picture:
            if picture.size != size:
                said = f"{mask.name} is {picture.size[0]} x {picture.size[1]}, the picture {size[0]} x {size[1]}"
                findings.fault("a mask is not as large as its picture", said)
                return None
            palette = (picture.getpalette() or [])[:3] if picture.mode == "P" else []
            values = np.asarray(picture)
    except Exception as error:  # Pillow raises errors of many types for damaged files
        findings.fault("a mask cannot be read", f"{mask.name} ({first_line(error)})")
        return None
    if any(palette):
        what = "a mask has a palette whose number 0, the background, is not black; save it in grey, 0 for good"
        findings.fault(what, mask.name)
        return None
    if values.ndim == 3:
        grey, alpha = (values[..., :-1], values[..., -1:]) if values.shape[2] in (2, 4) else (values, values[:0])
        if (grey != values[..., :1]).any() or (alpha != 255).any():
            what = "a mask has colours, or is transparent; save it in grey, with a number for each label"
            findings.fault(what, mask.name)
            return None
        values = values[..., 0]
    return values.astype(np.int64)


def _boxes(values: NDArray[np.int64], labels: tuple[str, ...], mask: Path, findings: Findings) -> list[MarkedBox]:
    if len(labels) == 1:
        values = (values != 0).astype(np.int64)
    boxes = []
    for value in np.unique(values[values != 0]).tolist():
        if not 0 < value <= len(labels):
            findings.fault(f"a mask has a number without a label ({len(labels)} labels)", f"{mask.name} has {value}")
            continue
        count, _, stats, _ = cv2.connectedComponentsWithStats((values == value).astype(np.uint8), connectivity=8)
        for number in range(1, count):
            left, top, width, height = (int(each) for each in stats[number][:4])
            if (height, width) == values.shape:
                findings.notes["boxes cover a whole picture: is its mask inverted?"] += 1
            where = f"{mask.name} region {number}"
            boxes.append(MarkedBox(labels[value - 1], left, top, left + width, top + height, where))
    return boxes
