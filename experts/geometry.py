"""Scaling an image of any shape to a square input, keeping its aspect, and mapping boxes back to the image."""

from __future__ import annotations

import cv2
import numpy as np

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
    pixels[:] = np.array(padding, np.uint8)[:, None, None]
    pixels[:, top : top + new_height, left : left + new_width] = image.transpose(2, 0, 1)
    return Prepared(pixels=pixels, height=height, width=width, scale=scale, left=float(left), top=float(top))


def to_image(xyxy: tuple[float, float, float, float], prepared: Prepared) -> tuple[float, float, float, float]:
    """Return a box in pixels of the input as pixels of the original image, cut at its borders."""
    x1, y1, x2, y2 = xyxy
    return (
        min(max((x1 - prepared.left) / prepared.scale, 0.0), float(prepared.width)),
        min(max((y1 - prepared.top) / prepared.scale, 0.0), float(prepared.height)),
        min(max((x2 - prepared.left) / prepared.scale, 0.0), float(prepared.width)),
        min(max((y2 - prepared.top) / prepared.scale, 0.0), float(prepared.height)),
    )
