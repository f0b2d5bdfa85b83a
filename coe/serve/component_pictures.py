"""The picture of a component: its view, or its crop of the view of a whole board. Upright, as the line saw it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from coe.pictures.array_images import AS_FILLED, DecodedImage
from coe.pictures.decoding import decode
from coe.pictures.picture_file import PictureFile
from coe.placement.crops import OUTSIDE, upright

AROUND = 0.3  # how much of what lies around a crop a person sees: this share of its longer side, on each side
KEPT_PIXELS = 32_000_000  # a view of more pixels does not stay in the gate's memory
_LONGEST = 4000  # the longest side in pixels of a crop whose size nobody said, as that of a unit of a panel


@dataclass(frozen=True, slots=True)
class CropPlace:
    """Where a component lies in the view of a whole board, as `coe.serve.worker.locating` writes it.

    `corners` are in pixels of the view, from the upright crop's top left on and round; `width` and `height` are the
    pixels of the crop that the experts saw. `bits` of the view's 16-bit samples counted, if that was said.
    """

    corners: Sequence[Sequence[float]]
    width: int
    height: int
    bits: int | None = None

    @classmethod
    def of(cls, place: Any) -> CropPlace | None:
        """Return the place in a row; None if the view shows the component alone, or if nobody knows the place."""
        if not place or not place["polygon"]:
            return None
        corners = np.array(place["polygon"])
        right, down = (float(np.hypot(*(corners[number] - corners[0]))) for number in (1, 3))
        largest = max(right, down, 1.0)
        scale = min(1.0, _LONGEST / largest)
        natural = [max(1, round(length * scale)) for length in (right, down)]
        width, height = place.get("size", natural)
        return cls(place["polygon"], width, height, place.get("bits"))

    @property
    def around(self) -> int:
        """How many pixels around the crop a person sees."""
        return round(AROUND * max(self.width, self.height))

    @property
    def shown_pixels(self) -> int:
        """How many pixels the crop has with what lies around it."""
        return (self.width + 2 * self.around) * (self.height + 2 * self.around)


class Cutter:
    """Cuts components out of views of whole boards; several threads may use it at a time."""

    def __init__(self, kept_pixels: int = KEPT_PIXELS) -> None:
        """A view of more than `kept_pixels` does not stay in memory."""
        self._kept_pixels = kept_pixels
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._pixels: DecodedImage | None = None

    def cut(self, file: PictureFile, place: CropPlace, limit_pixels: int, *, around: int = 0) -> DecodedImage:
        """Return a crop of a view, (H, W, 3) uint8 RGB, with so many pixels around it; raises ImageError."""
        with self._lock:
            pixels = self._pixels if self._path == file.path else None
            if pixels is None:
                self._path = self._pixels = None  # two views would be held
                pixels = decode(file, bits=place.bits or AS_FILLED, limit_pixels=limit_pixels)
                if pixels.shape[0] * pixels.shape[1] <= self._kept_pixels:
                    self._path, self._pixels = file.path, pixels
            return upright(pixels, np.array(place.corners), place.width, place.height, around)


def in_frame(pixels: DecodedImage, place: CropPlace | None) -> DecodedImage:
    """Return a picture as large as a crop, with dark sides as wide as what lies around it; as it is without a place."""
    if place is None:
        return pixels
    if pixels.shape[:2] != (place.height, place.width):
        pixels = np.asarray(cv2.resize(pixels, (place.width, place.height), interpolation=cv2.INTER_AREA))
    sides = (place.around,) * 4
    return np.asarray(cv2.copyMakeBorder(pixels, *sides, cv2.BORDER_CONSTANT, value=OUTSIDE))
