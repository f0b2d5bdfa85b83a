"""Codes in a picture: DataMatrix, QR, Code 128 and what else zxing-cpp reads, each with how often it was read.

A code whose data carry their own correction (DataMatrix, QR, Aztec, PDF417, ...) is believed when it is read. Bars have
at most a check digit, and a scan line along a blurred edge of them may pass it; so they are read several times, larger
and turned, and believed if most readings agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from coe.errors import ConfigError, did_you_mean
from coe.helpers.allowed_text import Reading

USUAL = ("DataMatrix", "QRCode", "Code128")
"""The formats that are read where nobody says which."""
LONGEST = 200
"""The most characters of a code that is taken for a serial, or compared with a pattern."""
_LARGER = (2.0, 3.0)
"""A module of two pixels is read with certainty only if it is made larger."""
_MOST_SIDE = 1600
"""No picture is made larger than this many pixels a side."""
_TURNS = range(7, 90, 7)
"""Degrees by which bars are turned: a scan line must meet all of them; the reader itself tries quarter turns."""
_FAINTEST = 8
"""Grey levels between the darkest and the brightest place of a picture that shows a code."""
_AGREE = 3
"""So many readings of bars must agree, and at most a third as many may say otherwise."""
_DIVISIBLE = frozenset({"ITF", "ITF14"})
"""Formats of which a part reads as a shorter code: begin and end look like bars within, and no digit checks."""


@dataclass(frozen=True, slots=True)
class Code:
    """A code that was read; `is_sure` says whether it was read often enough to believe it.

    A part of a damaged code of some formats reads as a shorter one: ask `is_believed`.
    """

    text: str
    format: str
    is_sure: bool

    def is_believed(self, reading: Reading) -> bool:
        """Tell whether the code is believed; one of which a part reads as another has the length that is allowed."""
        return self.is_sure and (self.format not in _DIVISIBLE or len(self.text) == reading.length)


def read_codes(image: NDArray[np.uint8], formats: Sequence[str] = USUAL) -> tuple[Code, ...]:
    """Return the codes in an image, (H, W, 3) uint8 RGB, each once, the most often read first.

    `formats` are names as `check_formats` takes them. A code that holds no text that can be shown, or more than
    `LONGEST` characters, is not sure.
    """
    found: Counter[tuple[str, str]] = Counter()
    whole = _stretched(image)
    if whole is None:
        return ()
    scales = [1.0, *(scale for scale in _LARGER if scale * max(whole.shape) <= _MOST_SIDE)]
    for scale in scales:
        found.update(_read(_view(whole, scale), formats))
    for scale in scales if _are_bars(tuple(formats)) else ():
        if any(_is_believed(*key, count, found) for key, count in found.items()):
            break
        for degrees in _TURNS:
            found.update(_read(_view(whole, scale, degrees), formats))
    return tuple(
        Code(text, format, _is_believed(text, format, count, found)) for (text, format), count in found.most_common()
    )


def check_formats(formats: Iterable[str]) -> None:
    """Raise ConfigError for a word that is no format, or for none at all."""
    words = list(formats)
    if not words:
        raise ConfigError(f"no code format is named; write {', '.join(USUAL)}, or others")
    for word in words:
        if word not in _known():
            raise ConfigError(f"'{word}' is not a code format{did_you_mean(word, _known())}")


@cache
def _known() -> dict[str, Any]:
    import zxingcpp

    formats = zxingcpp.barcode_formats_list(zxingcpp.barcode_formats_from_str("AllReadable"))
    return {"".join(sign for sign in str(one) if sign.isalnum()): one for one in formats}


@cache
def _are_bars(formats: tuple[str, ...]) -> bool:
    """Tell whether one of these formats, or one that nobody knows, has no correction of its own."""
    import zxingcpp

    corrected = set(zxingcpp.barcode_formats_list(zxingcpp.barcode_formats_from_str("AllMatrix")))
    return any(_known().get(name) not in corrected for name in formats)


def _read(shown: NDArray[np.uint8], formats: Sequence[str]) -> set[tuple[str, str]]:
    import zxingcpp

    names = {one: name for name, one in _known().items()}
    codes = zxingcpp.read_barcodes(shown, formats=zxingcpp.barcode_formats_from_str("|".join(formats)))
    return {(code.text, names.get(code.format, str(code.format))) for code in codes}


def _is_believed(text: str, format: str, count: int, found: Counter[tuple[str, str]]) -> bool:
    if not text.strip() or not text.isprintable() or len(text) > LONGEST:
        return False
    if not _are_bars((format,)):
        return True
    against = max((other for key, other in found.items() if key != (text, format) and _are_bars(key[1:])), default=0)
    return count >= _AGREE and count >= 3 * against


def _stretched(image: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """Return an image in grey, (H, W), its darkest place black and its brightest white; None if it shows nothing."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    # Not percentiles: a small code in a large window has less than a percent of the pixels. Single pixels are noise.
    low, high, *_ = cv2.minMaxLoc(cv2.blur(grey, (3, 3)))
    if high - low < _FAINTEST:
        return None
    scale = 255 / (high - low)
    return np.asarray(cv2.convertScaleAbs(np.clip(grey, low, high).astype(np.float32) - low, alpha=scale))


def _view(image: NDArray[np.uint8], scale: float, degrees: float = 0.0) -> NDArray[np.uint8]:
    """Return an image (H, W) larger, and turned."""
    if scale == 1.0 and not degrees:
        return image
    height, width = image.shape
    motion = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, scale)
    across, down = abs(motion[0, 0]), abs(motion[0, 1])
    size = int(width * across + height * down) + 2, int(width * down + height * across) + 2
    motion[:, 2] += (size[0] - width) / 2, (size[1] - height) / 2
    return np.asarray(cv2.warpAffine(image, motion, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE))
