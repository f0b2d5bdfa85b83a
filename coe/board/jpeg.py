"""JPEG bytes to pixels. Law: a JPEG of which a part is missing or damaged is refused.

libjpeg goes on behind damage: what it cannot read becomes grey, or is shifted, and a warning says so. Pillow and OpenCV
drop that warning, so a picture that lost a piece on its way from the camera would be judged with its grey part.
simplejpeg makes an error of each warning, and is quicker than both (docs/results/host.md). Pixels are the same.
"""

from __future__ import annotations

import io

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from coe.board.tiff import DAMAGED
from coe.errors import ImageError

_CHANNELS = {"RGB": 3, "L": 3, "CMYK": 4}
"""The bytes of a decoded pixel, by Pillow's mode; grey is decoded to RGB."""


class _Header(JpegImageFile):
    def _read_dpi_from_exif(self) -> None:
        """Skip the resolution, which nobody needs: damaged EXIF would warn."""


def open_jpeg(data: bytes) -> ImageFile:
    """Return the picture with its size, mode and EXIF block; no pixel is decoded. Raises what Pillow raises."""
    return _Header(io.BytesIO(data))


def whole_pixels(data: bytes, picture: ImageFile) -> NDArray[np.uint8]:
    """Return the pixels of a picture that `open_jpeg` opened, as they lie in the file: (H, W, 3) uint8 RGB.

    If `picture.mode` is CMYK, they are (H, W, 4) in the file's own four inks: proof that the picture is whole. The size
    is that of the header that Pillow read, so no more memory is taken than was booked. The interpreter lock is free
    while pixels are decoded.

    Raises ImageError if another size is decoded, ValueError, with libjpeg's own sentence, if it warns or fails.
    """
    pixels = np.empty((picture.height, picture.width, _CHANNELS[picture.mode]), np.uint8)
    decoded = simplejpeg.decode_jpeg(data, "CMYK" if picture.mode == "CMYK" else "RGB", buffer=pixels)
    if decoded.shape != pixels.shape:
        raise ImageError(DAMAGED)
    return pixels
