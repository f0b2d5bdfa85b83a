"""What all formats become: pictures with labelled boxes in pixels, and a list of all that does not fit."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coe.errors import ConfigError, list_few

_SHOWN = 20
_ROUNDED_PX = 1.0
"""How far a box may stand over an edge by rounding alone."""


@dataclass(frozen=True, slots=True)
class MarkedBox:
    """A box in pixels of the picture as it is seen, from its left upper corner; `where` says where it was drawn."""

    label: str
    left: float
    top: float
    right: float
    bottom: float
    where: str


@dataclass(frozen=True, slots=True)
class MarkedPicture:
    """A picture that somebody looked at: without boxes it is a good one. `width` and `height` are in pixels."""

    path: Path
    width: int
    height: int
    boxes: tuple[MarkedBox, ...]


@dataclass(slots=True)
class Findings:
    """All that does not fit, by what it has in common, and what was left out or changed and is no fault."""

    faults: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    notes: Counter[str] = field(default_factory=Counter)

    def fault(self, what: str, where: str) -> None:
        """Note a fault: `what` is the sentence that all of its kind have in common."""
        self.faults[what].append(where)

    def refuse(self, source: Path) -> None:
        """Raise ConfigError with all faults, kind by kind, if there are any."""
        if not self.faults:
            return
        lines = []
        for what, places in self.faults.items():
            lines.append(f"{len(places)} x {what}: {list_few(places, _SHOWN, '; ')}")
        raise ConfigError(f"{source}: nothing was written; " + " | ".join(lines))


@dataclass(frozen=True, slots=True)
class MarkedSet:
    """What a file of annotations holds: labels in their order, and the pictures that somebody looked at."""

    labels: tuple[str, ...]
    pictures: tuple[MarkedPicture, ...]


def around(points: Sequence[tuple[float, float]], label: str, where: str) -> MarkedBox:
    """Return the upright box around some points (x, y), in pixels."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return MarkedBox(label, min(xs), min(ys), max(xs), max(ys), where)


def around_ellipse(x: float, y: float, rx: float, ry: float, degrees: float) -> list[tuple[float, float]]:
    """Return two corners of the upright box around an ellipse that is turned about its middle."""
    turn = math.radians(degrees)
    wide = math.hypot(rx * math.cos(turn), ry * math.sin(turn))
    high = math.hypot(rx * math.sin(turn), ry * math.cos(turn))
    return [(x - wide, y - high), (x + wide, y + high)]


def turned(left: float, top: float, right: float, bottom: float, degrees: float) -> list[tuple[float, float]]:
    """Return the corners of a box that is turned clockwise about its middle."""
    turn, x, y = math.radians(degrees), (left + right) / 2, (top + bottom) / 2
    cos, sin = math.cos(turn), math.sin(turn)
    corners = [(left - x, top - y), (right - x, top - y), (right - x, bottom - y), (left - x, bottom - y)]
    return [(x + dx * cos - dy * sin, y + dx * sin + dy * cos) for dx, dy in corners]


def fitted(
    boxes: Iterable[MarkedBox], name: str, width: int, height: int, findings: Findings, *, clip: bool
) -> tuple[MarkedBox, ...]:
    """Return the boxes within a picture; note those without area, outside of it, or over its edge.

    What stands over the edge by a pixel at most, as rounding does, or with `clip` by more, is cut off there.
    """
    kept = []
    for box in boxes:
        place = f"{name} {box.where} ({box.left:g}, {box.top:g}, {box.right:g}, {box.bottom:g})"
        over = max(-box.left, -box.top, box.right - width, box.bottom - height)
        if not (box.right > box.left and box.bottom > box.top):  # also NaN
            findings.fault("a box has no area; draw it again or delete it", place)
        elif box.right <= 0 or box.bottom <= 0 or box.left >= width or box.top >= height:
            findings.fault("a box lies outside of its picture; delete it, or give the right picture", place)
        elif over > _ROUNDED_PX and not clip:
            findings.fault(
                "a box reaches over the edge of its picture; correct it, or cut all off there with --clip", place
            )
        else:
            if over > _ROUNDED_PX:
                findings.notes["boxes that reach over the edge were cut off there"] += 1
            left, top = max(0.0, box.left), max(0.0, box.top)
            kept.append(MarkedBox(box.label, left, top, min(width, box.right), min(height, box.bottom), box.where))
    return tuple(kept)
