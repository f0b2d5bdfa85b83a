"""Images of a report: each as a card, with its boxes, its reference, their difference and heat maps beside it."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coe.core import Box, Finding, Result, deciding
from coe.errors import CoeError
from coe.pictures.array_images import encoded
from coe.placement.board_view import BoardView
from coe.results.drawing import enlarged_pair, heated


@dataclass(frozen=True, slots=True)
class ReferencePicture:
    """The good part with which an image was compared: `image` (H, W, 3) and `spread` (H, W), uint8, None for 0.

    `name` says which it is, as "demo/U1, version 3"; `checksum` is that of the store, "" for a given reference.
    """

    image: NDArray[np.uint8]
    spread: NDArray[np.uint8] | None = None
    name: str = "given with the image"
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class PixelSource:
    """Where the pixels of an image come from, by its name in the results, and the reference that it was compared with.

    `image` returns (H, W, 3) uint8 RGB; `reference` returns None for an image without a reference. `board` returns a
    whole board by its serial, as the summary names it, or None. They are called for what the report shows, one at a
    time. If one raises, only that picture is missing.
    """

    image: Callable[[str], NDArray[np.uint8]]
    reference: Callable[[Result], ReferencePicture | None] = lambda result: None
    board: Callable[[str], BoardView | None] = lambda serial: None


@dataclass(frozen=True, slots=True)
class CropMark:
    """The outline of a crop in the picture of a board, as the points of a polygon, and the crop's outcome."""

    outcome: str
    place: str
    points: str


@dataclass(frozen=True, slots=True)
class BoxMark:
    """A box: pixels for its drawing, percents of the picture for its tag."""

    box: Box
    number: int
    decides: bool
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class EmbeddedPicture:
    """A picture as a data address, the size in pixels of the original, and what is drawn over it, the last on top.

    `title` and `note` stand under it, and `checksum` is shown where a reader points.
    """

    address: str
    width: int
    height: int
    marks: tuple[BoxMark, ...] | tuple[CropMark, ...] = ()
    title: str = ""
    note: str = ""
    checksum: str = ""

    @classmethod
    def of(cls, pixels: NDArray[np.uint8], side: int, **said: Any) -> EmbeddedPicture:
        """Embed pixels (H, W, 3) or (H, W) as a JPEG of up to `side` pixels a side."""
        picture = Image.fromarray(np.ascontiguousarray(pixels))
        picture.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
        data = encoded(picture, "JPEG", quality=82, optimize=True)
        address = "data:image/jpeg;base64," + base64.b64encode(data).decode()
        return cls(address, pixels.shape[1], pixels.shape[0], **said)


@dataclass(frozen=True, slots=True)
class Card:
    """An image of the gallery; `picture` is None if it can no longer be read.

    `beside` holds what stands beside it: its reference, and the difference of both, if its experts compared them; and
    the heat map of each expert that made one. `alike` further images of its board were not cut out for its reason.
    `lost` says why its reference is not shown, `said` what a person said of it.
    """

    result: Result
    picture: EmbeddedPicture | None
    boxes: tuple[Box, ...]
    beside: tuple[EmbeddedPicture, ...] = ()
    alike: int = 0
    lost: str = ""
    said: str = ""


def card(result: Result, source: PixelSource, side: int, said: str = "") -> Card:
    """Return an image for the gallery, with pictures of up to `side` pixels."""
    pairs = [(finding, box) for finding in deciding(result.findings) for box in finding.boxes]
    pairs.sort(key=lambda pair: (pair[1].label != pair[0].label, -pair[1].score))  # deciding boxes come first
    boxes = tuple(box for _, box in pairs)
    try:
        pixels = source.image(result.request.image)
        height, width = pixels.shape[:2]
        picture = EmbeddedPicture.of(pixels, side, marks=tuple(_marks(pairs, width, height)))
    except Exception:  # the caller's function failed: the report can do without a picture
        return Card(result, None, boxes, said=said)
    reference, lost = None, ""
    try:
        reference = source.reference(result)
    except CoeError as error:
        lost = f"The reference is not shown: {error}."
    except Exception:  # as for the image
        lost = "The reference can no longer be read."
    compared = () if reference is None else _beside(pixels, reference, side)
    return Card(result, picture, boxes, (*compared, *_heat_maps(result, pixels, side)), lost=lost, said=said)


def _beside(pixels: NDArray[np.uint8], reference: ReferencePicture, side: int) -> Iterator[EmbeddedPicture]:
    """Yield the reference of an image, and the difference of both, as the experts see it, if they can be compared."""
    from coe.comparing.comparison import compare

    checksum = reference.checksum
    yield EmbeddedPicture.of(reference.image, side, title="Reference", note=reference.name, checksum=checksum)
    try:
        difference = compare(pixels, reference.image, reference.spread).difference
    except Exception:  # a report of hours of work can do without the difference
        return
    if difference is not None:
        yield EmbeddedPicture.of(difference, side, title="Difference", note="brighter is more")


def _heat_maps(result: Result, pixels: NDArray[np.uint8], side: int) -> Iterator[EmbeddedPicture]:
    """Yield the heat map of each deciding finding over the image in grey: the redder, the higher its score there."""
    # After it come what deviates most, and what is most like it in good parts, if the kind tells.
    for finding in deciding(result.findings):
        if finding.heat is not None:
            yield EmbeddedPicture.of(heated(pixels, finding.heat), side, title="Heat map")
        if (likeness := finding.likeness) is not None:
            here, good = enlarged_pair(pixels, likeness)
            yield EmbeddedPicture.of(here, side, title="Most unlike", note="cut out of the image")
            yield EmbeddedPicture.of(good, side, title="Nearest good", note="the most like it of all good parts")


def _marks(pairs: Iterable[tuple[Finding, Box]], width: int, height: int) -> Iterator[BoxMark]:
    for number, (finding, box) in enumerate(pairs, 1):
        if not all(map(math.isfinite, box.xyxy)):
            continue
        x0, x1 = (min(max(x, 0.0), width) for x in (box.xyxy[0], box.xyxy[2]))
        y0, y1 = (min(max(y, 0.0), height) for y in (box.xyxy[1], box.xyxy[3]))
        if x1 < x0 or y1 < y0:
            continue
        drawn = Box(box.label, box.score, (round(x0, 2), round(y0, 2), round(x1, 2), round(y1, 2)))
        percents = (100 * x0 / width, 100 * y0 / height, 100 * x1 / width, 100 * y1 / height)
        left, top, right, bottom = (round(percent, 2) for percent in percents)
        yield BoxMark(drawn, number, box.label == finding.label, left, top, right, bottom)
