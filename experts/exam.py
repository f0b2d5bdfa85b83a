"""The pictures of an exam, made from good ones: a part that is missing, and a part that is turned.

What they show must not pass. A piece of a part's surroundings over the part predicts whether missing parts escape, and
a turned picture whether turned parts do. Filling a part in by its edge's colours, or pasting squares and scratches,
does not: what an expert says of such pictures says nothing of real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from coe.comparing.motion import grey_of
from coe.core import Shown
from coe.errors import ConfigError
from coe.helpers.preprocessing import NORMALIZATIONS
from coe.learn.backbones import packaged_file
from coe.store import torch_file
from coe.store.exam import MOST, ExamItem
from coe.store.kinds import Image
from experts.backbone import ARCHITECTURES, create, patches
from experts.core_set import core_set
from experts.lite0_weights import PACKAGED, by_timms_names
from experts.nearness import LEAST_DEVIATIONS
from experts.normalising import normalise
from experts.one_thread import hasten

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
_EDGES = 256
"""So many places of edges stand for all of them."""
_BODY, _ACROSS = 0.4, 0.8
"""The shares of a part's longer and shorter side that are its body, between its pads."""
_FITTING = cv2.TM_CCOEFF_NORMED
_EYE, _CELL = 192, 8
"""The sides in pixels of the input in which a part is found for a kind without a backbone, and of a place in it."""


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


def unlike_edges(seen: torch.Tensor) -> torch.Tensor:
    """Return which places (n, G, H) of pictures with patches (n, G, H, channels) are unlike all that their edges show.

    `seen` are patches of an early stage: deeper ones see a part from afar.
    """
    grid = min(seen.shape[1:3])
    seen = functional.normalize(seen, dim=3)
    edge = torch.cat([seen[:, 0], seen[:, -1], seen[:, :, 0], seen[:, :, -1]], dim=1).flatten(0, 1)
    usual = edge[core_set(edge, _EDGES)] if len(edge) > _EDGES else edge
    far = torch.cdist(seen.flatten(0, 2), usual).amin(dim=1).view(seen.shape[:3])
    # No place differs much if the part fills its pictures.
    unlike = far > min(_OTHER, _OTHER_OF_MOST * float(far.amax(dim=(1, 2)).median()))
    # A place sees what lies around it, so a part seems larger than it is by so many places on each side.
    other = functional.max_pool2d((~unlike).float()[:, None], 2 * (grid // _SEES) + 1, 1, grid // _SEES)
    return other[:, 0] == 0


def sheets(images: torch.Tensor, unlike: torch.Tensor) -> list[Sheet]:
    """Return what is made of good pictures (n, 3, S, S) uint8, of which `unlike` (n, G, G) tells where the part is.

    A turned part is shown in its place and with its picture: the board around it gives the one away, a seam the other.
    """
    turned, bare = list[tuple[int, Image]](), list[tuple[int, Image]]()
    for place in evenly(range(len(images)), MOST_SHOWN):
        image = images[place].numpy()
        turned.append((place, image[:, ::-1, ::-1]))
        if (found := _found(image, unlike[place].numpy())) is not None:
            turned.append((place, _turned_in_place(image, found.part)))
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
    """Return where a picture (H, W, 3) uint8 RGB shows its part, as the pretrained network tells that is installed.

    None without that network, and if the picture shows no part before its surroundings.
    """
    return _found(np.ascontiguousarray(image.transpose(2, 0, 1)), _unlike(image))


def _unlike(image: Image) -> NDArray[np.bool_]:
    """Return which places of a picture (H, W, 3) are unlike its edges; none without the pretrained network."""
    if (eye := _eye()) is None:
        return np.zeros((1, 1), np.bool_)
    with torch.inference_mode():
        square = cv2.resize(image, (_EYE, _EYE), interpolation=cv2.INTER_AREA)
        pixels = normalise(torch.from_numpy(square).permute(2, 0, 1)[None], torch.float32, *NORMALIZATIONS["-1..1"])
        seen = patches([eye(pixels.contiguous(memory_format=torch.channels_last))], _EYE // _CELL)
        return np.asarray(unlike_edges(seen)[0].numpy())


@cache
def _eye() -> torch.nn.Module | None:
    """Return the first layers of the network that comes in a package; None if that is not installed."""
    try:
        file = packaged_file(PACKAGED)
    except ConfigError:
        return None
    network: Any = create(ARCHITECTURES["efficientnet-lite0"].timm_name, labels=0)
    network.prune_intermediate_layers([1], prune_norm=True, prune_head=True)
    weights = by_timms_names(torch_file.load(file), file)
    network.load_state_dict({name: weights[name] for name in network.state_dict()})
    first = torch.nn.Sequential(network.conv_stem, network.bn1, network.blocks)
    hasten(first)
    return first.eval().requires_grad_(False)


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


def _found(image: Image, unlike: NDArray[np.bool_]) -> FoundPart | None:
    """Return where an image (3, H, W) shows its part; None if it shows none, or nothing around it."""
    part, shown = _part(unlike, *image.shape[1:]), _shown(image)
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
    return FoundPart(part, shown)


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
    part = found.part
    width, height = part.right - part.left, part.bottom - part.top
    shares = (_BODY, _ACROSS) if width >= height else (_ACROSS, _BODY)
    across, down = (round((1 - share) / 2 * side) for share, side in zip(shares, (width, height), strict=True))
    body = Rectangle(part.left + across, part.top + down, part.right - across, part.bottom - down)
    if not (pieces := _pieces(image, found, body)):
        return None
    return _laid(image, min((piece for _, piece in pieces), key=np.std), body.left, body.top)


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
    width, height = inner.right - inner.left, inner.bottom - inner.top
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


def _part(unlike: NDArray[np.bool_], height: int, width: int) -> Rectangle | None:
    """Return where the part is in a picture of this size: its largest piece, and others nearly as large."""
    count, numbers, stats, _ = cv2.connectedComponentsWithStats(unlike.astype(np.uint8))
    if count < 2:
        return None
    areas = stats[1:, cv2.CC_STAT_AREA]
    kept = 1 + np.flatnonzero(areas >= areas.max() / 4)
    part = np.isin(numbers, kept)
    # Spurs of single places are noise, or a trace that leads to the part.
    columns, rows = (np.flatnonzero(count > _SPUR * count.max()) for count in (part.sum(axis=0), part.sum(axis=1)))
    across, down = width / unlike.shape[1], height / unlike.shape[0]
    return Rectangle(
        round(int(columns[0]) * across),
        round(int(rows[0]) * down),
        round((int(columns[-1]) + 1) * across),
        round((int(rows[-1]) + 1) * down),
    )


def _shown(image: Image) -> Rectangle | None:
    """Return where an input (3, S, S) shows the picture: the rows and columns that are not of one colour."""
    varied = (image != image[:, :, :1]).any(axis=0) | (image != image[:, :1, :]).any(axis=0)
    rows, columns = (np.flatnonzero(varied.any(axis=axis)) for axis in (1, 0))
    if not len(rows) or not len(columns):
        return None
    return Rectangle(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
