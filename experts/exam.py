"""The pictures of an exam, made from good ones: a part that is missing, and a part that is turned.

What they show must not pass. A piece of a part's surroundings over the part predicts whether missing parts escape, and
a turned picture whether turned parts do. Filling a part in by its edge's colours, or pasting squares and scratches,
does not: what an expert says of such pictures says nothing of real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from coe.comparing.motion import grey_of
from coe.core import Shown
from coe.store.exam import MOST, ExamItem
from coe.store.kinds import Image
from experts.core_set import core_set
from experts.nearness import LEAST_DEVIATIONS

T = TypeVar("T")
MOST_SHOWN = 32
"""An item is made from at most so many good pictures, taken evenly."""
_LEAST_STRIP = 4
"""So many pixels of surroundings, or more, make a piece."""
_FEATHER = 2.5
_SMALLER = 0.08
_GRID, _COLOURS = 32, 12
"""A picture is seen in so many rows and columns of places, each of one of so many colours."""
_SIZES, _LONGEST = range(8, 31, 2), 4
"""The widths and heights of parts, in places, and how many times as long as wide a part may be."""
_SEARCHED, _REACH, _MOVES = 8, 2, 4
"""In so many pictures the size is searched, so many places off the middle; and so many off lie single parts."""
_AROUND, _LARGER = 0.2, 0.5
"""What lies as far around a part as this share of its shorter side differs from it; and the power of a part's area in
what decides: a body alone differs from its surroundings nearly as the whole part does."""
_OFF = 0.03
"""So much less a place decides for each step that it lies off the middle."""
_NOISE, _SOME = 4, 2048
"""Grey levels by which pictures of one colour vary; and from so many places, about, their colours are learned."""
_DIFFERS = 0.33
"""Colours of a part and of what lies beside each of its sides differ by this distance (half of chi squared, 0 to 1)."""
_METAL = 60
"""Pads and leads differ from a body by more than so many grey levels, and the mean of a line of print does not."""
_PLAIN = 6
"""Grey levels by which a row or column of one colour may vary, in a JPEG."""
_FITTING = cv2.TM_CCOEFF_NORMED


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Pixels of an input from `left` and `top` to before `right` and `bottom`."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        """Its columns."""
        return self.right - self.left

    @property
    def height(self) -> int:
        """Its rows."""
        return self.bottom - self.top

    def within(self, share: float) -> Rectangle:
        """Return it without this share of its width and height on each side."""
        across, down = round(share * self.width), round(share * self.height)
        return Rectangle(self.left + across, self.top + down, self.right - across, self.bottom - down)


@dataclass(frozen=True, slots=True)
class Sheet:
    """Pictures (n, 3, S, S) uint8 of an item of an exam, and the places (n,) of the good pictures they were made of."""

    item: Shown
    images: torch.Tensor
    made_of: NDArray[np.intp]

    def least(self, deviations: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the least of the deviations (n,) of pictures for each good picture that some are made of."""
        numbers, own = np.unique(self.made_of, return_inverse=True)
        least = np.full(len(numbers), np.inf)
        np.minimum.at(least, own, deviations)
        return least


@dataclass(frozen=True, slots=True)
class FoundPart:
    """Where a picture shows its part, and where it shows anything."""

    part: Rectangle
    shown: Rectangle


def evenly(things: Sequence[T], most: int) -> list[T]:
    """Return at most so many of the things, taken evenly."""
    if len(things) <= most:
        return list(things)
    return [things[place] for place in np.linspace(0, len(things) - 1, most).round().astype(int)]


def sheets(images: torch.Tensor, *, alike: bool = True) -> list[Sheet]:
    """Return what is made of good pictures (n, 3, S, S) uint8 of one component; not `alike` if parts lie at any angle.

    A part is turned in its place, and once more in a box that is a little smaller, since a seam through print or a
    neighbour gives it away. Where nobody can tell the place, the picture is turned.
    """
    turned, bare = list[tuple[int, Image]](), list[tuple[int, Image]]()
    places = evenly(range(len(images)), MOST_SHOWN)
    shown = [images[place].numpy() for place in places]
    parts = parts_of(shown) if alike else [one for image in shown for one in parts_of([image])]
    for place, image, found in zip(places, shown, parts, strict=True):
        if found is None:
            turned.append((place, image[:, ::-1, ::-1]))
            continue
        turned += [(place, _turned_in_place(image, part)) for part in (found.part, found.part.within(_SMALLER))]
        if (without := _bare(image, found)) is not None:
            bare.append((place, without))
    made = {Shown.MISSING: bare, Shown.TURNED: turned}
    return [
        Sheet(item, torch.from_numpy(np.stack([image for _, image in of])), np.array([place for place, _ in of]))
        for item, of in made.items()
        if of
    ]


def made_of(image: Image, found: FoundPart | None) -> Iterator[tuple[Shown, Image]]:
    """Yield what must not pass, made of a picture of a good part, (H, W, 3) uint8 RGB, for a kind that compares places.

    The part is turned in its place, and its body is missing: where it stood, its pads stay. Else the surroundings would
    give it away. If no part was found, the picture is turned.
    """
    return _made_of(image, found, _without_body)


def made_of_whole(image: Image) -> Iterator[tuple[Shown, Image]]:
    """Yield the same for a kind that sees wholes: surroundings cover the whole part."""
    return _made_of(image, part_of(image), _bare)


def _made_of(
    image: Image, found: FoundPart | None, without: Callable[[Image, FoundPart], Image | None]
) -> Iterator[tuple[Shown, Image]]:
    channels = np.ascontiguousarray(image.transpose(2, 0, 1))
    made = [(Shown.TURNED, channels[:, ::-1, ::-1] if found is None else _turned_in_place(channels, found.part))]
    if found is not None and (bare := without(channels, found)) is not None:
        made.append((Shown.MISSING, bare))
    for item, pixels in made:
        yield item, np.ascontiguousarray(pixels.transpose(1, 2, 0))


def part_of(image: Image) -> FoundPart | None:
    """Return where a picture (H, W, 3) uint8 RGB shows its part; None if nobody can tell."""
    return parts_of([np.ascontiguousarray(image.transpose(2, 0, 1))])[0]


def parts_of(images: Sequence[Image]) -> list[FoundPart | None]:
    """Return where pictures (3, H, W) uint8 RGB of one component show their parts; None where nobody can tell.

    A part lies near the middle, and its colours differ from those beside each of its sides, however near print or
    neighbours are. The size is one for all pictures, that with which they differ most. If they do not differ in most
    pictures (a surface, or parts at any place), all are None.
    """
    found: list[FoundPart | None] = [None] * len(images)
    shown = {place: one for place, image in enumerate(images) if (one := _shown(image)) is not None}
    if not shown:
        return found
    coloured = _coloured([(images[place], around) for place, around in shown.items()])
    size = _size_of(coloured[evenly(range(len(shown)), _SEARCHED)])
    places = _candidates([size], _MOVES)
    differs, decides = _differences(coloured, places)
    best = decides.argmax(axis=1)
    own = np.take_along_axis(differs, best[:, None], axis=1)[:, 0]
    if np.median(own) < _DIFFERS:
        return found
    # A picture in which nothing differs enough has its part where most others have theirs.
    usual = np.median(places[best], axis=0)
    for number, (place, around) in enumerate(shown.items()):
        box = places[best[number]] if own[number] >= _DIFFERS else usual
        x, y = (side / _GRID for side in (around.width, around.height))
        left, top, right, bottom = (round(value * scale) for value, scale in zip(box, (x, y, x, y), strict=True))
        part = Rectangle(around.left + left, around.top + top, around.left + right, around.top + bottom)
        if min(part.width, part.height) >= _LEAST_STRIP:
            found[place] = FoundPart(part, around)
    return found


def _coloured(pictures: Sequence[tuple[Image, Rectangle]]) -> NDArray[np.float32]:
    """Return which of their colours places of pictures have, (n, grid, grid, colours), each 0 or 1."""
    rows = []
    for image, shown in pictures:
        own = image[:, shown.top : shown.bottom, shown.left : shown.right].transpose(1, 2, 0)
        small = cv2.resize(np.ascontiguousarray(own), (_GRID, _GRID), interpolation=cv2.INTER_AREA)
        lab = cv2.cvtColor(small, cv2.COLOR_RGB2LAB).astype(np.float32)
        rows.append((lab - np.median(lab, axis=(0, 1))) / (lab[..., 0].std() + _NOISE))  # whatever the light is
    colours = torch.from_numpy(np.stack(rows)).flatten(0, 2)
    some = colours[:: max(1, len(colours) // _SOME)]
    middles = some[core_set(some, _COLOURS)]
    for _ in range(3):  # Lloyd's
        nearest = torch.cdist(some, middles).argmin(dim=1)
        counts = torch.bincount(nearest, minlength=len(middles)).clamp_min(1)
        middles = torch.zeros_like(middles).index_add_(0, nearest, some) / counts[:, None]
    which = torch.cdist(colours, middles).argmin(dim=1)
    return functional.one_hot(which, len(middles)).view(len(rows), _GRID, _GRID, -1).float().numpy()


def _candidates(sizes: Iterable[tuple[int, int]], reach: int) -> NDArray[np.intp]:
    """Return left, top, right and bottom, in places, of rectangles (m, 4) that leave a place on each side."""
    moves = range(-reach, reach + 1)
    corners = (
        ((_GRID - width) // 2 + x, (_GRID - height) // 2 + y, width, height)
        for width, height in sizes
        for x in moves
        for y in moves
    )
    rows = [(x, y, x + width, y + height) for x, y, width, height in corners]
    return np.array([row for row in rows if min(row) > 0 and max(row) < _GRID], np.intp)


def _size_of(coloured: NDArray[np.float32]) -> tuple[int, int]:
    """Return width and height, in places, of the part that pictures of one component show."""
    sizes = [(x, y) for x in _SIZES for y in _SIZES if max(x, y) <= _LONGEST * min(x, y)]
    places = _candidates(sizes, _REACH)
    _, decides = _differences(coloured, places)
    kinds, own = np.unique(places[:, 2:] - places[:, :2], axis=0, return_inverse=True)
    most = [decides[:, own.ravel() == kind].max(axis=1).mean() for kind in range(len(kinds))]
    width, height = kinds[int(np.argmax(most))].tolist()
    return width, height


def _differences(coloured: NDArray[np.float32], places: NDArray[np.intp]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return how much rectangles (m, 4) differ from what lies beside that side of which they differ least, (n, m).

    And the same, more for larger ones and less for those off the middle, by which rectangles are compared.
    """
    sums = np.pad(coloured.cumsum(axis=1).cumsum(axis=2), ((0, 0), (1, 0), (1, 0), (0, 0)))

    def within(left: NDArray[Any], top: NDArray[Any], right: NDArray[Any], bottom: NDArray[Any]) -> NDArray[Any]:
        counts = sums[:, bottom, right] - sums[:, top, right] - sums[:, bottom, left] + sums[:, top, left]
        return np.asarray(counts / counts.sum(axis=-1, keepdims=True))

    left, top, right, bottom = places.T
    width, height = right - left, bottom - top
    far = np.maximum(2, (_AROUND * np.minimum(width, height)).round().astype(np.intp))
    inside = within(left, top, right, bottom)
    beside = (
        within(np.maximum(left - far, 0), top, left, bottom),
        within(right, top, np.minimum(right + far, _GRID), bottom),
        within(left, np.maximum(top - far, 0), right, top),
        within(left, bottom, right, np.minimum(bottom + far, _GRID)),
    )
    least = np.min([((inside - one) ** 2 / (inside + one + 1e-9)).sum(axis=-1) / 2 for one in beside], axis=0)
    off = np.abs(left + right - _GRID) / 2 + np.abs(top + bottom - _GRID) / 2
    return least, least * (width * height / _GRID**2) ** _LARGER * (1 - _OFF * off)


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


def _bare(image: Image, found: FoundPart) -> Image | None:
    """Return an image (3, H, W) with its surroundings over the part; None if there is nothing around it."""
    if not (pieces := _pieces(image, found, found.part)):
        return None
    _, widest = max(pieces, key=lambda one: one[0])
    return _laid(image, widest, found.part.left, found.part.top)


def _without_body(image: Image, found: FoundPart) -> Image | None:
    """Return an image (3, H, W) with its plainest surroundings over the body of its part; None if nothing is around it.

    Print on the board, or a neighbour's pads, would differ more than the bare board that is seen there.
    """
    body = _body(image, found.part)
    if not (pieces := _pieces(image, found, body)):
        return None
    return _laid(image, min((piece for _, piece in pieces), key=np.std), body.left, body.top)


def _body(image: Image, part: Rectangle) -> Rectangle:
    """Return the body of a part, which looks like its middle: all but the pads or leads that are seen at its ends."""
    inside = image[:, part.top : part.bottom, part.left : part.right].astype(np.float32)
    ends = list[tuple[int, int]]()
    for lines in (inside, inside.transpose(0, 2, 1)):
        across, length = lines.shape[1:]
        line = lines[:, across // 4 : across - across // 4].mean(axis=1)
        middle = np.median(line[:, length // 3 : length - length // 3], axis=1, keepdims=True)
        metal = np.flatnonzero(np.abs(line - middle).max(axis=0) > _METAL)
        before, after = metal[metal < length / 3], metal[metal >= 2 * length / 3]
        ends.append((int(before[-1]) + 1 if len(before) else 0, int(after[0]) if len(after) else length))
    (left, right), (top, bottom) = ends
    return Rectangle(part.left + left, part.top + top, part.left + right, part.top + bottom)


def _pieces(image: Image, found: FoundPart, inner: Rectangle) -> list[tuple[int, Image]]:
    """Return pieces of the surroundings of a part, each as large as `inner`, and from how many pixels each is made."""
    part, shown = found.part, found.shown
    rows, columns = slice(inner.top, inner.bottom), slice(inner.left, inner.right)
    strips = [
        (part.top - shown.top, image[:, shown.top : part.top, columns][:, ::-1, ::-1]),
        (shown.bottom - part.bottom, image[:, part.bottom : shown.bottom, columns]),
        (part.left - shown.left, image[:, rows, shown.left : part.left][:, ::-1, ::-1]),
        (shown.right - part.right, image[:, rows, part.right : shown.right]),
    ]
    width, height = inner.width, inner.height
    pieces = []
    for margin, strip in strips:
        if margin >= _LEAST_STRIP:
            # Mirrored away from the strip's inner edge until it fills the rectangle.
            short = ((0, 0), (0, max(0, height - strip.shape[1])), (0, max(0, width - strip.shape[2])))
            pieces.append((margin, np.pad(strip, short, mode="symmetric")[:, :height, :width]))
    return pieces


def _turned_in_place(image: Image, part: Rectangle) -> Image:
    """Return an image (3, H, W) whose part is turned by 180 degrees, to where it then fits best."""
    piece = image[:, part.top : part.bottom, part.left : part.right][:, ::-1, ::-1]
    reach = max(1, min(piece.shape[1:]) // 8)
    left, top = max(0, part.left - reach), max(0, part.top - reach)
    around = image[:, top : part.bottom + reach, left : part.right + reach]
    fits = cv2.matchTemplate(
        *(grey_of(np.ascontiguousarray(one.transpose(1, 2, 0))) for one in (around, piece)), _FITTING
    )
    row, column = np.unravel_index(int(np.nan_to_num(fits).argmax()), fits.shape)
    return _laid(image, piece, left + int(column), top + int(row))


def _laid(image: Image, piece: Image, left: int, top: int) -> Image:
    """Return an image (3, H, W) with a piece (3, h, w) over it, its edge feathered."""
    rows, columns = slice(top, top + piece.shape[1]), slice(left, left + piece.shape[2])
    over, opaque = image.astype(np.float32), np.zeros(image.shape[1:], np.float32)
    over[:, rows, columns], opaque[rows, columns] = piece, 1
    opaque = cv2.GaussianBlur(opaque, (0, 0), _FEATHER)
    return np.asarray((opaque * over + (1 - opaque) * image).round().clip(0, 255), np.uint8)


def _shown(image: Image) -> Rectangle | None:
    """Return where an input (3, S, S) shows the picture: without edges of one colour, one within the other.

    Pictures may have a frame, and an input is padded around it.
    """
    box = Rectangle(0, 0, image.shape[2], image.shape[1])
    while True:
        own = image[:, box.top : box.bottom, box.left : box.right]
        rows, columns = (np.flatnonzero((np.ptp(own, axis=axis) > _PLAIN).any(axis=0)) for axis in (2, 1))
        if not len(rows) or not len(columns):
            return None
        inner = Rectangle(
            box.left + int(columns[0]),
            box.top + int(rows[0]),
            box.left + int(columns[-1]) + 1,
            box.top + int(rows[-1]) + 1,
        )
        if inner == box:
            return box
        box = inner
