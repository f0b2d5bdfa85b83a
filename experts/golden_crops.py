"""What the kind `golden` learns from: crops of pairs, cut wider than the network sees, and varied at each step.

Each step sees the crops shifted, mirrored and turned, some of them with their reference a little displaced, thicker or
thinner, also at one side alone, as after an alignment or an etching that is not perfect. Aligned pictures have few
places without a defect, so more are cut where a picture differs from its displaced reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from coe.comparing.motion import Numbers
from coe.core import Expert
from coe.pictures.photographs import Purpose
from coe.store.kinds import Image, TrainingPlan
from experts import pair_data, pair_limits
from experts.pair import PairKind, differences
from experts.pair_data import LabelledPair, PairFiles
from experts.pair_limits import GoodPart
from experts.proposals import CELL, REACH, Region, covering, crops, regions
from experts.taken import TakenPictures, TrainingPicture

_Parts = tuple[NDArray[np.uint8], list[Numbers], list[Numbers]]
"""Crops (n, side, side, 3), and for each the labels (m,) and boxes (m, 4) of the defects in it."""

MARGIN = 24
"""By how many pixels, in each direction, a kept crop is wider than what the network sees."""
NONE = -1
"""The label of a row without a defect."""
_SHIFT = 16
_DISPLACED, _FAR = 3, 8
"""The most pixels by which the reference of a crop is displaced: mostly, and seldom."""
_THICKER = 2
"""The most pixels by which a border in the reference is moved: traces are etched more or less."""
_VARIED_SHARE = 0.35
"""The share of the crops whose reference is displaced, thicker or thinner."""
_MOST_DISPLACED = 8
"""How many places of a picture that differ only from its displaced reference are cut."""
_MOST = 12
"""How many defects of a crop are kept."""
_GROUP = 4
"""So many crops of a batch are shifted and turned together."""


@dataclass(frozen=True, slots=True)
class Crops:
    """Crops (n, 3, CELL + 2 MARGIN, ...) uint8, and the defects in them.

    `labels` is (n, _MOST), NONE in rows without a defect; `boxes` (n, _MOST, 4) are x1, y1, x2, y2 as shares of CELL,
    from the top left of what the network sees without a shift.
    """

    images: torch.Tensor
    labels: torch.Tensor
    boxes: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class CutPairs:
    """The crops of pairs, how far each lies from its reference beside its boxes, and a sentence for each left out."""

    crops: Crops
    parts: list[GoodPart]
    remarks: list[str]


def cut(
    kind: PairKind, expert: Expert, pairs: Sequence[PairFiles], plan: TrainingPlan, taken: TakenPictures, part: Purpose
) -> CutPairs:
    """Cut the crops of pairs as a line would find them, and of a training part those that differ when displaced.

    Pairs that are not left out are noted as `taken`.
    """
    chance, remarks, parts = np.random.default_rng(plan.seed), list[str](), list[GoodPart]()

    def fitting() -> Iterator[LabelledPair]:
        for pair in pair_data.labelled(pairs, len(expert.labels), plan, remarks):
            taken.pictures.append(TrainingPicture(pair.path, "", part, pair.digests))
            parts.append(pair_limits.of_pair(kind, expert, pair))
            yield pair

    crops = crops_of(fitting(), kind.levels, chance if part is Purpose.LEARN else None)
    return CutPairs(crops, parts, remarks)


def crops_of(pairs: Iterable[LabelledPair], levels: int, chance: np.random.Generator | None) -> Crops:
    """Cut the crops of labelled pairs; with `chance` also of places that differ from a displaced reference."""
    parts = []
    for pair in pairs:
        parts.append(_cut(pair.stack, pair, covering(regions(differences(pair.stack) > levels))))
        if chance is not None:
            parts.append(_displaced(levels, pair, chance))
    images = np.concatenate([part[0] for part in parts])
    count = len(images)
    labels, boxes = np.full((count, _MOST), NONE, np.int64), np.zeros((count, _MOST, 4), np.float32)
    rows = [(some, where) for part in parts for some, where in zip(part[1], part[2], strict=True)]
    for place, (some, where) in enumerate(rows):
        labels[place, : len(some)] = some[:_MOST]
        boxes[place, : len(some)] = where[:_MOST]
    return Crops(torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels), torch.from_numpy(boxes))


def _displaced(levels: int, pair: LabelledPair, chance: np.random.Generator) -> _Parts:
    """Cut places without a defect that differ from the displaced reference."""
    reach = _DISPLACED if chance.integers(2) else _FAR
    right, down = chance.integers(-reach, reach + 1, 2)
    reference = np.roll(pair.stack[:, :, 1], (down, right), axis=(0, 1))
    # With the displacement, traces are often thicker or thinner at one side alone.
    grown = np.ones(chance.integers(1, 2 * _THICKER + 2, 2), np.uint8)
    reference = cv2.dilate(reference, grown) if chance.integers(2) else cv2.erode(reference, grown)
    picture = np.ascontiguousarray(pair.stack[:, :, 0])
    stack = np.asarray(cv2.merge([picture, reference, cv2.absdiff(picture, reference)]), np.uint8)
    found = covering(regions(differences(stack) > levels))
    good = [region for region in found if not _touches(pair, region)]
    chosen = chance.permutation(len(good))[:_MOST_DISPLACED]
    return _cut(stack, pair, [good[place] for place in chosen])


def _touches(pair: LabelledPair, region: Region) -> bool:
    """Tell whether a region lies in one of the boxes of a pair."""
    low = np.maximum(pair.boxes[:, :2], region.xyxy[:2])
    high = np.minimum(pair.boxes[:, 2:], region.xyxy[2:])
    return bool((high > low).all(axis=1).any())


def _cut(stack: Image, pair: LabelledPair, found: Sequence[Region]) -> _Parts:
    labels, boxes = [], []
    for region in found:
        x, y = region.centre
        corner = np.array([x, y, x, y]) - region.context / 2
        shares = (pair.boxes - corner) / region.context
        middle = (shares[:, :2] + shares[:, 2:]) / 2
        inside = (np.abs(middle - 0.5) <= 0.5 + MARGIN / CELL).all(axis=1)
        labels.append(pair.labels[inside])
        boxes.append(shares[inside])
    return crops(stack, found, MARGIN), labels, boxes


def shows_defect(data: Crops) -> torch.Tensor:
    """Tell for each crop whether the middle of a defect lies near enough to its own."""
    middle = (data.boxes[..., :2] + data.boxes[..., 2:]) / 2
    return (((middle - 0.5).abs().amax(dim=2) <= REACH / CELL) & (data.labels != NONE)).any(dim=1)


def varied(
    data: Crops, places: torch.Tensor, inverse: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return crops (n, 3, CELL, CELL) float in 0..1, labels and boxes, shifted, mirrored and turned at random.

    With `inverse`, which holds the label of each defect in the negative, half of them are negatives.
    """
    images, labels, boxes = [], [], []
    for group in places.split(_GROUP):
        right, down = (int(value) for value in torch.randint(-_SHIFT, _SHIFT + 1, (2,)))
        top, left = MARGIN + down, MARGIN + right
        wide = data.images[group]
        crop = wide[:, :, top : top + CELL, left : left + CELL]
        if float(torch.rand(())) < _VARIED_SHARE:
            crop = _displaced_crop(wide, top, left)
        box = data.boxes[group] - torch.tensor([right, down, right, down]) / CELL
        mirror, upend, turn = (bool(value) for value in torch.randint(2, (3,)))
        if mirror:
            crop, box = crop.flip(3), (1 - box)[..., [2, 1, 0, 3]].where(torch.tensor([True, False, True, False]), box)
        if upend:
            crop, box = crop.flip(2), (1 - box)[..., [0, 3, 2, 1]].where(torch.tensor([False, True, False, True]), box)
        if turn:
            crop, box = crop.transpose(2, 3), box[..., [1, 0, 3, 2]]
        label = data.labels[group]
        if inverse is not None and int(torch.randint(2, ())):
            crop, label = torch.cat((255 - crop[:, :2], crop[:, 2:]), dim=1), inverse[label]
        images.append(crop)
        labels.append(label)
        boxes.append(box)
    whole = torch.cat(images).float().div_(255).contiguous(memory_format=torch.channels_last)
    return whole, torch.cat(labels), torch.cat(boxes)


def _displaced_crop(wide: torch.Tensor, top: int, left: int) -> torch.Tensor:
    """Return the crops at a place of wide crops, with their references displaced, and thicker or thinner."""
    reach = _FAR if not int(torch.randint(5, ())) else int(torch.randint(_DISPLACED + 1, ()))
    down, right = (int(value) for value in torch.randint(-reach, reach + 1, (2,)))
    picture = wide[:, 0, top : top + CELL, left : left + CELL]
    reference = wide[:, 1, top + down : top + down + CELL, left + right : left + right + CELL]
    thicker = int(torch.randint(-1, 2, ()))
    if thicker:
        # The sides are drawn one by one: a trace may be thinner at one side alone.
        before_x, after_x, before_y, after_y = (int(value) for value in torch.randint(_THICKER + 1, (4,)))
        padded = functional.pad(thicker * reference.float(), (before_x, after_x, before_y, after_y), mode="replicate")
        grown = functional.max_pool2d(padded, (before_y + after_y + 1, before_x + after_x + 1), stride=1)
        reference = (thicker * grown).to(torch.uint8)
    difference = torch.maximum(picture, reference) - torch.minimum(picture, reference)
    return torch.stack((picture, reference, difference), dim=1)
