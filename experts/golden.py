"""The kind `golden`: a small network judges each place where a picture differs from its golden reference.

Preprocessing finds the places and puts a crop of each into a mosaic, which is the network's input: an expert with an
input of 768 pixels judges up to 64 crops of 96 pixels for each picture, and a batch is a batch of mosaics. So the
runtime needs to know nothing of crops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from coe.core import Expert
from coe.errors import ConfigError
from coe.store.kinds import Image, Progress, Reference, Trained, TrainingPlan
from experts.golden_network import PEAKS, GoldenNetwork, peaks
from experts.pair import Compared, PairInput, PairKind, compared, differences, in_picture, limits_for
from experts.proposals import CELL, REACH, Region, covering, crops, regions

UNUSED = 255
"""All three values of a pixel in a cell without a crop; no crop has them, because white equals white by 0, not 255."""


class GoldenKind(PairKind):
    """Defects where a picture differs from its reference, each with a label and a box.

    `threshold` is the least score of a box, `most` the number of boxes kept. A defect often differs at several places,
    each with a box: of boxes of one label that overlap by more than `overlap` (IoU) the best stays. Boxes of two labels
    that overlap by more than `across` are one defect, too, but neighbours often overlap by less; a box with a label to
    reject gives way to such boxes alone. A pixel differs if it is more than `levels` grey levels away.
    """

    name = "golden"
    max_batch = 8
    threshold, most = 0.25, 300
    overlap, across = 0.15, 0.5
    levels = 40

    def compare(self, image: Image, reference: Reference, expert: Expert) -> PairInput:
        """Align, find the places that differ, and put a crop of each into the mosaic, the largest places first."""
        pair = compared(image, reference)
        height, width = image.shape[:2]
        mosaic = np.full((3, expert.input_size, expert.input_size), UNUSED, np.uint8)
        if pair.stack is None or pair.alignment is None:
            return PairInput(mosaic, height, width, doubt=pair.doubt)
        judged = self._filled(mosaic, pair, pair.stack, (height, width), cells(expert))
        return replace(judged, unlike=self.unlike(pair, reference, expert))

    def unlike(self, pair: Compared, reference: Reference, expert: Expert) -> str:
        """Say also that a picture differs more than good parts do: what the network takes for none may be a defect."""
        own = limits_for(expert, reference)
        if (why := super().unlike(pair, reference, expert)) or own is None or pair.stack is None:
            return why
        if (largest := self.largest(pair.stack, expert)) > max(own.largest, self.levels):
            return f"it differs by {largest:.0f} of 255 grey levels, good parts by at most {own.largest:.0f}"
        return ""

    def _filled(self, mosaic: Image, pair: Compared, stack: Image, size: tuple[int, int], room: int) -> PairInput:
        assert pair.alignment is not None
        found = covering(regions(differences(stack) > self.levels))
        doubt = ""
        if len(found) > room:
            doubt = f"it differs from its reference at {len(found)} places, but only {room} of them could be judged"
        judged = tuple(found[:room])
        columns = mosaic.shape[2] // CELL
        for place, crop in enumerate(crops(stack, judged)):
            top, left = (CELL * index for index in divmod(place, columns))
            mosaic[:, top : top + CELL, left : left + CELL] = crop.transpose(2, 0, 1)
        return PairInput(mosaic, *size, to_picture=pair.alignment.to_picture, regions=judged, doubt=doubt)

    def skeleton(self, expert: Expert) -> torch.nn.Module:
        """Build the network; raises ConfigError if the expert's input has no room for a crop."""
        if not cells(expert):
            raise ConfigError(
                f"expert '{expert.id}': an input of {expert.input_size} pixels holds no crop of {CELL}; give a "
                f"multiple of it, such as {10 * CELL} for 100 crops"
            )
        return GoldenNetwork(len(expert.labels)).eval()

    def forward(self, module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Return (n, crops, PEAKS, labels + 4): the scores of each place that may be a defect, and a box as shares."""
        number, side = len(images), images.shape[3] // CELL
        tiles = images[:, :, : side * CELL, : side * CELL].reshape(number, 3, side, CELL, side, CELL)
        tiles = tiles.permute(0, 2, 4, 1, 3, 5).reshape(number * side * side, 3, CELL, CELL)
        if images.device.type != "cpu":  # a graph computes the same for every batch
            return _judged(module, tiles).unflatten(0, (number, side * side))
        used = (tiles[:, :, 0, 0] != UNUSED).any(dim=1)
        judged = _judged(module, tiles[used] if bool(used.any()) else tiles[:1])
        outputs = judged.new_zeros(len(tiles), *judged.shape[1:])
        if bool(used.any()):
            outputs[used] = judged
        return outputs.unflatten(0, (number, side * side))

    def candidates(self, output: torch.Tensor, pair: PairInput, expert: Expert) -> torch.Tensor:
        """Return the boxes and the scores of what the crops show, each defect once."""
        judged = output[: len(pair.regions)].float().cpu()
        shown, places = (judged[..., :-4].amax(dim=2) > 0).nonzero(as_tuple=True)
        rows, corners = judged[shown, places], torch.zeros(0, 4)
        if len(rows) and pair.to_picture is not None:
            boxes = _corners(rows[:, -4:], [pair.regions[place] for place in shown.tolist()])
            corners = torch.from_numpy(in_picture(boxes.numpy().astype(np.float64), pair.to_picture)).float()
        return self._alone(torch.cat((corners, rows[:, :-4]), dim=1), expert)

    def _alone(self, candidates: torch.Tensor, expert: Expert) -> torch.Tensor:
        """Return the candidates (n, 4 + labels), the best first, without those that overlap a better one that stays.

        One pass for both limits: a candidate that gives way to one of its label must not hide one of another.
        """
        from torchvision.ops import box_iou

        best, labels = candidates[:, 4:].max(dim=1)
        ranked = best.argsort(descending=True, stable=True)
        candidates, labels = candidates[ranked], labels[ranked]
        against = torch.tensor([label in expert.reject for label in expert.labels])[labels]
        shared = box_iou(candidates[:, :4], candidates[:, :4])
        of_label = (shared > self.overlap) & (labels[:, None] == labels)
        hides = (of_label | ((shared > self.across) & (against[:, None] == against))).numpy()
        stays = np.ones(len(candidates), bool)
        for place in range(len(candidates)):
            if stays[place]:
                stays[place + 1 :] &= ~hides[place, place + 1 :]
        return candidates[torch.from_numpy(stays)]

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        from experts import golden_train

        return golden_train.train(self, expert, plan, progress)


def cells(expert: Expert) -> int:
    """Return how many crops a mosaic of an expert holds."""
    return int((expert.input_size // CELL) ** 2)


def _judged(module: torch.nn.Module, tiles: torch.Tensor) -> torch.Tensor:
    logits, boxes = module(tiles.to(next(module.parameters()).dtype).div(255.0))
    return peaks(logits, boxes, PEAKS, REACH)


def _corners(box: torch.Tensor, shown: Sequence[Region]) -> torch.Tensor:
    """Return x1, y1, x2, y2 in pixels of the reference's frame; a box of the network may not turn inside out."""
    middle = torch.tensor([region.centre for region in shown], dtype=torch.float32)
    pixels = box * torch.tensor([[float(region.context)] for region in shown])
    low, high = middle - pixels[:, :2], middle + pixels[:, 2:]
    return torch.cat((torch.minimum(low, high), torch.maximum(low, high)), dim=1)


golden = GoldenKind()
