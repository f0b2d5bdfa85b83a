"""Scaling an image of any shape to a square input, keeping its aspect, and mapping boxes back to the image."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from coe.store.kinds import Image, Prepared

Colour = tuple[int, int, int]


def letterbox(image: Image, size: int, padding: Colour) -> Prepared:
    """Scale an image (H, W, 3) uint8 RGB to fit a square of `size` pixels, centred, and fill the rest.

    The result holds pixels (3, size, size), and the image's original shape, scale and place.
    """
    height, width = image.shape[:2]
    scale = min(size / height, size / width)
    new_height, new_width = max(1, round(height * scale)), max(1, round(width * scale))
    if (new_height, new_width) != (height, width):
        # INTER_AREA averages, so that thin structures survive shrinking; it is useless for enlarging.
        method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
        image = np.asarray(cv2.resize(image, (new_width, new_height), interpolation=method), dtype=np.uint8)
    top, left = (size - new_height) // 2, (size - new_width) // 2
    pixels = np.empty((3, size, size), np.uint8)
    if (new_height, new_width) != (size, size):
        pixels[:] = np.array(padding, np.uint8)[:, None, None]
    # OpenCV takes colours apart twice as fast as a transposed copy.
    cv2.split(image, list(pixels[:, top : top + new_height, left : left + new_width]))
    return Prepared(pixels=pixels, height=height, width=width, scale=scale, left=float(left), top=float(top))


def to_image(corners: NDArray[np.float64], prepared: Prepared) -> NDArray[np.float64]:
    """Return boxes in pixels of the input as pixels of the original image, cut at its borders; both are (N, 4)."""
    shift = np.array([prepared.left, prepared.top] * 2)
    return np.clip((corners - shift) / prepared.scale, 0.0, np.array([prepared.width, prepared.height] * 2, np.float64))
