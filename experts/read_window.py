"""What the kinds that read have in common: the window in a picture, the two labels, and the finding."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coe.core import Expert, Finding
from coe.helpers.allowed_text import Reading
from coe.store.kinds import Image

LABELS = ("right", "wrong")
"""The usual labels: what was read is allowed, or it is not. A board file may use two other words, in this order."""


@dataclass(frozen=True, slots=True)
class WindowPixels:
    """The pixels of an image that a window shows: from left and top to before right and bottom."""

    left: int
    top: int
    right: int
    bottom: int


def pixels_of(image: Image, window: tuple[float, float, float, float]) -> WindowPixels:
    """Return the pixels of a window, given in shares of an image (H, W, 3); at least one."""
    height, width = image.shape[:2]
    left, top = math.floor(window[0] * width + 0.5), math.floor(window[1] * height + 0.5)
    right, bottom = (math.floor(share * side + 0.5) for share, side in
                     ((window[0] + window[2], width), (window[1] + window[3], height)))  # fmt: skip
    left, top = min(left, width - 1), min(top, height - 1)
    return WindowPixels(left, top, min(width, max(right, left + 1)), min(height, max(bottom, top + 1)))


def window_of(image: Image, window: tuple[float, float, float, float]) -> Image:
    """Return what a window, given in shares of an image (H, W, 3), shows; at least one pixel."""
    place = pixels_of(image, window)
    return image[place.top : place.bottom, place.left : place.right]


def misfit(expert: Expert) -> str:
    """Say what is wrong with the labels of an expert that reads; "" if nothing is."""
    if len(expert.labels) != 2:
        return (
            f"kind '{expert.kind}' has two labels, for what is allowed and for what is not, in this order, as "
            f"`labels: [{', '.join(LABELS)}]`"
        )
    if expert.labels[0] in expert.reject:
        return f"kind '{expert.kind}': '{expert.labels[0]}' means what is allowed, and must not be rejected"
    return ""


def judged(expert: Expert, text: str, score: float, margin: float, doubt: str) -> Finding:
    """Return the finding about a text."""
    reading = expert.reads or Reading()
    # A label that is rejected would make NG of a doubt; nobody knows yet that the part is wrong.
    label = expert.labels[0 if doubt or reading.allows(text) else -1]
    return Finding(
        expert.id, expert.variant, label, score, margin=margin, doubt=doubt, read=text, allowed=reading.allowed or ()
    )
