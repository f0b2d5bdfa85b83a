"""Proof that a PNG is whole, before Pillow decodes it: each checksum fits, and the end is there."""

from __future__ import annotations

import io
import struct
import zlib
from typing import BinaryIO, ClassVar

from PIL.PngImagePlugin import PngImageFile

from coe.pictures.picture_faults import damaged, truncated, unsupported
from coe.pictures.wide import ALL, LEAST, StatedBits

_INTERLACED = 28
"""The byte that says whether rows lie interlaced."""


class Png(PngImageFile):
    """A PNG as Pillow opens it: size and mode; no pixel is decoded.

    `depth` is the bits of a sample, and `said` how many of them count by the file's sBIT.
    """

    signatures: ClassVar = (b"\x89PNG\r\n\x1a\n",)
    depth = 8
    said: StatedBits | None = None

    def __init__(self, data: bytes) -> None:
        """Raises ImageError, and what Pillow raises."""
        significant = _proven(data)
        super().__init__(io.BytesIO(data))
        self.depth = data[24]
        # Beside what the file says stand remarks of any name, which are texts.
        self._said = self.info
        self.info = {name: said for name, said in self._said.items() if not isinstance(said, str)}
        if data[_INTERLACED]:
            self.info["interlace"] = 1
        # 16 is what programs write that know nothing better.
        if self.depth == ALL and LEAST <= max(significant, default=ALL) < ALL:
            self.said = StatedBits(max(significant), stretched=True)
        if "transparency" in self.info and self.mode != "P" and self.depth not in (1, 8):
            # Pillow compares the transparent colour with samples of 8 bits.
            raise unsupported(f"a PNG of {self.depth} bits with a transparent colour")

    def load_end(self) -> None:
        """Read what stands behind the pixels: an EXIF block or XMP counts there as well."""
        super().load_end()
        self.info |= {name: said for name in ("exif", "xmp") if isinstance(said := self._said.get(name), bytes)}

    @staticmethod
    def pixels_in(file: BinaryIO) -> int | None:
        """Return width x height by the header; raises struct.error if it is not whole."""
        width, height = struct.unpack_from(">II", file.read(24), 16)
        return int(width * height)

    def give_low_bytes(self) -> None:
        """Let `load` give the low bytes of colours of 16 bits instead of the high ones."""
        self.tile = [tile._replace(args=str(tile.args).replace(";16B", ";16L")) for tile in self.tile]


def _proven(data: bytes) -> bytes:
    """Return the body of sBIT, if there is one; raises ImageError for a PNG that is not whole."""
    at, name, significant = 8, b"", b""
    while name != b"IEND":  # Pillow stops at the last row: it checks no checksum of the pixels and needs no end
        if at + 12 > len(data):
            raise truncated()
        length, name = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if end > len(data):
            raise truncated()
        if zlib.crc32(memoryview(data)[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end]):
            raise damaged()
        if name == b"acTL":
            raise unsupported("an animation")
        if name == b"sBIT":
            significant = data[at + 8 : end - 4]
        at = end
    return significant
