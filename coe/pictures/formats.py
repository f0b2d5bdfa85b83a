"""The formats of pictures that are read: a class for each, with its first bytes, its reader of headers, and its proof.

But for TIFF they are Pillow's, called directly: `Image.open` guesses among some forty formats, and warns of large
pictures through global state. Each raises ImageError for what Pillow cannot read, or reads wrongly.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import BinaryIO, ClassVar

from PIL.BmpImagePlugin import BmpImageFile
from PIL.PngImagePlugin import PngImageFile

from coe.errors import ImageError
from coe.pictures.array_images import ALL, LEAST, StatedBits
from coe.pictures.jpeg import Jpeg
from coe.pictures.picture_faults import UNWRITTEN_SHARE, damaged, truncated, unsupported
from coe.pictures.tiff import Tiff

_RAW, _RLE8, _RLE4, _BITFIELDS = 0, 1, 2, 3
_INTERLACED = 28
"""The byte that says whether rows lie interlaced."""


class Bmp(BmpImageFile):
    """A BMP as Pillow opens it: size and mode; no pixel is decoded.

    `pixels_end` is the place in the file behind the last pixel; a file whose last `tail_bytes` in front of it are zeros
    may not be written yet.
    """

    signatures: ClassVar = (b"BM",)

    def __init__(self, data: bytes) -> None:
        """Raises ImageError, and what Pillow raises."""
        compression = int.from_bytes(data[30:34], "little") if int.from_bytes(data[14:18], "little") > 12 else _RAW
        if compression in (_RLE8, _RLE4):
            raise unsupported("a BMP compressed by RLE")  # a lost piece of it would become background
        if compression not in (_RAW, _BITFIELDS):
            raise unsupported(f"a BMP compressed by scheme {compression}")
        super().__init__(io.BytesIO(data))
        self._file_bytes = len(data)
        self.pixels_end = max(
            (tile.offset + tile.args[1] * self.height for tile in self.tile if isinstance(tile.args, tuple)), default=0
        )
        # Zeros may be the paper of a drawing, as the first colour of a palette or of two: then all must be zero.
        starts = [tile.offset for tile in self.tile] or [0]
        is_paper = self.mode in ("P", "1")
        self.tail_bytes = self.pixels_end - min(starts) if is_paper else self.pixels_end // UNWRITTEN_SHARE
        bits = int.from_bytes(data[24:26] if data[14:18] == b"\x0c\0\0\0" else data[28:30], "little")
        modes = {1: ("1", "P"), 4: ("P",), 8: ("L", "P")}.get(bits, (self.mode,))
        if self.mode not in modes or (compression == _BITFIELDS and not any(data[54:66])):
            raise unsupported(f"a BMP of {bits} bits with rare colours")

    @staticmethod
    def pixels_in(file: BinaryIO) -> int | None:
        """Return width x height by the header; raises struct.error if it is not whole."""
        header = file.read(26)[14:]
        width, height = struct.unpack_from("<HH" if header[:4] == b"\x0c\0\0\0" else "<Ii", header, 4)
        return int(width * abs(height))

    def load_prepare(self) -> None:
        """Prove that all rows are there: Pillow would not notice that the padding of the last one is missing."""
        if self.pixels_end > self._file_bytes:
            raise truncated()
        super().load_prepare()


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
