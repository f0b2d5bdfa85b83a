"""The orientation that a picture's EXIF block or XMP states, and the directory in which EXIF and TIFF keep numbers."""

from __future__ import annotations

import io
import re
import struct
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""The first bytes of a TIFF, and of an EXIF block behind its prefix."""
ORIENTATION = 274
_PREFIX = re.compile(rb"\A(?:Exif\0\0)+")
_IN_XMP = re.compile(rb"""tiff:Orientation(?:=["']|>)([1-8])""")
_MOST_ENTRIES = 4096
"""Real pictures have dozens."""
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_NUMBERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 13: "I", 16: "Q", 17: "q", 18: "Q"}
"""The bytes of a value of each type, and how `struct` names the types of whole numbers."""

AS_IT_LIES: dict[int, Callable[[NDArray[Any]], NDArray[Any]]] = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: np.rot90,
    7: lambda upright: upright[::-1, ::-1].swapaxes(0, 1),
    8: lambda upright: np.rot90(upright, -1),
}
"""By EXIF's orientation: the view of an upright picture's array in which it lies as it does in its file."""
ACROSS = 5
"""From this orientation on rows are columns."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a directory: the bytes of its values, and the first of them if they are whole numbers."""

    tag: int
    bytes: int
    value: int | None


@dataclass(frozen=True, slots=True)
class Directory:
    """The entries of a directory, and the place of the next one, 0 for none; None if the file ends before it."""

    entries: tuple[Entry, ...]
    next: int | None

    def number(self, tag: int) -> int | None:
        """Return the first whole number of a tag; None without one."""
        return next((entry.value for entry in self.entries if entry.tag == tag), None)


def directory_in(file: BinaryIO, at: int | None = None) -> Directory:
    """Return the directory at a place, or the first; what is damaged in it beside the numbers does not matter."""
    file.seek(0)
    start = file.read(4)
    order, is_big = "<" if start[:1] == b"I" else ">", 43 in start[2:]
    place, inline = ("Q", 8) if is_big else ("I", 4)
    entries: list[Entry] = []

    def read(form: str, at: int | None = None) -> tuple[int, ...]:
        if at is not None:
            file.seek(min(at, 2**62))
        return struct.unpack(order + form, file.read(struct.calcsize(order + form)))

    with suppress(struct.error):
        first = read(place, inline)[0] if at is None else at
        (count,) = read("Q" if is_big else "H", first)
        for _ in range(min(count, _MOST_ENTRIES)):
            tag, kind, values = read("HH" + place)
            end, size, value = file.tell() + inline, _SIZES.get(kind, 0) * values, None
            if kind in _NUMBERS and values:
                with suppress(struct.error):
                    (value,) = read(_NUMBERS[kind], read(place)[0] if size > inline else None)
            entries.append(Entry(tag, size, value))
            file.seek(end)
        return Directory(tuple(entries), read(place)[0])
    return Directory(tuple(entries), None)


def orientation(info: Mapping[str | tuple[int, int], Any]) -> int:
    """Return the orientation that an EXIF block states, or else XMP, as Pillow has them; 1 if none can be read.

    Whole numbers of any type count, the first if there are several.
    """
    exif = info.get("exif")
    block = _PREFIX.sub(b"", exif) if isinstance(exif, bytes) else b""
    if block.startswith(STARTS) and (said := directory_in(io.BytesIO(block)).number(ORIENTATION)) is not None:
        return said
    xmp = info.get("xmp")  # in a PNG it may be a remark of this name
    found = _IN_XMP.search(xmp) if isinstance(xmp, bytes) else None
    return int(found[1]) if found else 1


def known(turn: int | None) -> int:
    """Return an orientation; 1 for a number that is none."""
    return turn if turn in AS_IT_LIES else 1


def upright(pixels: NDArray[Any], turn: int) -> NDArray[Any]:
    """Return pixels (H, W, ...) as they lie in a file, turned; without a turn the array itself."""
    if turn == 1:
        return pixels
    height, width, *colours = pixels.shape
    turned = np.empty((width, height, *colours) if turn >= ACROSS else pixels.shape, pixels.dtype)
    AS_IT_LIES[turn](turned)[:] = pixels
    return turned


@dataclass(frozen=True, slots=True)
class SeenSize:
    """Width and height in pixels of a picture as it is decoded, and the orientation by which it was turned."""

    width: int
    height: int
    turn: int


def seen_size(path: Path) -> SeenSize:
    """Read the size of a picture by its head; raises what Pillow raises for one that it cannot read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large pictures, which boards are, and of odd EXIF
        with Image.open(path) as picture:
            width, height = picture.size
            if picture.format == "TIFF":
                with path.open("rb") as file:
                    directory = directory_in(file)
                width, height = directory.number(256) or 0, directory.number(257) or 0
                turn = known(directory.number(ORIENTATION))
            else:
                picture.getexif()  # reads what stands behind the pixels of a PNG
                turn = known(orientation(picture.info))
    return SeenSize(height, width, turn) if turn >= ACROSS else SeenSize(width, height, turn)
