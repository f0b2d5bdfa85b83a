"""What a classifier keeps beside its head: how its good parts look, which pictures look bad among them, and its exam.

A good label alone is no OK: the picture must lie near a good part as well, by its patches and as a whole, as kind
`patch` measures it without a reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from coe.board.photo_labels import Answers
from coe.core import Expert, Shown
from coe.errors import TooFewPictures
from coe.pictures.photographs import Purpose
from coe.store.exam import Exam, ExamItem
from coe.store.kinds import TrainingPlan
from coe.store.manifest import IN_DOUBT
from experts import exam, patch_train, series
from experts.backbone import Seeing
from experts.labelled_folder import LabelledImages
from experts.logistic import Chosen, Numbers, Places
from experts.patch_deviations import LeftOut, Parts
from experts.patch_network import CELL, PatchNetwork
from experts.patch_train import LearnedLook, see
from experts.probe_network import LEAST, MOST, ROWS
from experts.taken import TakenPictures

TURNS = 8
"""In how many turns, 45 degrees apart, each picture is learned if parts lie turned."""
_UNLIKE = 0.01
"""The share of good parts that may be in doubt because they look unlike all others."""
BATCH = 16
LEAST_INPUT = 32
_LOOKED_AT = 256
"""So many good pictures, and as many bad ones, tell which good ones look bad."""
_NONE = "it measures no distance to good parts, so an untaught defect may be OK"


@dataclass(frozen=True, slots=True)
class Rows:
    """What is learned from: images (n, 3, S, S) uint8, and what the network sees of them.

    `seen` are patches (n, G, G, channels) in halves of floats, `whole` (n, d) are pooled features. Names and label
    numbers are (n,).

    Pictures of one number in `groups` (n,) are one: copies, turns, or a series of one part. `good` tells which show
    good parts, `bad` which speak against one.
    """

    images: torch.Tensor
    names: list[str]
    labels: Places
    groups: Places
    good: Chosen
    seen: torch.Tensor
    whole: Numbers

    @property
    def bad(self) -> Chosen:
        return ~self.good

    def of(self, kept: Chosen) -> Rows:
        """Return some of the rows."""
        names = [name for name, is_kept in zip(self.names, kept, strict=True) if is_kept]
        rows = torch.from_numpy(kept)
        labels, groups, good = (one[kept] for one in (self.labels, self.groups, self.good))
        return Rows(self.images[rows], names, labels, groups, good, self.seen[rows], self.whole[kept])


@dataclass(frozen=True, slots=True)
class Pictures(LabelledImages):
    """Images and labels with their names and numbers (n,), which are the same for identical ones."""

    names: list[str]
    numbers: Places

    @classmethod
    def of_data(cls, learning: LabelledImages, taken: TakenPictures, *parts: Purpose) -> Pictures:
        """Return the pictures of some parts of the data, whose images and labels are `learning`."""
        pictures = [picture for part in parts for picture in taken.pictures if picture.part is part]
        known: dict[int, int] = {}
        numbers = [known.setdefault(one.digests.pixels, len(known)) for one in pictures]
        names = [taken.name(one.path) for one in pictures]
        return cls(learning.images, learning.labels, names, np.array(numbers, np.intp))

    def of(self, places: Sequence[int]) -> Pictures:
        """Return some of the pictures."""
        names = [self.names[place] for place in places]
        return Pictures(self.images[places], self.labels[places], names, self.numbers[places])


def are_good(expert: Expert, labels: Places) -> Chosen:
    """Tell which of some label numbers (n,) speak for a part.

    If none does, all do: what is unlike all of them is in doubt.
    """
    good = np.isin(labels, [expert.labels.index(one) for one in Answers.of_labels(expert).good])
    return good if good.any() else np.ones(len(labels), np.bool_)


def rows_of(kind: Seeing, module: torch.nn.Module, expert: Expert, pictures: Pictures, turns: int) -> Rows:
    """Return what a network sees of pictures in so many turns."""
    images = turned(pictures.images, turns)
    found = [see(kind, module, batch) for batch in images.split(BATCH)]
    seen = torch.cat([patches.half() for patches, _ in found])
    whole = torch.cat([pooled for _, pooled in found]).double().numpy()
    labels, groups = (np.tile(one, turns) for one in (pictures.labels.numpy(), pictures.numbers))
    groups = _of_parts(whole, pictures.labels.numpy(), groups)
    return Rows(images, pictures.names * turns, labels, groups, are_good(expert, labels), seen, whole)


def suspects(rows: Rows) -> tuple[tuple[str, ...], list[str]]:
    """Return the names of good pictures that look bad, which are to be left out, and remarks."""
    if not rows.bad.any():
        return (), []
    names = list(dict.fromkeys(rows.names))  # the first turn of each picture
    first, good = rows.whole[: len(names)], rows.good[: len(names)]
    of_good = [names[place] for place in np.flatnonzero(good)]
    odd, remarks = patch_train.suspect(of_good, first[good], first[~good])
    return tuple(of_good[place] for place in odd), remarks


def learned_parts(network: PatchNetwork, rows: Rows, least: int) -> LearnedLook:
    """Learn what good parts look like, and write it into a network; raises TooFewPictures for fewer than `least`."""
    places = exam.evenly(list(np.flatnonzero(rows.good)), patch_train.MOST)
    numbers = rows.groups[places]
    if (different := len(np.unique(numbers))) < least:
        raise TooFewPictures(f"{different} different good parts are too few (copies count once); give {least}")
    names, whole = [rows.names[place] for place in places], torch.from_numpy(rows.whole[places])
    parts = Parts(names, rows.images[places], rows.seen[places].float(), whole, torch.from_numpy(numbers), None)
    judge = LeftOut(parts, ROWS)
    return patch_train.learned_look(network, parts, judge, patch_train.WANTED, _UNLIKE)


def examined(
    kind: Seeing,
    module: torch.nn.Module,
    look: LearnedLook,
    says_good: Callable[[torch.Tensor, Numbers, Places], Chosen],
    *,
    shows_turned: bool,
) -> tuple[LearnedLook, list[ExamItem]]:
    """Return how good parts look, the nearness tightened if too many missing parts pass, and the rows of the exam.

    `says_good` tells of which images (m, 3, S, S) the head says that they are good, given how far each looks off by its
    patches (m,) and the number (m,) of the part that it is made of.
    """
    numbers = look.parts.numbers.numpy()

    def called(sheet: exam.Sheet, seen: torch.Tensor, whole: torch.Tensor) -> Chosen:
        own = numbers[sheet.made_of]
        beyond = look.deviations_of(seen, own)
        features = np.column_stack((whole.double().numpy(), beyond.clip(LEAST, MOST)))
        return np.asarray(~says_good(sheet.images, features, own) | (beyond > look.limit))

    made = exam.sheets(look.parts.images, alike=shows_turned)
    asked = [sheet for sheet in made if shows_turned or sheet.item is not Shown.TURNED]
    return patch_train.examined(kind, module, look, asked, called)


def in_doubt(look: LearnedLook) -> float:
    """Return the share of the good pictures that do not lie near the others."""
    return float((look.called | look.in_doubt).mean())


def exam_of(items: list[ExamItem] | None, left_out: tuple[str, ...]) -> Exam | None:
    """Return an exam of these rows, None for one that was not taken; None if there is nothing to say."""
    if items is None:
        return Exam(left_out=left_out) if left_out else None
    return Exam.of(items, left_out)


def turned(images: torch.Tensor, turns: int) -> torch.Tensor:
    """Return images (n, 3, S, S) uint8 in so many turns, (turns * n, 3, S, S): first as they are."""
    result = [images]
    for turn in range(1, turns):
        angle = 2 * math.pi * turn / turns
        rotation = torch.tensor([[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]])
        grid = functional.affine_grid(rotation.expand(len(images), 2, 3), list(images.shape), align_corners=False)
        moved = functional.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
        result.append(moved.round().clamp(0, 255).to(torch.uint8))
    return torch.cat(result)


def _of_parts(features: Numbers, labels: Places, groups: Places) -> Places:
    """Return the numbers of pictures and their turns (m,), the same for a series of a label; `labels` are (n,)."""
    joined = groups.copy()
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        if (parts := series.parts_of(series.looks_of(features[places]))) is not None:
            for part in np.unique(parts):
                own = joined[places[parts == part]]
                joined[np.isin(joined, own)] = own.min()
    return joined


@torch.no_grad()
def unsuspected(
    kind: Seeing, module: torch.nn.Module, expert: Expert, pictures: Pictures
) -> tuple[Pictures, tuple[str, ...], list[str]]:
    """Return the pictures without good ones that look bad to a pretrained network, the names of these, and remarks."""
    left_out, remarks = suspects(_sample(kind, module, expert, pictures, (_LOOKED_AT, _LOOKED_AT), 1))
    suspect = np.isin(pictures.names, left_out) & are_good(expert, pictures.labels.numpy())
    return pictures.of(np.flatnonzero(~suspect).tolist()), left_out, remarks


@torch.no_grad()
def add_parts(
    kind: Seeing, module: torch.nn.Module, parts: PatchNetwork, expert: Expert, plan: TrainingPlan, pictures: Pictures
) -> tuple[dict[str, float], list[ExamItem] | None, list[str]]:
    """Learn how good parts look to a trained network, and make `parts`, which say it, its `optional` part.

    Return measures, the rows of the exam, None if it took none, and remarks. Where it cannot be learned, the network
    stays without.
    """
    if expert.input_size < LEAST_INPUT or expert.input_size % CELL:
        why = f"its input of {expert.input_size} pixels is not a multiple of {CELL}, at least {LEAST_INPUT}"
        return {}, None, [f"{_NONE}: {why}"]
    turns = TURNS if plan.turned else 1
    rows = _sample(kind, module, expert, pictures, (patch_train.MOST // turns, 0), turns)
    try:
        look = learned_parts(parts, rows, patch_train.FEW)
    except TooFewPictures as error:
        return {}, None, [f"{_NONE}: {error}"]
    labels, items = pictures.labels.numpy(), None
    good = are_good(expert, labels)

    def says_good(images: torch.Tensor, _: Numbers, __: Places) -> Chosen:
        logits = torch.cat([kind.forward(module, batch) for batch in images.split(BATCH)])
        return np.isin(logits.argmax(dim=1).numpy(), labels[good])

    if not good.all():
        look, items = examined(kind, module, look, says_good, shows_turned=turns == 1)
        parts.near.fill(look.nearness)
    module.optional = parts
    return {IN_DOUBT: in_doubt(look)}, items, []


def _sample(
    kind: Seeing, module: torch.nn.Module, expert: Expert, pictures: Pictures, most: tuple[int, int], turns: int
) -> Rows:
    """Return what a network sees of at most so many good and bad pictures, taken evenly."""
    good = are_good(expert, pictures.labels.numpy())
    places = [np.flatnonzero(which).tolist() for which in (good, ~good)]
    some = [place for own, count in zip(places, most, strict=True) for place in exam.evenly(own, count)]
    return rows_of(kind, module, expert, pictures.of(some), turns)
