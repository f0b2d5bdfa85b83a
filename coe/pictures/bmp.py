"""BMP files, which Pillow decodes: what passes here is whole, and of a form that was proved."""

from __future__ import annotations

import io
import struct
from typing import BinaryIO, ClassVar

from PIL.BmpImagePlugin import BmpImageFile

from coe.pictures.picture_faults import truncated, unsupported

UNWRITTEN_SHARE = 32
"""An uncompressed picture is not whole if one in so many bytes is zero at its end."""
_RAW, _RLE8, _RLE4, _BITFIELDS = 0, 1, 2, 3


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
