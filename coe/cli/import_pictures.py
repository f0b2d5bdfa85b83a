"""The pictures that `coe-experts import --images` takes: labelled, with boxes of YOLO, or of the part alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from coe.bring.proving import Box, Shown
from coe.core import Expert, Finding
from coe.errors import ConfigError, ImageError, readable
from coe.helpers import regular
from coe.pictures.decoding import decode
from coe.pictures.finding import photographs_in
from coe.pictures.photographs import TABLE

_LABELS = "labels"
_IMAGES = "images"


def are_labelled(folder: Path) -> bool:
    """Tell whether pictures are given with labels: in folders of theirs, or by a table."""
    if not folder.is_dir() or (folder / TABLE).is_file():
        return True
    return not (folder / _LABELS).is_dir() and any(entry.is_dir() for entry in folder.iterdir())


def shown(folder: Path, expert: Expert, bits: int | None) -> tuple[list[Path], list[Shown]]:
    """Return the files of an expert's pictures, and what is shown of them; those that cannot be read are left out.

    Raises ConfigError for a folder that is unclear.
    """
    boxes = folder / _LABELS
    home = folder / _IMAGES if boxes.is_dir() else folder
    if are_labelled(folder):
        from coe.learn import labelled

        found = labelled.find(folder, {expert.id: expert}, alone=expert.id)
    else:
        with readable(home):
            found = photographs_in(home)
    paths, pictures = [], []
    for one in found:
        try:
            image = np.asarray(decode(one.file, bits=bits), np.uint8)
        except ImageError:
            continue
        true = None
        if boxes.is_dir() and not one.expert:
            true = _boxes((boxes / one.path.relative_to(home)).with_suffix(".txt"), expert, image.shape)
        paths.append(one.path)
        pictures.append(Shown(image, one.label if one.expert else "", true))
    if not pictures:
        raise ConfigError(f"{folder}: holds no readable picture")
    return paths, pictures


def sheet(paths: Sequence[Path], pictures: Sequence[Shown], findings: Sequence[Finding], expert: Expert) -> Image.Image:
    """Draw a few pictures with what a model says of each: a label around the whole picture, or its boxes."""
    from coe.annotations import yolo_folder
    from coe.annotations.marked import MarkedBox, MarkedPicture, MarkedSet

    marked = []
    for path, picture, finding in zip(paths, pictures, findings, strict=True):
        height, width = picture.image.shape[:2]
        boxes = [MarkedBox(box.label, *box.xyxy, "") for box in finding.boxes]
        if finding.label in expert.labels and not boxes:
            boxes = [MarkedBox(finding.label, 0, 0, width, height, "")]
        marked.append(MarkedPicture(path, width, height, tuple(boxes)))
    return yolo_folder.draw(MarkedSet(expert.labels, tuple(marked)))


def _boxes(file: Path, expert: Expert, shape: tuple[int, ...]) -> tuple[Box, ...]:
    """Read a file of labels of YOLO; a picture without one has no box. Raises ConfigError."""
    if not file.is_file():
        return ()
    found = []
    for line in regular.read(file, 1 << 20).decode(errors="replace").splitlines():
        try:
            number, x, y, width, height = (float(word) for word in line.split()[:5])
            label = expert.labels[int(number)]
        except (ValueError, IndexError) as error:
            raise ConfigError(f"{file}: '{line:.60}' is not a YOLO box, or has an unknown label") from error
        sides = shape[1], shape[0]
        left, top = (x - width / 2) * sides[0], (y - height / 2) * sides[1]
        found.append((label, (left, top, left + width * sides[0], top + height * sides[1])))
    return tuple(found)
