"""The pictures of an exam, made from good ones: a part that is missing, and a part that is turned.

What they show must not pass. A piece of a part's surroundings over the part predicts whether missing parts escape, and
a turned picture whether turned parts do. Filling a part in by its edge's colours, or pasting squares and scratches,
does not: what an expert says of such pictures says nothing of real ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from coe.core import Shown
from coe.store.exam import MOST, ExamItem
from coe.store.kinds import Image
from experts.core_set import core_set
from experts.nearness import LEAST_DEVIATIONS

T = TypeVar("T")
MOST_SHOWN = 32
"""An item is made from at most so many good pictures, taken evenly."""
_FILLS = 0.9
"""A part that fills more than this share of its pictures, on both sides, has no surroundings to take a piece of."""
_LEAST_STRIP = 4
"""So many pixels of surroundings, or more, make a piece."""
_FEATHER = 2.5
_SPUR = 0.25
_OTHER, _OTHER_OF_MOST = 0.5, 0.55
"""Edges lie so far from each other, as does what is no part; or so much of how far the farthest place lies."""
_SEES = 24
"""In a grid of so many places, of an input of 192 pixels, each sees one place farther than it is."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Pixels of an input from `left` and `top` to before `right` and `bottom`."""

    left: int
    top: int
    right: int
    bottom: int


@dataclass(frozen=True, slots=True)
class Sheet:
    """Pictures (n, 3, S, S) uint8 of an item of an exam, and the places (n,) of the good pictures they were made of."""

    item: Shown
    images: torch.Tensor
    made_of: NDArray[np.intp]


def evenly(things: Sequence[T], most: int) -> list[T]:
    """Return at most so many of the things, taken evenly."""
    if len(things) <= most:
        return list(things)
    return [things[place] for place in np.linspace(0, len(things) - 1, most).round().astype(int)]


def unlike_edges(seen: torch.Tensor) -> torch.Tensor:
    """Return which places (n, G, G) of pictures with patches (n, G, G, channels) are unlike all that their edges show.

    `seen` are patches of an early stage: deeper ones see a part from afar.
    """
    grid = seen.shape[1]
    seen = functional.normalize(seen, dim=3)
    edge = torch.cat([seen[:, 0], seen[:, -1], seen[:, :, 0], seen[:, :, -1]], dim=1).flatten(0, 1)
    usual = edge[core_set(edge, 256)]
    far = torch.cdist(seen.flatten(0, 2), usual).amin(dim=1).view(-1, grid, grid)
    # No place differs much if the part fills its pictures.
    unlike = far > min(_OTHER, _OTHER_OF_MOST * float(far.amax(dim=(1, 2)).median()))
    # A place sees what lies around it, so a part seems larger than it is by so many places on each side.
    other = functional.max_pool2d((~unlike).float()[:, None], 2 * (grid // _SEES) + 1, 1, grid // _SEES)
    return other[:, 0] == 0


def sheets(images: torch.Tensor, unlike: torch.Tensor) -> list[Sheet]:
    """Return what is made of good pictures (n, 3, S, S) uint8, of which `unlike` (n, G, G) tells where the part is."""
    places = np.array(evenly(range(len(images)), MOST_SHOWN), np.intp)
    bare = [(int(place), _bare(images[place].numpy(), unlike[place].numpy())) for place in places]
    made = [(place, image) for place, image in bare if image is not None]
    result = [Sheet(Shown.TURNED, torch.rot90(images[places], 2, (2, 3)).contiguous(), places)]
    if made:
        stacked = torch.from_numpy(np.stack([image for _, image in made]))
        result.insert(0, Sheet(Shown.MISSING, stacked, np.array([place for place, _ in made])))
    return result


def graded(item: Shown, passed: NDArray[np.bool_], label: str = "") -> ExamItem:
    """Return the row of an exam of which these pictures (n,) passed."""
    return ExamItem(item=item, shown=len(passed), passed=int(passed.sum()), label=label)


def tightened(limit: float, deviations: Sequence[float]) -> float:
    """Return the limit at which at most a tenth of an item passes, or the lowest there is.

    `deviations` are those of the pictures that nothing else finds, and of the others infinite.
    """
    most = math.floor(MOST * len(deviations))
    beyond = np.sort(np.asarray(deviations))
    if int((beyond <= limit).sum()) <= most:
        return limit
    return min(limit, max(LEAST_DEVIATIONS, float(np.nextafter(beyond[most], -np.inf))))


def _bare(image: Image, unlike: NDArray[np.bool_]) -> Image | None:
    """Return an image (3, S, S) with its surroundings over the part; None if it shows no part, or nothing around it."""
    part, shown = _part(unlike, image.shape[1]), _shown(image)
    if part is None or shown is None:
        return None
    part = Rectangle(
        max(part.left, shown.left),
        max(part.top, shown.top),
        min(part.right, shown.right),
        min(part.bottom, shown.bottom),
    )
    width, height = part.right - part.left, part.bottom - part.top
    if min(width, height) < _LEAST_STRIP:
        return None
    if width > _FILLS * (shown.right - shown.left) and height > _FILLS * (shown.bottom - shown.top):
        return None
    margins = {
        "top": part.top - shown.top,
        "bottom": shown.bottom - part.bottom,
        "left": part.left - shown.left,
        "right": shown.right - part.right,
    }
    side = max(margins, key=margins.__getitem__)
    if margins[side] < _LEAST_STRIP:
        return None
    rows, columns = slice(part.top, part.bottom), slice(part.left, part.right)
    strip = {
        "top": image[:, shown.top : part.top, columns],
        "bottom": image[:, part.bottom : shown.bottom, columns],
        "left": image[:, rows, shown.left : part.left],
        "right": image[:, rows, part.right : shown.right],
    }[side]
    # Mirrored away from the strip's inner edge until it fills the part's rectangle.
    short = ((0, 0), (0, max(0, height - strip.shape[1])), (0, max(0, width - strip.shape[2])))
    if side in ("top", "left"):
        piece = np.pad(strip[:, ::-1, ::-1], short, mode="symmetric")
    else:
        piece = np.pad(strip, short, mode="symmetric")
    over = image.astype(np.float32)
    over[:, rows, columns] = piece[:, :height, :width]
    opaque = np.zeros(image.shape[1:], np.float32)
    opaque[rows, columns] = 1
    opaque = cv2.GaussianBlur(opaque, (0, 0), _FEATHER)
    mixed = opaque * over + (1 - opaque) * image
    return np.asarray(mixed.round().clip(0, 255), np.uint8)


def _part(unlike: NDArray[np.bool_], side: int) -> Rectangle | None:
    """Return where the part is in an input of so many pixels: its largest piece, and others nearly as large."""
    count, numbers, stats, _ = cv2.connectedComponentsWithStats(unlike.astype(np.uint8))
    if count < 2:
        return None
    areas = stats[1:, cv2.CC_STAT_AREA]
    kept = 1 + np.flatnonzero(areas >= areas.max() / 4)
    part = np.isin(numbers, kept)
    # Spurs of single places are noise, or a trace that leads to the part.
    columns, rows = (np.flatnonzero(count > _SPUR * count.max()) for count in (part.sum(axis=0), part.sum(axis=1)))
    cell = side // len(unlike)
    return Rectangle(
        int(columns[0]) * cell, int(rows[0]) * cell, (int(columns[-1]) + 1) * cell, (int(rows[-1]) + 1) * cell
    )


def _shown(image: Image) -> Rectangle | None:
    """Return where an input (3, S, S) shows the picture: the rows and columns that are not of one colour."""
    varied = (image != image[:, :, :1]).any(axis=0) | (image != image[:, :1, :]).any(axis=0)
    rows, columns = (np.flatnonzero(varied.any(axis=axis)) for axis in (1, 0))
    if not len(rows) or not len(columns):
        return None
    return Rectangle(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
