"""A scene under a camera as three layers: colour, height and gloss. Parts paint on it; `light.py` takes the picture.

Coordinates are pixels of the final image from its centre, x to the right and y down; heights are in the same unit.
The layers are `SS` times larger than the final image.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, radians, sin

import cv2
import numpy as np
from numpy.typing import NDArray

SS = 2
_SUB = 4  # bits of sub-pixel precision in OpenCV's drawing functions

Colour = tuple[float, float, float]
Layer = NDArray[np.float32]
Mask = NDArray[np.uint8]
Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Pose:
    """The position of a part: moved by (x, y) after a turn of `angle` degrees, clockwise in the image."""

    x: float = 0.0
    y: float = 0.0
    angle: float = 0.0

    def at(self, points: Points | NDArray[np.float64]) -> NDArray[np.float64]:
        """Return points of the part as points of the scene, (n, 2)."""
        c, s = cos(radians(self.angle)), sin(radians(self.angle))
        return np.asarray(points, dtype=np.float64) @ np.array([[c, s], [-s, c]]) + (self.x, self.y)

    def turned(self, angle: float) -> Pose:
        """Return this pose turned further about the part's own centre."""
        return Pose(self.x, self.y, self.angle + angle)


class Canvas:
    """The layers of one scene of `size` x `size` pixels: albedo (H, W, 3), height and gloss (H, W), all float32."""

    def __init__(self, size: int, camera: Pose = Pose()) -> None:
        self.size = size
        self.camera = camera
        side = size * SS
        self.albedo: Layer = np.zeros((side, side, 3), np.float32)
        self.height: Layer = np.zeros((side, side), np.float32)
        self.gloss: Layer = np.zeros((side, side), np.float32)

    def pixels(self, points: NDArray[np.float64]) -> NDArray[np.int32]:
        """Return scene points as fixed-point layer coordinates, as the camera sees them."""
        return np.round((self.camera.at(points) + self.size / 2) * SS * (1 << _SUB)).astype(np.int32)

    def extent(self, points: Points, pose: Pose = Pose()) -> tuple[float, float, float, float]:
        """Return the box (x0, y0, x1, y1) around points of a part, in pixels of the final image from its top left."""
        corners = np.clip(self.camera.at(pose.at(points)) + self.size / 2, 0, self.size)
        (x0, y0), (x1, y1) = corners.min(axis=0), corners.max(axis=0)
        return float(x0), float(y0), float(x1), float(y1)

    def polygon(self, points: Points, pose: Pose = Pose()) -> Mask:
        """Return the mask of a filled polygon."""
        mask = np.zeros(self.height.shape, np.uint8)
        cv2.fillPoly(mask, [self.pixels(pose.at(points))], 255, cv2.LINE_AA, _SUB)
        return mask

    def rect(self, x: float, y: float, w: float, h: float, pose: Pose = Pose(), corner: float = 0.0) -> Mask:
        """Return the mask of a rectangle around (x, y), its corners rounded by `corner`."""
        if corner <= 0:
            a, b = w / 2, h / 2
            return self.polygon([(x - a, y - b), (x + a, y - b), (x + a, y + b), (x - a, y + b)], pose)
        corner = min(corner, w / 2, h / 2)
        turns = [radians(step * 22.5) for step in range(16)]
        a, b = w / 2 - corner, h / 2 - corner
        rim: Points = [
            (x + (a if cos(t) > 0 else -a) + corner * cos(t), y + (b if sin(t) > 0 else -b) + corner * sin(t))
            for t in (turn + 1e-3 for turn in turns)
        ]
        return self.polygon(rim, pose)

    def disc(self, x: float, y: float, rx: float, ry: float | None = None, pose: Pose = Pose()) -> Mask:
        """Return the mask of an ellipse around (x, y)."""
        turns = np.linspace(0, 2 * np.pi, 40, endpoint=False)
        ry = rx if ry is None else ry
        return self.polygon([(x + rx * float(np.cos(t)), y + ry * float(np.sin(t))) for t in turns], pose)

    def line(self, points: Points, width: float, pose: Pose = Pose(), closed: bool = False) -> Mask:
        """Return the mask of a stroke."""
        mask = np.zeros(self.height.shape, np.uint8)
        thick = max(1, round(width * SS))
        cv2.polylines(mask, [self.pixels(pose.at(points))], closed, 255, thick, cv2.LINE_AA, _SUB)
        return mask

    def text(self, words: str, x: float, y: float, size: float, pose: Pose = Pose(), weight: float = 0.16) -> Mask:
        """Return the mask of a line of stroke-font text of cap height `size`, centred at (x, y)."""
        unit = 4.0  # drawn large, then brought down through the pose, so that small text keeps its shape
        scale = size * SS * unit / 21.0
        thick = max(1, round(size * weight * SS * unit))
        (w, h), _ = cv2.getTextSize(words, cv2.FONT_HERSHEY_SIMPLEX, scale, thick)
        pad = thick + 2
        card = np.zeros((h + 2 * pad, w + 2 * pad), np.uint8)
        cv2.putText(card, words, (pad, pad + h), cv2.FONT_HERSHEY_SIMPLEX, scale, 255, thick, cv2.LINE_AA)
        hw, hh = card.shape[1] / (2 * SS * unit), card.shape[0] / (2 * SS * unit)
        corners = pose.at([(x - hw, y - hh), (x + hw, y - hh), (x - hw, y + hh)])
        target = ((self.camera.at(corners) + self.size / 2) * SS).astype(np.float32)
        source = np.array([[0, 0], [card.shape[1], 0], [0, card.shape[0]]], np.float32)
        card = cv2.GaussianBlur(card, (0, 0), unit * 0.4)  # no moire when it shrinks
        side = self.height.shape[0]
        return cv2.warpAffine(card, cv2.getAffineTransform(source, target), (side, side), flags=cv2.INTER_LINEAR)

    def paint(self, mask: Mask, colour: Colour | None, gloss: float | None = None, opacity: float = 1.0) -> None:
        """Cover the mask with a colour and a gloss; heights stay."""
        window = window_of(mask)
        if window is None:
            return
        cover = mask[window].astype(np.float32) * np.float32(opacity / 255)
        if colour is not None:
            albedo = self.albedo[window]
            albedo += cover[..., None] * (np.asarray(colour, np.float32) - albedo)
        if gloss is not None:
            layer = self.gloss[window]
            layer += cover * (np.float32(gloss) - layer)

    def raise_(self, mask: Mask, top: float, bevel: float, base: float | None = None) -> None:
        """Lift the mask to `top` (from `base`, or from the present height), with edges rounded over `bevel` pixels."""
        window = window_of(mask)
        if window is None:
            return
        distance = cv2.distanceTransform((mask[window] > 127).astype(np.uint8), cv2.DIST_L2, 3)
        reach = np.minimum(distance / np.float32(max(bevel, 0.25) * SS), 1.0)
        profile = np.sqrt(np.maximum(0.0, 1.0 - (1.0 - reach) ** 2), dtype=np.float32)
        height = self.height[window]
        inside = distance > 0
        if base is None:
            height[inside] = np.maximum(height, profile * np.float32(top))[inside]
        else:
            height[inside] = (np.float32(base) + profile * np.float32(top - base))[inside]

    def shift_height(self, mask: Mask, change: float) -> None:
        """Add to the height under the mask; used for dents, prints and cracks."""
        window = window_of(mask)
        if window is not None:
            self.height[window] += mask[window].astype(np.float32) * np.float32(change / 255)

    def roughen(self, mask: Mask, rng: np.random.Generator, depth: float, grain: int = 3) -> None:
        """Add random relief under the mask, `depth` high, in grains of `grain` layer pixels."""
        window = window_of(mask)
        if window is None:
            return
        h, w = mask[window].shape
        relief = rng.standard_normal((h // grain + 2, w // grain + 2), dtype=np.float32)
        relief = cv2.resize(relief, (w, h), interpolation=cv2.INTER_LINEAR)
        self.height[window] += (mask[window] > 127) * relief * np.float32(depth)


def window_of(mask: Mask) -> tuple[slice, slice] | None:
    """Return the rows and columns that a mask touches, or None if it is empty."""
    x, y, w, h = cv2.boundingRect(mask)
    return (slice(y, y + h), slice(x, x + w)) if w and h else None
