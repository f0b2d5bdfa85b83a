"""How a picture lies in its file, by its EXIF block, and how it is turned upright."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_Pixels = NDArray[np.uint8]
_TURN = Image.Transpose
ACROSS = (_TURN.TRANSPOSE, _TURN.TRANSVERSE, _TURN.ROTATE_90, _TURN.ROTATE_270)
_TURNS = {
    2: _TURN.FLIP_LEFT_RIGHT,
    3: _TURN.ROTATE_180,
    4: _TURN.FLIP_TOP_BOTTOM,
    5: _TURN.TRANSPOSE,
    6: _TURN.ROTATE_270,
    7: _TURN.TRANSVERSE,
    8: _TURN.ROTATE_90,
}
AS_IT_LIES: dict[Image.Transpose, Callable[[_Pixels], _Pixels]] = {
    _TURN.FLIP_LEFT_RIGHT: lambda turned: turned[:, ::-1],
    _TURN.FLIP_TOP_BOTTOM: lambda turned: turned[::-1],
    _TURN.ROTATE_180: lambda turned: turned[::-1, ::-1],
    _TURN.TRANSPOSE: lambda turned: turned.swapaxes(0, 1),
    _TURN.TRANSVERSE: lambda turned: turned[::-1, ::-1].swapaxes(0, 1),
    _TURN.ROTATE_90: lambda turned: np.rot90(turned, -1),
    _TURN.ROTATE_270: np.rot90,
}
"""Views of a turned picture's array in which the picture lies as it does in its file."""


def turned(pixels: _Pixels, turn: Image.Transpose | None) -> _Pixels:
    """Return decoded pixels, turned; without a turn the array itself."""
    if turn is None:
        return pixels
    height, width = pixels.shape[:2]
    upright = np.empty((width, height, 3) if turn in ACROSS else (height, width, 3), np.uint8)
    AS_IT_LIES[turn](upright)[:] = pixels
    return upright


def turn_of(exif: object) -> Image.Transpose | None:
    """Return the turn that an EXIF block of a JPEG or PNG asks for; None if it asks for none."""
    return _TURNS.get(_orientation(exif.removeprefix(b"Exif\0\0"))) if isinstance(exif, bytes) else None


def _orientation(exif: bytes) -> int:
    """Return the orientation that an EXIF block states, 1 if it states none that can be read.

    Nothing else of the block is read: it may be damaged, and the picture is whole.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    try:
        (first,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, first)
        for at in range(first + 2, first + 2 + 12 * entries, 12):
            tag, kind, count = struct.unpack_from(order + "HHI", exif, at)
            if tag == 274 and kind in (3, 4) and count == 1:
                return int(struct.unpack_from(order + ("H" if kind == 3 else "I"), exif, at + 8)[0])
    except struct.error:
        pass
    return 1
