"""What the kinds with a reference share: a picture and its reference in one frame, and how much they differ."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
import torch

from coe.comparing.alignment import Alignment
from coe.comparing.comparison import Comparison, compare
from coe.comparing.motion import Numbers
from coe.core import Expert, Finding, GoodLimits, Heat, Shown
from coe.store import outputs as network_outputs
from coe.store.kinds import Comparing, ExpertInput, Image, ModuleKind, Reference
from experts.findings import Cut, Floats, detected, of_corners
from experts.fitting_state import fitted
from experts.geometry import Colour, back, letterbox
from experts.proposals import OPENING, Grey, Region, stacked

_SQUARE = 12
"""The side in pixels of the squares in which a stand-in reference differs."""


@dataclass(frozen=True, slots=True)
class PairInput(ExpertInput):
    """A picture and its reference, ready for one expert.

    `to_picture` (2, 3) maps points (x, y, 1) of the reference's frame to the picture, and `regions` are the regions of
    that frame that are shown in crops. `place` is that of the reference among its alternates, -1 without a reference.
    `doubt` says why the picture could not be compared, or not wholly; it is empty otherwise. `unlike` says why it may
    be none of a good part although it shows no defect.
    """

    to_picture: Numbers | None = None
    regions: tuple[Region, ...] = ()
    place: int = 0
    doubt: str = ""
    unlike: str = ""


@dataclass(frozen=True, slots=True)
class Compared:
    """A picture in the frame of its reference: `stack` (H, W, 3) holds both in grey, and their difference.

    Without an alignment there is no stack, and `doubt` says why.
    """

    stack: Image | None
    alignment: Alignment | None
    doubt: str = ""


class PairKind(ModuleKind, Comparing):
    """The base class of the kinds with a reference: boxes of what a picture shows and its reference does not.

    `threshold` is the score from which a box counts, `most` the number of boxes kept.
    """

    task = "detect"
    threshold: float
    most: int

    def preprocess(self, image: Image, expert: Expert) -> ExpertInput:
        """Prepare an image against a stand-in for its reference, for measurements."""
        return self.compare(image, stand_in(image), expert)

    @abstractmethod
    def candidates(self, output: torch.Tensor, pair: PairInput, expert: Expert) -> torch.Tensor:
        """Return (n, 4 + labels) float32: x1, y1, x2, y2 in pixels of the picture, and a score for each label.

        `output` is that of one picture. All whose score counts are kept, however much they overlap.
        """

    def must_not_pass(self, image: Image) -> Iterable[tuple[Shown, Image]]:
        from experts import exam  # it imports the trainers

        return exam.made_of(image, exam.part_of(image))

    def largest(self, stack: Image, expert: Expert) -> float:
        """Return the largest difference of a stack (H, W, 3), in grey levels, that lasts as the expert would see it."""
        mean = cv2.blur(differences(stack), (3, 3))
        return float(cv2.morphologyEx(mean, cv2.MORPH_OPEN, OPENING).max())

    def unlike(self, pair: Compared, reference: Reference, expert: Expert) -> str:
        """Say why a picture may be none of a good part although it shows no defect; "" if nothing says so."""
        if pair.stack is None or pair.alignment is None or not expert.limits:
            return ""
        own, fit = limits_for(expert, reference), pair.alignment.fit
        if own is None or not own.pictures:
            return "it is unknown how good parts differ from its reference; train its expert with two or more"
        if 1 - fit > own.misfit:
            return (
                f"it is unlike every good part: its correlation with the reference is {fit:.3f}, that of "
                f"good parts at least {1 - own.misfit:.3f}"
            )
        return ""

    def postprocess(self, outputs: torch.Tensor, prepared: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
        """Turn outputs into boxes in pixels of the pictures, with the doubt of each picture.

        Raises StoreError for outputs that are not finite numbers.
        """
        network_outputs.prove(outputs)
        findings, cut = [], Cut(self.threshold, overlap=1.0, most=self.most)
        for output, pair in zip(outputs, prepared, strict=True):
            assert isinstance(pair, PairInput)
            candidates = self.candidates(output, pair, expert)
            (finding,) = detected(of_corners(candidates), [pair], expert, cut)
            doubt = pair.doubt or pair.unlike  # with a box as well: the rules may ignore the box
            findings.append(replace(finding, doubt=doubt) if doubt else finding)
        return findings

    convert = fitted


def compared(image: Image, reference: Reference) -> Compared:
    """Align a picture (h, w, 3) with its reference, uint8 RGB, and compare them; see `coe.comparing.comparison`."""
    comparison = compare(image, reference.image, reference.spread)
    if comparison.difference is None:
        return Compared(None, comparison.alignment, comparison.doubt)
    return Compared(stacked_of(comparison), comparison.alignment)


def stacked_of(comparison: Comparison) -> Image:
    """Return the stack (H, W, 3) of a picture that could be compared."""
    alignment, wanted, difference = comparison.alignment, comparison.reference, comparison.difference
    assert alignment is not None
    assert wanted is not None
    assert difference is not None
    return stacked(alignment.image, wanted, difference)


def limits_for(expert: Expert, reference: Reference) -> GoodLimits | None:
    """Return the limits of a reference: its own, or those of pairs that teach all; None if it has none."""
    return expert.limits.get(reference.id, expert.limits.get(""))


def differences(stack: Image) -> Grey:
    """Return the difference (H, W) of a stack."""
    return stack[:, :, 2]


def letterboxed(image: Image, pair: Compared, shown: Image | None, padding: Colour, expert: Expert) -> PairInput:
    """Return what `shown` (H, W, 3) shows in the reference's frame, scaled to fit an expert's input."""
    height, width = image.shape[:2]
    if pair.stack is None or pair.alignment is None or shown is None:
        nothing = np.zeros((3, expert.input_size, expert.input_size), np.uint8)
        return PairInput(nothing, height, width, doubt=pair.doubt)
    fitting = letterbox(shown, expert.input_size, padding)
    # From the input to the reference's frame, and on to the picture.
    to_picture = pair.alignment.to_picture @ np.vstack((back(fitting), (0.0, 0.0, 1.0)))
    return PairInput(fitting.pixels, height, width, to_picture=to_picture)


def stand_in(image: Image) -> Reference:
    """Return a reference for an image that has none, to measure an expert with: a copy with inverted squares."""
    copy = image.copy()
    height, width = image.shape[:2]
    for top in range(_SQUARE, height - _SQUARE, 8 * _SQUARE):
        for left in range(_SQUARE, width - _SQUARE, 8 * _SQUARE):
            square = copy[top : top + _SQUARE, left : left + _SQUARE]
            square[:] = 255 - square
    return Reference(copy, np.zeros((height, width), np.uint8))


def in_picture(corners: Numbers, to_picture: Numbers) -> Numbers:
    """Map boxes (n, 4), x1, y1, x2, y2 in the reference's frame, to the upright boxes around them in the picture."""
    x1, y1, x2, y2 = corners.T
    points = np.stack([(x1, y1), (x2, y1), (x1, y2), (x2, y2)])  # (4, 2, n)
    moved = np.einsum("ij,kjn->kin", to_picture[:, :2], points) + to_picture[:, 2][None, :, None]
    low, high = moved.min(axis=0), moved.max(axis=0)
    return np.concatenate((low, high)).T


def heat_of(scores: Floats, pair: ExpertInput, to_picture: Numbers, size: int) -> Heat:
    """Return scores (G, G) of an input of `size` pixels as a map of the whole picture."""
    grid = len(scores)
    cell, to_cells = size / grid, np.diag([grid / pair.width, grid / pair.height, 1.0])
    # The middle of the first place is at half a cell, in the input and in the picture.
    from_places = np.array([[cell, 0.0, cell / 2], [0.0, cell, cell / 2], [0.0, 0.0, 1.0]])
    motion = (to_cells @ np.vstack((to_picture, (0.0, 0.0, 1.0))) @ from_places)[:2] - [[0, 0, 0.5], [0, 0, 0.5]]
    moved = cv2.warpAffine(scores, motion, (grid, grid), flags=cv2.INTER_LINEAR)
    return Heat(grid, grid, (moved * 255).round().astype(np.uint8).tobytes())
