"""The formats of pictures that are read: a class for each, with its first bytes, its reader of headers, and its proof.

The classes are Pillow's, called directly: `Image.open` guesses among some forty formats, and warns of large pictures
through global state. Each raises ImageError for what Pillow cannot read, or reads wrongly.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

from coe.errors import ImageError
from coe.pictures.bmp import Bmp
from coe.pictures.jpeg import Jpeg
from coe.pictures.png import Png
from coe.pictures.tiff import Tiff

PictureFormat = type[Jpeg] | type[Png] | type[Bmp] | type[Tiff]
FORMATS: tuple[PictureFormat, ...] = (Jpeg, Png, Bmp, Tiff)
EXTENSIONS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".tif", ".tiff"})
"""The usual endings of these formats."""


def format_of(start: bytes) -> PictureFormat | None:
    """Return the format of a file that begins with these bytes, at least eight; None if it is not read."""
    return next((form for form in FORMATS if start.startswith(form.signatures)), None)


def pixels_in(file: BinaryIO) -> int | None:
    """Return width x height of a picture by its header alone; None if that does not tell. Raises OSError.

    So the memory for decoding is known before a pixel is decoded. Pillow needs the whole file to tell the size.
    """
    form = format_of(file.read(8))
    file.seek(0)
    try:
        return form.pixels_in(file) if form else None
    except (struct.error, ImageError):  # the file ends too early, or is damaged
        return None
