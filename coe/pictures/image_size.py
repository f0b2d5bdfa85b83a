"""The size of a picture, from its header alone, so that the memory for decoding is known before a pixel is decoded.

Pillow needs the whole file to tell the size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import BinaryIO

_MOST_FILL = 65_536
"""The most bytes of 0xFF in front of a mark of a JPEG."""
MOST_MARKS = 10_000
"""The most segments of a JPEG, or entries of a TIFF, that are read; real pictures have dozens."""


def pixels_in(file: BinaryIO) -> int | None:
    """Return width x height of a JPEG, PNG, BMP or TIFF picture; None if its header does not tell.

    `file` is open for reading; only its header is read. Raises OSError if it cannot be read.
    """
    start = file.read(4)
    reader = next((reader for magics, reader in _READERS if start.startswith(magics)), None)
    try:
        return reader(file, start) if reader else None
    except struct.error:  # the file ends too early
        return None


def _png(file: BinaryIO, start: bytes) -> int:
    file.seek(16)
    width, height = _unpack(">II", file)
    return width * height


def _bmp(file: BinaryIO, start: bytes) -> int:
    file.seek(14)
    width, height = _unpack("<HH" if _unpack("<I", file)[0] == 12 else "<Ii", file)
    return width * abs(height)


def _jpeg(file: BinaryIO, start: bytes) -> int | None:
    """Walk from segment to segment to the pixels, and return the largest size that a frame header states."""
    file.seek(2)
    pixels: int | None = None
    for _ in range(MOST_MARKS):
        (byte,) = _unpack("B", file)
        if byte != 0xFF:
            continue
        for _ in range(_MOST_FILL):
            if byte != 0xFF:
                break
            (byte,) = _unpack("B", file)
        if byte in (0x00, 0x01) or 0xD0 <= byte <= 0xD9:  # without a length
            continue
        if byte == 0xDA:
            return pixels
        (length,) = _unpack(">H", file)
        if 0xC0 <= byte <= 0xCF and byte not in (0xC4, 0xC8, 0xCC):
            _, height, width = _unpack(">BHH", file)
            pixels = max(pixels or 0, width * height)
            length -= 5
        file.seek(max(0, length - 2), 1)
    return None


def _tiff(file: BinaryIO, start: bytes) -> int | None:
    order, big = "<" if start[:1] == b"I" else ">", 43 in start[2:4]
    file.seek(8 if big else 4)
    file.seek(min(_unpack(order + ("Q" if big else "I"), file)[0], 2**62))
    entries = _unpack(order + ("Q" if big else "H"), file)[0]
    sides: dict[int, int] = {}
    for _ in range(min(entries, MOST_MARKS)):
        tag, kind = _unpack(order + "HH", file)
        value = file.read(16 if big else 8)[8 if big else 4 :]
        if tag in (256, 257) and kind in _NUMBERS:
            (side,) = struct.unpack_from(order + _NUMBERS[kind], value)
            sides[tag] = max(side, sides.get(tag, 0))
    return sides[256] * sides[257] if len(sides) == 2 else None


def _unpack(code: str, file: BinaryIO) -> tuple[int, ...]:
    return struct.unpack(code, file.read(struct.calcsize(code)))


_NUMBERS = {1: "B", 3: "H", 4: "I", 16: "Q"}
_READERS: tuple[tuple[bytes | tuple[bytes, ...], Callable[[BinaryIO, bytes], int | None]], ...] = (
    (b"\xff\xd8\xff", _jpeg),
    (b"\x89PNG", _png),
    (b"BM", _bmp),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), _tiff),
)
