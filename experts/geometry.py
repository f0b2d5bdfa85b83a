"""Scaling an image of any shape to an expert's input, and mapping boxes back to the image."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as pillow

from coe.errors import ImageError
from coe.helpers.preprocessing import Interpolation, Preprocessing
from coe.store.kinds import ExpertInput, Image

Colour = tuple[int, int, int]

MOST_ASPECT = 20
"""The most times that an image may be longer than wide if its middle alone is seen."""
_OPENCV = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}
_PILLOW = {"bilinear-antialias": pillow.Resampling.BILINEAR, "bicubic-antialias": pillow.Resampling.BICUBIC}


def fitted_image(image: Image, size: int, seen: Preprocessing) -> ExpertInput:
    """Bring an image (H, W, 3) uint8 RGB to a square of `size` pixels, and its channels into order, as `seen` says.

    A network that sees an upper left part of the square alone finds the whole image there.

    Raises ImageError for an image of which a centre crop would show next to nothing.
    """
    if seen.resize == "letterbox":
        prepared = letterbox(image, size, seen.pad, seen.interpolation, seen.sides)
    else:
        prepared = _cut(image, size, seen)
    return prepared if seen.channels == "rgb" else replace(prepared, pixels=prepared.pixels[::-1].copy())


def letterbox(
    image: Image,
    size: int,
    padding: Colour,
    interpolation: Interpolation = "area",
    sides: tuple[int, int] | None = None,
) -> ExpertInput:
    """Scale an image (H, W, 3) uint8 RGB to fit `sides`, or a square of `size` pixels, centred, and fill the rest.

    The result holds pixels (3, size, size), and the image's original shape, scale and place.
    """
    height, width = image.shape[:2]
    rows, columns = sides or (size, size)
    scale = min(rows / height, columns / width)
    new_height, new_width = max(1, round(height * scale)), max(1, round(width * scale))
    image = _resized(image, new_width, new_height, interpolation)
    top, left = (rows - new_height) // 2, (columns - new_width) // 2
    pixels = np.empty((3, size, size), np.uint8)
    if (new_height, new_width) != (size, size):
        pixels[:] = np.array(padding, np.uint8)[:, None, None]
    # OpenCV takes colours apart twice as fast as a transposed copy.
    cv2.split(image, list(pixels[:, top : top + new_height, left : left + new_width]))
    return ExpertInput(
        pixels, height, width, new_width / width, left=float(left), top=float(top), scale_y=new_height / height
    )


def back(prepared: ExpertInput) -> NDArray[np.float64]:
    """Return the affine map, (2, 3), from pixels of the input to those of the image that was scaled to fit it."""
    across, down = 1 / prepared.scale, 1 / (prepared.scale if prepared.scale_y is None else prepared.scale_y)
    return np.array([[across, 0.0, -prepared.left * across], [0.0, down, -prepared.top * down]])


def to_image(corners: NDArray[np.float64], prepared: ExpertInput) -> NDArray[np.float64]:
    """Return boxes in pixels of the input as pixels of the original image, cut at its borders; both are (N, 4)."""
    shift = np.array([prepared.left, prepared.top] * 2)
    scales = np.array([prepared.scale, prepared.scale if prepared.scale_y is None else prepared.scale_y] * 2)
    return np.clip((corners - shift) / scales, 0.0, np.array([prepared.width, prepared.height] * 2, np.float64))


def _cut(image: Image, size: int, seen: Preprocessing) -> ExpertInput:
    """Scale the shorter side, or stretch both, and keep the middle, rounding as torchvision's transforms do."""
    height, width = image.shape[:2]
    rows, columns = seen.sides or (size, size)
    new_height, new_width = (seen.shortest_edge,) * 2 if seen.shortest_edge else (rows, columns)
    if seen.resize == "center-crop":
        if max(height, width) > MOST_ASPECT * min(height, width):
            raise ImageError(f"is {width} x {height} pixels: too elongated for an expert that sees only the middle")
        if new_height * width >= new_width * height:
            new_width = new_height * width // height
        else:
            new_height = new_width * height // width
    image = _resized(image, new_width, new_height, seen.interpolation)
    beyond = new_height - rows, new_width - columns
    top, left = (side // 2 if seen.rounds_down else round(side / 2) for side in beyond)
    pixels = np.zeros((3, size, size), np.uint8)
    pixels[:, :rows, :columns] = image[top : top + rows, left : left + columns].transpose(2, 0, 1)
    return ExpertInput(
        pixels, height, width, new_width / width, left=float(-left), top=float(-top), scale_y=new_height / height
    )


def _resized(image: Image, width: int, height: int, interpolation: Interpolation) -> Image:
    if image.shape[:2] == (height, width):
        return image
    if interpolation in _PILLOW:
        return np.asarray(pillow.fromarray(image).resize((width, height), _PILLOW[interpolation]))
    # INTER_AREA averages, so that thin structures survive shrinking; it is useless for enlarging.
    shrinks = width <= image.shape[1] and height <= image.shape[0]
    method = _OPENCV.get(interpolation, cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
    # OpenCV would wait for the interpreter's lock once more to make the array.
    resized = np.empty((height, width, 3), np.uint8)
    return np.asarray(cv2.resize(image, (width, height), dst=resized, interpolation=method), dtype=np.uint8)
