"""JPEG bytes to pixels. Law: a JPEG at which libjpeg warns is refused, because a part is missing or damaged.

libjpeg goes on behind damage: what it cannot read becomes grey, or is shifted, and a warning says so. Pillow and OpenCV
drop that warning, so a picture that lost a piece on its way from the camera would be judged with its grey part.
simplejpeg makes an error of each warning, and is quicker than both (docs/results.md). Pixels are the same.

A JPEG has no checksum: behind a few wrong bytes its codes fall into step again, and libjpeg may warn of nothing. Of 64
bytes that became zero a quarter to three fifths pass. Only a checksum beside the picture, or PNG, is proof.
"""

from __future__ import annotations

import io
import re

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL.JpegImagePlugin import JpegImageFile

from coe.errors import ImageError
from coe.pictures.jpeg_segments import plain
from coe.pictures.picture_faults import damaged, truncated, unsupported

_CHANNELS = {"RGB": 3, "L": 3, "CMYK": 4}
"""The bytes of a decoded pixel, by Pillow's mode; grey is decoded to RGB."""

_END = b"\xff\xd9"
_PADDED = re.compile(rb"\x00\xff++[\xd0-\xd7\xd9]")
_PADDING = re.compile(rb"(?<!\x00)\x00++(?=\xff++[\xd0-\xd7\xd9])")
"""Zeros in front of a mark at which a scan restarts or ends."""
_MOST_RESTARTS = 100_000


class Jpeg(JpegImageFile):
    """A JPEG as Pillow opens it: size, mode and EXIF block; no pixel is decoded."""

    def __init__(self, data: bytes) -> None:
        """Raises ImageError, and what Pillow raises."""
        self.plain = plain(data)
        super().__init__(io.BytesIO(self.plain.data))

    def _read_dpi_from_exif(self) -> None:
        """Skip the resolution, which nobody needs: damaged EXIF would warn."""

    def whole_pixels(self) -> NDArray[np.uint8]:
        """Return the pixels as they lie in the file: (H, W, 3) uint8 RGB.

        If `mode` is CMYK, they are (H, W, 4) in the file's own four inks. The size is
        that of the header that Pillow read, so no more memory is taken than was booked. The interpreter lock is free
        while pixels are decoded. Raises ImageError.
        """
        pixels = np.empty((self.height, self.width, _CHANNELS[self.mode]), np.uint8)
        try:
            return self._decoded(self.plain.data, pixels)
        except ValueError as error:
            complaint = error
        # Webcams fill scans up to whole words. Only zeros may go: what else stands there may be a piece of the picture.
        if "extraneous" not in str(complaint) or (unpadded := self._unpadded()) is None:
            raise self._meaning(complaint) from complaint
        try:
            return self._decoded(unpadded, pixels)
        except ValueError as error:
            raise self._meaning(error) from error

    def _unpadded(self) -> bytes | None:
        """Return the JPEG without zeros in front of its marks; None if there are none."""
        data, scan_at = self.plain.data, self.plain.scan_at
        end = data.find(_END, scan_at) + len(_END)
        if _PADDED.search(data, scan_at, end) is None:
            return None
        return data[:scan_at] + _PADDING.sub(_stuffed, data[scan_at:end], count=_MOST_RESTARTS)

    def _decoded(self, data: bytes, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        decoded = simplejpeg.decode_jpeg(data, "CMYK" if self.mode == "CMYK" else "RGB", buffer=pixels)
        if decoded.shape != pixels.shape:
            raise damaged()
        return pixels

    def _meaning(self, error: ValueError) -> ImageError:
        """Return what a complaint of libjpeg means for who sent the picture."""
        complaint = str(error).lower()
        if "premature end of jpeg file" in complaint:
            return truncated()
        if any(words in complaint for words in ("unsupported color", "unsupported jpeg process", "invalid sos")):
            return unsupported("a JPEG of a rare kind")
        # The same complaint stands for all faults of a header.
        if "subsampling" in complaint and not self._is_sampled_as_usual():
            return unsupported("a JPEG whose colours are sampled in rare steps")
        return damaged()

    def _is_sampled_as_usual(self) -> bool:
        """Tell whether simplejpeg knows the steps in which the colours are sampled."""
        steps = [(across, down) for _, across, down, _ in self.layer]
        first, colours, black = steps[0], set(steps[1:3]), steps[3:]
        fine = first in {(2, 1), (1, 2), (2, 2), (4, 1), (1, 4)} and colours == {(1, 1)} and black in ([], [first])
        return fine or len(set(steps)) == 1


def _stuffed(zeros: re.Match[bytes]) -> bytes:
    """Return what stays of zeros: one behind 0xFF, which is a byte of the picture with it."""
    return b"\0" if zeros.string[zeros.start() - 1 : zeros.start()] == b"\xff" else b""
