"""Codes as a camera sees them on boards and labels: turned, blurred, dim, unevenly lit and noisy.

They are made by segno (QR), ppf-datamatrix and python-barcode (Code 128), none of which knows the reader.
"""

from dataclasses import dataclass

import barcode
import cv2
import numpy as np
import segno
from ppf.datamatrix import DataMatrix

_FINE, _OVER = 8, 4
"""Pixels of a module as it is drawn, and how many times finer than the camera's pixels the scene is seen first."""
_BAR_HEIGHT = 30
QUIET = {"QRCode": 4, "DataMatrix": 2, "Code128": 10}
"""The modules of white around a code that its standard asks for, and one more for DataMatrix."""


def modules(format, text):
    """Return the modules of a code, 1 for dark, (rows, columns); bars are 30 modules high."""
    if format == "QRCode":
        return np.array([list(row) for row in segno.make_qr(text, error="m").matrix], np.uint8)
    if format == "DataMatrix":
        return np.array(DataMatrix(text).matrix, np.uint8)
    bars = barcode.get("code128", text).build()[0]
    return np.repeat(np.array([[int(bar) for bar in bars]], np.uint8), _BAR_HEIGHT, 0)


@dataclass(frozen=True, slots=True)
class Seeing:
    """How a code is seen: pixels a module, degrees, the blur's sigma in pixels, contrast and noise from 0 to 1.

    `around` is the side of the picture, in which the rest is of a brightness `ground`; 0 is as large as the code.
    """

    pixels: float
    degrees: float
    blur: float = 0.4
    contrast: float = 0.8
    noise: float = 0.01
    inverted: bool = False
    around: int = 0
    ground: float = 0.1


def photograph(dark, quiet, seeing, rng):
    bordered = np.pad(dark, quiet)
    fine = np.kron(1 - bordered, np.ones((_FINE, _FINE), np.uint8)).astype(np.float32)
    reach = int(np.ceil(np.hypot(*bordered.shape) * seeing.pixels)) + 10
    side = max(seeing.around, reach)
    scale, turn = seeing.pixels * _OVER / _FINE, np.radians(seeing.degrees)
    motion = scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    middle = np.array(fine.shape[::-1]) / 2
    shift = side * _OVER / 2 + rng.uniform(-0.5, 0.5, 2) * _OVER - motion @ middle
    paper = 1.0 if not seeing.around else seeing.ground
    size = (side * _OVER, side * _OVER)
    seen = cv2.warpAffine(fine, np.column_stack([motion, shift]), size, flags=cv2.INTER_LINEAR, borderValue=paper)
    picture = cv2.GaussianBlur(cv2.resize(seen, (side, side), interpolation=cv2.INTER_AREA), (0, 0), seeing.blur)
    picture = 1 - picture if seeing.inverted else picture
    across = np.linspace(-1, 1, side, dtype=np.float32)
    light = 1 + rng.uniform(-0.15, 0.15) * across[None] + rng.uniform(-0.15, 0.15) * across[:, None]
    level = seeing.contrast / 2 + rng.uniform(0, 1 - seeing.contrast) * 0.8
    grey = (level + seeing.contrast * (picture - 0.5)) * light + rng.normal(0, seeing.noise, picture.shape)
    return np.repeat(np.clip(np.round(grey * 255), 0, 255).astype(np.uint8)[..., None], 3, 2)
