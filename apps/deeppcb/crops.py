"""Random crops of DeepPCB pairs with maps of their defects, for the patch classifier."""

from __future__ import annotations

import random
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from apps.deeppcb.data import Defect, Pair
from apps.deeppcb.tiles import place

STRIDE = 16
"""Pixels of the input from one score of the patch network to the next."""
SIZE = 160
MARGIN = 10
"""Pixels around a defect in which scores do not count."""

Grey = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PairImages:
    """A pair in memory: two grey images (640, 640) and the defects of the first."""

    tested: Grey
    template: Grey
    defects: tuple[Defect, ...]
    group: str


def load(pairs: list[Pair]) -> list[PairImages]:
    """Decode the pairs; a pair takes 0.8 MB."""
    return [PairImages(_grey(pair.tested), _grey(pair.template), pair.defects, pair.group) for pair in pairs]


def _grey(path: object) -> Grey:
    image = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if image is None:
        raise FileNotFoundError(f"'{path}' is missing or not an image")
    return np.asarray(image, dtype=np.uint8)


class Crops:
    """Draws batches: half the crops are of tested images, half of templates; most lie around a defect."""

    def __init__(self, loaded: list[PairImages], seed: int) -> None:
        self.loaded = loaded
        self.all = [(pair, defect) for pair in loaded for defect in pair.defects]
        self.rng = random.Random(seed)

    def batch(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return crops (n, 1, S, S) uint8, targets and weights (n, 1, S / 16, S / 16) float; weight 0: ignored."""
        crops, targets, weights = [], [], []
        for index in range(count):
            pair, defect = self.rng.choice(self.all)
            height, width = pair.tested.shape
            left, top = place(defect, SIZE, (width, height), self.rng)
            if index % 4 == 3:
                left, top = self.rng.randint(0, width - SIZE), self.rng.randint(0, height - SIZE)
            bad = index % 2 == 0
            window = (slice(top, top + SIZE), slice(left, left + SIZE))
            crop = (pair.tested if bad else pair.template)[window]
            target, weight = marked(pair.defects if bad else (), left, top)
            turned = self._turned(crop, target, weight)
            for values, value in zip((crops, targets, weights), turned, strict=True):
                values.append(torch.from_numpy(np.ascontiguousarray(value))[None])
        return torch.stack(crops), torch.stack(targets), torch.stack(weights)

    def _turned(self, *maps: NDArray[np.generic]) -> list[NDArray[np.generic]]:
        turns, mirror = self.rng.randrange(4), self.rng.random() < 0.5
        return [np.rot90(values[:, ::-1] if mirror else values, turns) for values in maps]


def marked(
    defects: tuple[Defect, ...], left: int, top: int, size: int = SIZE
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the target (1: inside a defect) and weight (0: near a defect, or in a cut one) of each place of a crop."""
    count = size // STRIDE
    target, weight = np.zeros((count, count), np.float32), np.ones((count, count), np.float32)
    middles = np.arange(count) * STRIDE + STRIDE / 2
    for defect in defects:
        x1, y1, x2, y2 = (value - offset for value, offset in zip(defect.xyxy, (left, top, left, top), strict=True))
        reach = MARGIN + STRIDE / 2
        near = np.outer(
            (middles > y1 - reach) & (middles < y2 + reach), (middles > x1 - reach) & (middles < x2 + reach)
        )
        weight[near & (target == 0)] = 0
        row, column = int((y1 + y2) / 2 // STRIDE), int((x1 + x2) / 2 // STRIDE)
        inside = np.outer((middles > y1) & (middles < y2), (middles > x1) & (middles < x2))
        whole = x1 >= 0 and y1 >= 0 and x2 <= size and y2 <= size
        if whole:
            inside[row, column] = True
            target[inside] = 1
            weight[inside] = 1
    return target, weight
