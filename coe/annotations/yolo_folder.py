"""A YOLO data set as a folder (images/, labels/ with a line for each box, data.yaml), and a contact sheet of it."""

from __future__ import annotations

import colorsys
import os
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

import yaml
from PIL import Image, ImageDraw, ImageFont

from coe.annotations.marked import MarkedPicture, MarkedSet
from coe.errors import ConfigError, ImageError
from coe.helpers.files import writing
from coe.helpers.spelling import composed
from coe.helpers.visible import visible
from coe.pictures.decoding import decode

DATA = "data.yaml"
_HALF = ".unfinished"
SHOWN = 24
"""How many pictures a sheet shows at most."""
_COLUMNS, _SIDE, _TEXT, _GAP = 6, 260, 16, 8


def write(marked: MarkedSet, root: Path, to: Path, *, tick: Callable[[], None] = lambda: None) -> Path:
    """Copy the pictures and write their boxes into the new folder `to`, whole or not at all; return its data.yaml.

    A picture keeps its name, with those of its folders below `root` before it where two pictures have one name. A good
    picture has an empty file of labels. Raises ConfigError if `to` is there, NotWritten if it cannot be written.
    """
    check_new(to)
    names = names_of(marked, root)
    half = to.with_name(to.name + _HALF)
    with writing(half):
        shutil.rmtree(half, ignore_errors=True)  # a kill may have left it
        try:
            (half / "images").mkdir(parents=True)
            (half / "labels").mkdir()
            for picture in marked.pictures:
                name = names[picture.path]
                shutil.copyfile(picture.path, half / "images" / name)
                lines = "".join(_lines(picture, marked.labels))
                (half / "labels" / name).with_suffix(".txt").write_text(lines, encoding="utf-8")
                tick()
            content = {"path": ".", "train": "images", "names": list(marked.labels)}
            (half / DATA).write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), encoding="utf-8")
            os.rename(half, to)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return to / DATA


def check_new(to: Path) -> None:
    """Raise ConfigError if a folder is there already: what is in it may be edited by hand."""
    if os.path.lexists(to):
        raise ConfigError(f"--to: {to} exists already; name a new folder, or delete it")


def names_of(marked: MarkedSet, root: Path) -> dict[Path, str]:
    """Return the name of each picture in the data set: those without their endings differ, also in upper case."""
    paths = [picture.path for picture in marked.pictures]
    stems = Counter(composed(path.stem).casefold() for path in paths)
    names: dict[Path, str] = {}
    for path in paths:
        is_alone = stems[composed(path.stem).casefold()] == 1
        names[path] = path.name if is_alone else "__".join(path.relative_to(root).parts)
    counts = Counter(composed(Path(name).stem).casefold() for name in names.values())
    if same := [str(path) for path, name in names.items() if counts[composed(Path(name).stem).casefold()] > 1]:
        raise ConfigError(f"these pictures would share a label file: {', '.join(same)}; rename all but one")
    return names


def _lines(picture: MarkedPicture, labels: tuple[str, ...]) -> list[str]:
    """Return the lines of a picture: the number of the label, then centre and size as shares of the picture."""
    return [
        f"{labels.index(composed(box.label))} "
        f"{(box.left + box.right) / 2 / picture.width:.6f} {(box.top + box.bottom) / 2 / picture.height:.6f} "
        f"{(box.right - box.left) / picture.width:.6f} {(box.bottom - box.top) / picture.height:.6f}\n"
        for box in picture.boxes
    ]


def draw(marked: MarkedSet) -> Image.Image:
    """Draw a sheet of the pictures of `chosen`, to confirm that boxes lie where they should; raises ConfigError."""
    shown = chosen(marked)
    columns = min(_COLUMNS, len(shown))
    wide, high = _SIDE + _GAP, _SIDE + _TEXT + _GAP
    sheet = Image.new("RGB", (max(columns, 3) * wide + _GAP, -(-len(shown) // columns) * high + _GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(_TEXT - 3)
    for number, picture in enumerate(shown):
        left, top = _GAP + number % columns * wide, _GAP + number // columns * high
        small, scale = _small(picture)
        sheet.paste(small, (left, top))
        for box in picture.boxes:
            place = marked.labels.index(composed(box.label))
            hue = colorsys.hsv_to_rgb(place / len(marked.labels), 0.95, 0.9 - 0.35 * (place % 2))
            colour = tuple(round(255 * part) for part in hue)
            x0, y0, x1, y1 = (round(each * scale) for each in (box.left, box.top, box.right, box.bottom))
            corners = left + x0, top + y0, left + max(x0, x1 - 1), top + max(y0, y1 - 1)
            pen.rectangle(corners, None, colour, 2)
            pen.text(corners[:2], visible(box.label), colour, font, stroke_width=2, stroke_fill="white")
        words = visible(picture.path.name) + (f": {len(picture.boxes)}" if picture.boxes else ": no box")
        while pen.textlength(words, font) > _SIDE:
            words = words[1:]
        pen.text((left, top + small.height + 1), words, "black", font)
    return sheet


def chosen(marked: MarkedSet) -> list[MarkedPicture]:
    """Return the pictures of a sheet: of each label in turn one that is not there yet, then a good one."""
    labels = {picture.path: {composed(box.label) for box in picture.boxes} for picture in marked.pictures}
    groups = [[one for one in marked.pictures if label in labels[one.path]] for label in marked.labels]
    groups.append([one for one in marked.pictures if not one.boxes])
    shown = {one.path: one for row in zip_longest(*groups) for one in row if one is not None}
    return [*shown.values()][:SHOWN]


def _small(picture: MarkedPicture) -> tuple[Image.Image, float]:
    scale = _SIDE / max(picture.width, picture.height)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    try:
        pixels = decode(picture.path, min_side=1)
    except ImageError as error:
        raise ConfigError(f"'{picture.path}' {error}; remove it or save it again with 8 bits a channel") from error
    return Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR), scale
