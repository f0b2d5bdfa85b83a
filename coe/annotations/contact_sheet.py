"""A contact sheet: pictures with their boxes drawn in, for a person to confirm that these lie where they should."""

from __future__ import annotations

import colorsys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from coe.annotations.marked import MarkedPicture, MarkedSet
from coe.errors import ConfigError, ImageError
from coe.pictures.decoding import decode
from coe.spelling import composed
from coe.visible import visible

SHOWN = 24
"""How many pictures a sheet shows at most."""
_COLUMNS, _SIDE, _TEXT, _GAP = 6, 260, 16, 8


def draw(marked: MarkedSet) -> Image.Image:
    """Draw the pictures of `chosen` with their boxes; raises ConfigError for one that cannot be read."""
    shown = chosen(marked)
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    width = max(columns * (_SIDE + _GAP) + _GAP, 3 * _SIDE)
    font = ImageFont.load_default(_TEXT - 3)
    count = len(marked.labels)
    colours = {
        label: tuple(round(255 * part) for part in colorsys.hsv_to_rgb(number / count, 0.95, 0.9 - 0.35 * (number % 2)))
        for number, label in enumerate(marked.labels)
    }
    places, at, line = {}, _GAP, 0
    for label in marked.labels:
        length = int(font.getlength(visible(label))) + 2 * _GAP
        if at > _GAP and at + length > width:
            at, line = _GAP, line + 1
        places[label] = (at, _GAP + line * _TEXT)
        at += length
    legend = (line + 1) * _TEXT + 2 * _GAP
    cell, high = _SIDE + _GAP, _SIDE + _TEXT + _GAP
    sheet = Image.new("RGB", (width, rows * high + legend + _GAP), "white")
    pen = ImageDraw.Draw(sheet)
    for label, place in places.items():
        pen.text(place, visible(label), colours[label], font)
    for number, picture in enumerate(shown):
        left, top = _GAP + number % columns * cell, legend + number // columns * high
        small, scale = _small(picture)
        sheet.paste(small, (left, top))
        for box in picture.boxes:
            corners = (box.left, box.top, box.right, box.bottom)
            x0, y0, x1, y1 = (round(each * scale) for each in corners)
            pen.rectangle(
                (left + x0, top + y0, left + max(x0, x1 - 1), top + max(y0, y1 - 1)),
                None,
                colours[composed(box.label)],
                2,
            )
        words = visible(picture.path.name) + (f": {len(picture.boxes)}" if picture.boxes else ": no box")
        while pen.textlength(words, font) > _SIDE:
            words = words[1:]
        pen.text((left, top + small.height + 1), words, "black", font)
    return sheet


def chosen(marked: MarkedSet) -> list[MarkedPicture]:
    """Return the pictures of a sheet: of each label in turn the first that is not there yet, then good ones."""
    waiting = [
        [picture for picture in marked.pictures if any(composed(box.label) == label for box in picture.boxes)]
        for label in marked.labels
    ]
    waiting.append([picture for picture in marked.pictures if not picture.boxes])
    shown: dict[Path, MarkedPicture] = {}
    while any(waiting) and len(shown) < SHOWN:
        for pictures in waiting:
            while pictures and pictures[0].path in shown:
                pictures.pop(0)
            if pictures and len(shown) < SHOWN:
                picture = pictures.pop(0)
                shown[picture.path] = picture
    return list(shown.values())


def _small(picture: MarkedPicture) -> tuple[Image.Image, float]:
    scale = _SIDE / max(picture.width, picture.height)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    try:
        pixels = decode(picture.path, min_side=1)
    except ImageError as error:
        raise ConfigError(f"'{picture.path}' {error}; remove it or save it again with 8 bits a channel") from error
    return Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR), scale
