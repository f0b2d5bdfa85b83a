"""Pictures of a made-up part, good and bad, moved as on a line, and a board that compares them with references."""

import cv2
import numpy as np
import torch

from experts.difference import DifferenceKind
from experts.golden import GoldenKind
from experts.patch import Patch

SIDE = 160
DEFECT = (70, 50, 86, 66)
"""x1, y1, x2, y2 of the hole in a bad part."""

BOARD = """
board: pairs
experts:
  first-day:
    kind: "golden_parts:FirstDay"
    labels: [different]
    input: 160
    reject: [different]
    then: {none: OK}
  golden: {kind: "golden_parts:GoldenPart", labels: [hole, blob], input: 192, reject: [hole, blob], then: {none: OK}}
components:
  U1: {inspect: first-day, reference: U1}
  U2: {inspect: golden, reference: given}
"""


class FirstDay(DifferenceKind):
    """The kind `difference` under a path, so that a test needs no installed entry point."""

    name = "golden_parts:FirstDay"


class GoldenPart(GoldenKind):
    name = "golden_parts:GoldenPart"


class PatchPart(Patch):
    name = "golden_parts:PatchPart"


def part(seed=0, side=SIDE):
    """Return a good part, (side, side, 3): bright traces on a dark ground, another layout for each seed."""
    chance = np.random.default_rng(seed)
    picture = np.full((side, side, 3), 60, np.uint8)
    for _ in range(14):
        x, y = (int(value) for value in chance.integers(0, side - 30, 2))
        width, height = (int(value) for value in chance.integers(8, 60, 2))
        picture[y : y + height, x : x + width] = (180, 150, 70)
    picture[40:80, 60:100] = (180, 150, 70)
    return np.asarray(cv2.GaussianBlur(picture, (3, 3), 0), np.uint8)


def second_look(picture):
    """Return the part as another supplier makes it: its middle is blue, and it has a white mark."""
    copy = picture.copy()
    copy[40:80, 60:100] = (60, 90, 170)
    copy[100:120, 40:110] = 235
    return np.asarray(cv2.GaussianBlur(copy, (3, 3), 0), np.uint8)


def half_second(picture):
    """Return a part of the first look with half the mark of the second: a defect, as neither supplier makes it."""
    copy = picture.copy()
    copy[100:120, 40:75] = 235
    return copy


def bad(picture):
    x1, y1, x2, y2 = DEFECT
    copy = picture.copy()
    copy[y1:y2, x1:x2] = (40, 40, 40)
    return copy


def moved(picture, right=0.0, down=0.0, degrees=0.0, scale=1.0):
    """Return the picture as a camera sees the part that was shifted, turned around the middle, and enlarged."""
    height, width = picture.shape[:2]
    motion = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, scale)
    motion[:, 2] += (right, down)
    return np.asarray(cv2.warpAffine(picture, motion, (width, height), borderMode=cv2.BORDER_REPLICATE), np.uint8)


def good(seed):
    """Return a good part as a camera sees it: a little moved, with noise."""
    right, down = np.random.default_rng(seed).integers(-3, 4, 2)
    return moved(noisy(part(), seed), float(right), float(down))


def noisy(picture, seed, levels=3.0):
    noise = np.random.default_rng(seed).normal(0, levels, picture.shape)
    return np.clip(picture + noise, 0, 255).astype(np.uint8)


def findings_of(kind, expert, trained, inputs):
    module = kind.skeleton(expert)
    module.load_state_dict(trained.state)
    with torch.inference_mode():
        outputs = kind.forward(module, torch.from_numpy(np.stack([one.pixels for one in inputs])))
    return kind.postprocess(outputs, inputs, expert)
