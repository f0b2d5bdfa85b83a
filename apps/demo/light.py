"""The light and the camera: turns a scene into a picture.

An optical inspection line lights a board with rings at several angles, so that solder shows its slope as colour: flat
metal throws back the warm coaxial light, fillets the green of the middle ring and the blue of the low one.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from apps.demo.canvas import SS, Canvas

_WARM = np.array([1.0, 0.83, 0.70], np.float32)
_MIDDLE = np.array([0.52, 0.78, 0.62], np.float32)
_LOW = np.array([0.25, 0.42, 0.80], np.float32)


def picture(scene: Canvas, rng: np.random.Generator, exposure: float = 1.0) -> NDArray[np.uint8]:
    """Light a scene and photograph it: (size, size, 3) uint8 RGB.

    Small things are random: the lamp's balance and fall-off, focus, white balance and sensor noise.
    """
    height = cv2.GaussianBlur(scene.height, (0, 0), 0.45 * SS)
    dx = cv2.Sobel(height, cv2.CV_32F, 1, 0, ksize=3, scale=SS / 8)
    dy = cv2.Sobel(height, cv2.CV_32F, 0, 1, ksize=3, scale=SS / 8)
    slope = cv2.magnitude(dx, dy)
    upright = 1.0 / np.sqrt(1.0 + slope * slope)

    turn = rng.uniform(0, 2 * np.pi)
    lean = rng.uniform(0.10, 0.22)
    side = (np.cos(turn) * dx + np.sin(turn) * dy) * upright
    diffuse = 0.30 + 0.62 * upright - np.float32(lean) * side

    near = cv2.GaussianBlur(scene.height, (0, 0), 2.2 * SS) - scene.height
    offset = np.array([[1, 0, 1.5 * SS * np.cos(turn)], [0, 1, 1.5 * SS * np.sin(turn)]], np.float32)
    cast = cv2.warpAffine(scene.height, offset, height.shape[::-1], borderMode=cv2.BORDER_REPLICATE)
    cast = cv2.GaussianBlur(cast, (0, 0), 1.3 * SS) - scene.height
    shade = 1.0 - 0.055 * np.clip(near, 0, 6) - 0.05 * np.clip(cast, 0, 5)
    diffuse *= np.clip(shade, 0.3, 1.0)

    mirror = _rings(slope) + (0.16 * np.clip(-side, 0, 1))[..., None]
    gloss = scene.gloss[..., None]
    colour = scene.albedo * (diffuse[..., None] * (1.0 - 0.62 * gloss))
    colour += gloss * mirror * (0.25 + 0.75 * scene.albedo)

    image = cv2.resize(colour, (scene.size, scene.size), interpolation=cv2.INTER_AREA)
    return _camera(image, rng, exposure)


def _ring_table() -> NDArray[np.float32]:
    slope = (np.arange(256, dtype=np.float32) / _STEPS)[:, None]
    flat = np.exp(-((slope / 0.26) ** 2))
    middle = np.exp(-(((slope - 0.50) / 0.28) ** 2))
    low = np.exp(-slope * 0.18) / (1.0 + np.exp(-(slope - 0.85) * 7.0))
    return (flat * _WARM * 0.80 + middle * _MIDDLE * 0.62 + low * _LOW * 0.85 + 0.05).astype(np.float32)


_STEPS = 64.0  # table entries for a slope of 1
_RINGS = _ring_table()


def _rings(slope: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the light that polished metal of each slope throws back, (H, W, 3)."""
    return np.take(_RINGS, np.minimum(slope * _STEPS, 255).astype(np.uint8), axis=0)


def _camera(image: NDArray[np.float32], rng: np.random.Generator, exposure: float) -> NDArray[np.uint8]:
    size = image.shape[0]
    ramp = np.linspace(-1, 1, size, dtype=np.float32)
    tilt_x, tilt_y, vignette = rng.uniform(-0.06, 0.06), rng.uniform(-0.06, 0.06), rng.uniform(0.02, 0.10)
    field = 1.0 + tilt_x * ramp[None, :] + tilt_y * ramp[:, None]
    field = field - vignette * (ramp[None, :] ** 2 + ramp[:, None] ** 2) / 2
    balance = 1.0 + rng.uniform(-0.035, 0.035, 3).astype(np.float32)
    image = image * (field[..., None] * balance * np.float32(exposure * rng.uniform(0.92, 1.08)))
    image = cv2.GaussianBlur(image, (0, 0), float(rng.uniform(0.30, 0.62)))
    np.clip(image, 0.0, None, out=image)
    image = image / (1.0 + np.clip(image - 0.8, 0.0, None))  # highlights roll off as on a sensor
    bright = cv2.pow(np.clip(image, 0, 1), 1 / 1.35)
    grain = rng.standard_normal(image.shape, dtype=np.float32)
    bright += grain * (0.006 + 0.010 * np.sqrt(np.clip(bright, 0, 1)))
    return np.clip(np.round(bright * 255), 0, 255).astype(np.uint8)
