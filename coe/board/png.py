"""Proof that a PNG is whole, before Pillow decodes it. Law: each checksum fits, and the end is there."""

from __future__ import annotations

import io
import struct
import zlib

from PIL.ImageFile import ImageFile
from PIL.PngImagePlugin import PngImageFile

from coe.board.picture_faults import DAMAGED, TRUNCATED
from coe.errors import ImageError


def open_png(data: bytes) -> ImageFile:
    """Return the picture with its size and mode; no pixel is decoded. Raises ImageError, and what Pillow raises."""
    at, name = 8, b""
    while name != b"IEND":  # Pillow stops at the last row: it checks no checksum of the pixels and needs no end
        if at + 12 > len(data):
            raise ImageError(TRUNCATED)
        length, name = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if end > len(data):
            raise ImageError(TRUNCATED)
        if zlib.crc32(memoryview(data)[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end]):
            raise ImageError(DAMAGED)
        if name == b"acTL":
            raise ImageError("is an animation; save the one picture to be inspected")
        at = end
    return PngImageFile(io.BytesIO(data))
