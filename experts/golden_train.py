"""Training of the kind `golden`: AdamW, a cosine schedule, averaged weights; the best epoch by held-out loss.

Crops are cut once, wider than the network sees, and kept in memory; each step sees them shifted, mirrored and turned,
some of them with their reference a little displaced, thicker or thinner, as after an alignment or an etching that is
not perfect. An epoch takes all crops with a defect, and half as many of the others, drawn at random. Aligned pictures
have few others, so more are cut where a picture differs from its displaced reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from coe.core import Expert
from coe.errors import ConfigError
from coe.store.kinds import Image, ModuleKind, Progress, Trained, TrainingPlan
from experts import pair_data
from experts.classifier_train import computing, pace
from experts.golden_network import GoldenNetwork
from experts.matching import load_matching
from experts.pair import differences
from experts.pair_data import LabelledPair, PairFiles
from experts.proposals import CELL, Region, crops, regions

_Parts = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.float32]]
"""Crops (n, side, side, 3), their labels and boxes."""

REACH = 12
"""By how many pixels, in each direction, a kept crop is wider than what the network sees."""
_SHIFT = 8
_DISPLACED, _FAR = 3, 8
"""The most pixels by which the reference of a crop, and of a whole picture, is displaced."""
_THICKER = 2
"""The most pixels by which a border in the reference of a picture is moved: traces are etched more or less."""
_DISPLACED_SHARE = 3
"""Every so many crops see their reference displaced."""
_MOST_DISPLACED = 8
"""How many places of a picture that differ only from its displaced reference are cut."""
_SMOOTHING = 0.02
_BOX_WEIGHT, _BOX_BETA = 2.0, 0.03
_WEIGHT_DECAY = 0.02
_MEMORY = 0.998
"""How much of the averaged weights a step keeps."""
_LEAST_SHARE = 0.2
"""The least share of a region that lies in a defect's box: with less of it, the region may be another difference."""
_IGNORED = -1
"""The label of a crop that is neither good nor bad: the middle of the defect lies outside, or most of the region."""
_GROUP = 8
"""So many crops of a batch are shifted and turned together."""


@dataclass(frozen=True, slots=True)
class Crops:
    """Crops (n, 3, CELL + 2 REACH, ...) uint8, their labels (n,), 0 for none, and boxes (n, 4) as shares of a crop."""

    images: torch.Tensor
    labels: torch.Tensor
    boxes: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


def train(kind: ModuleKind, levels: int, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
    """Train and return the averaged weights of the epoch with the least held-out loss.

    Crops are cut where a picture differs from its reference by more than `levels` grey levels.

    Raises ConfigError for a data set that does not fit, and for frozen layers, which this kind has not.
    """
    if plan.freeze:
        raise ConfigError(f"expert '{expert.id}': layers of this kind cannot be frozen; plan it without 'freeze'")
    with computing(plan.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        training, held = pair_data.read(expert, plan)
        data = cut(levels, expert, training, plan, more=True), cut(levels, expert, held, plan, more=False)
        return _train(kind, expert, plan, progress, data)


def cut(levels: int, expert: Expert, pairs: Sequence[PairFiles], plan: TrainingPlan, *, more: bool) -> Crops:
    """Cut the crops of pairs as a line would find them, and with `more` those that differ when displaced."""
    chance, parts = np.random.default_rng(plan.seed), []
    for pair in pair_data.labelled(pairs, len(expert.labels), plan.data):
        found = regions(differences(pair.stack) > levels)
        parts.append(_cut(pair.stack, pair, found))
        if more:
            parts.append(_displaced(levels, pair, chance))
    images = np.concatenate([part[0] for part in parts])
    labels, boxes = (torch.from_numpy(np.concatenate([part[place] for part in parts])) for place in (1, 2))
    kept = labels != _IGNORED
    return Crops(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()[kept], labels[kept], boxes[kept])


def _displaced(levels: int, pair: LabelledPair, chance: np.random.Generator) -> _Parts:
    """Cut places without a defect that differ from the displaced reference."""
    reach = _DISPLACED if chance.integers(2) else _FAR
    right, down = chance.integers(-reach, reach + 1, 2)
    thicker = int(chance.integers(-_THICKER, _THICKER + 1))
    reference = np.roll(pair.stack[:, :, 1], (down, right), axis=(0, 1))
    grown = np.ones((2 * abs(thicker) + 1, 2 * abs(thicker) + 1), np.uint8)
    reference = cv2.dilate(reference, grown) if thicker > 0 else cv2.erode(reference, grown)
    picture = np.ascontiguousarray(pair.stack[:, :, 0])
    stack = np.asarray(cv2.merge([picture, reference, cv2.absdiff(picture, reference)]), np.uint8)
    found = regions(differences(stack) > levels)
    good = [region for region in found if not _common(pair, region).any()]
    chosen = chance.permutation(len(good))[:_MOST_DISPLACED]
    return _cut(stack, pair, [good[place] for place in chosen])


def _common(pair: LabelledPair, region: Region) -> NDArray[np.float64]:
    """Return how many pixels a region has in common with each box of a pair."""
    low = np.maximum(pair.boxes[:, :2], region.xyxy[:2])
    high = np.minimum(pair.boxes[:, 2:], region.xyxy[2:])
    return np.asarray(np.clip(high - low, 0, None).prod(axis=1), np.float64)


def _cut(stack: Image, pair: LabelledPair, found: Sequence[Region]) -> _Parts:
    labels, boxes = np.zeros(len(found), np.int64), np.zeros((len(found), 4), np.float32)
    for place, region in enumerate(found):
        common = _common(pair, region)
        if not common.any():
            continue
        nearest = int(common.argmax())
        x1, y1, x2, y2 = pair.boxes[nearest]
        x, y = region.centre
        inside = max(abs((x1 + x2) / 2 - x), abs((y1 + y2) / 2 - y)) <= region.context / 2
        width, height = region.xyxy[2] - region.xyxy[0], region.xyxy[3] - region.xyxy[1]
        clear = inside and common[nearest] >= _LEAST_SHARE * width * height
        labels[place] = pair.labels[nearest] + 1 if clear else _IGNORED
        boxes[place] = np.array([x - x1, y - y1, x2 - x, y2 - y]) / region.context
    return crops(stack, found, REACH), labels, boxes


def _train(
    kind: ModuleKind, expert: Expert, plan: TrainingPlan, progress: Progress, data: tuple[Crops, Crops]
) -> Trained:
    training, held = data
    bad, other = (training.labels > 0).nonzero().flatten(), (training.labels == 0).nonzero().flatten()
    if not len(bad):
        raise ConfigError(f"data set '{plan.data}': no labelled box is at a place that differs from its reference")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = kind.skeleton(expert)
    if plan.init is not None:
        load_matching(network, plan.init)
    network = network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = {name: value.detach().clone() for name, value in network.state_dict().items()}
    optimizer = torch.optim.AdamW(_groups(network), lr=plan.learning_rate, fused=True)
    an_epoch = math.ceil((len(bad) + min(len(other), len(bad) // 2)) / plan.batch)
    steps = plan.epochs * an_epoch
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: pace(step, steps))
    best, state, metrics = math.inf, {}, {}
    done = 0
    for epoch in range(1, plan.epochs + 1):
        network.train()
        lost = 0.0
        drawn = other[torch.randperm(len(other))[: len(bad) // 2]]
        for places in _batches(torch.cat((bad, drawn)), plan.batch):
            images, boxes = _varied(training, places)
            loss = _loss(network(images.to(device)), training.labels[places].to(device), boxes.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            done += 1
            _remember(average, network, done)
            lost += float(loss.detach()) / an_epoch
        now = {**_measure(kind, expert, average, held, device), "train_loss": lost, "epoch": float(epoch)}
        if now["loss"] < best:
            best, metrics = now["loss"], now
            state = {name: value.cpu().contiguous().clone() for name, value in average.items()}
        progress(epoch, plan.epochs, now)
    return Trained(state=state, labels=expert.labels, metrics={**metrics, "held_out": float(len(held))})


def _groups(network: torch.nn.Module) -> list[dict[str, object]]:
    """Return the parameters to optimise: biases and norms do not decay."""
    parameters = list(network.parameters())
    return [
        {"params": [value for value in parameters if value.ndim > 1], "weight_decay": _WEIGHT_DECAY},
        {"params": [value for value in parameters if value.ndim <= 1], "weight_decay": 0.0},
    ]


def _batches(places: torch.Tensor, batch: int) -> Iterator[torch.Tensor]:
    order = places[torch.randperm(len(places))]
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        # Batch norm cannot learn from one crop alone.
        yield chosen if len(chosen) > 1 else torch.cat((chosen, chosen))


def _varied(data: Crops, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return crops (n, 3, CELL, CELL) float in 0..1 and boxes (n, 4), shifted, mirrored and turned at random."""
    images, boxes = [], []
    for group in places.split(_GROUP):
        right, down = (int(value) for value in torch.randint(-_SHIFT, _SHIFT + 1, (2,)))
        top, left = REACH + down, REACH + right
        wide = data.images[group]
        crop = wide[:, :, top : top + CELL, left : left + CELL]
        if not int(torch.randint(_DISPLACED_SHARE, ())):
            crop = _displaced_crop(wide, top, left)
        box = data.boxes[group] + torch.tensor([right, down, -right, -down]) / CELL
        mirror, upend, turn = (bool(value) for value in torch.randint(2, (3,)))
        if mirror:
            crop, box = crop.flip(3), box[:, [2, 1, 0, 3]]
        if upend:
            crop, box = crop.flip(2), box[:, [0, 3, 2, 1]]
        if turn:
            crop, box = crop.transpose(2, 3), box[:, [1, 0, 3, 2]]
        images.append(crop)
        boxes.append(box)
    whole = torch.cat(images).float().div_(255).contiguous(memory_format=torch.channels_last)
    return whole, torch.cat(boxes)


def _displaced_crop(wide: torch.Tensor, top: int, left: int) -> torch.Tensor:
    """Return the crops at a place of wide crops, with their references displaced, and thicker or thinner."""
    down, right = (int(value) for value in torch.randint(-_DISPLACED, _DISPLACED + 1, (2,)))
    picture = wide[:, 0, top : top + CELL, left : left + CELL]
    reference = wide[:, 1, top + down : top + down + CELL, left + right : left + right + CELL]
    thicker = int(torch.randint(-1, 2, ()))
    if thicker:
        grown = functional.max_pool2d(thicker * reference.float(), 3, stride=1, padding=1)
        reference = (thicker * grown).to(torch.uint8)
    difference = torch.maximum(picture, reference) - torch.minimum(picture, reference)
    return torch.stack((picture, reference, difference), dim=1)


def _loss(outputs: tuple[torch.Tensor, torch.Tensor], labels: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    logits, found = outputs
    loss = functional.cross_entropy(logits, labels, label_smoothing=_SMOOTHING)
    bad = labels > 0
    if not bool(bad.any()):
        return loss
    found, boxes = found[bad], boxes[bad]
    near = functional.smooth_l1_loss(found, boxes, beta=_BOX_BETA)
    return loss + (1 - _overlaps(found, boxes)).mean() + _BOX_WEIGHT * near


def _overlaps(found: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Return the IoU of boxes (n, 4), each as distances from one point to its left, top, right and bottom."""
    common = torch.minimum(found, boxes)
    inside = (common[:, 0] + common[:, 2]).clamp(min=0) * (common[:, 1] + common[:, 3]).clamp(min=0)
    areas = [(box[:, 0] + box[:, 2]) * (box[:, 1] + box[:, 3]) for box in (found, boxes)]
    return inside / (areas[0] + areas[1] - inside).clamp(min=1e-6)


def _remember(average: dict[str, torch.Tensor], network: torch.nn.Module, step: int) -> None:
    """Move the averaged weights towards those of this step; the first steps count for little later."""
    share = 1 - min(_MEMORY, step / (step + 10))
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if value.is_floating_point():
                average[name].lerp_(value, share)
            else:
                average[name].copy_(value)


def _measure(
    kind: ModuleKind, expert: Expert, state: dict[str, torch.Tensor], held: Crops, device: torch.device
) -> dict[str, float]:
    """Return the share of held-out crops with the right label, the mean IoU of the boxes of defects, and the loss."""
    network = kind.skeleton(expert)
    assert isinstance(network, GoldenNetwork)
    network.load_state_dict(state)
    network = network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    logits, boxes = [], []
    with torch.inference_mode():
        for part in held.images[:, :, REACH:-REACH, REACH:-REACH].split(256):
            outputs = network(part.to(device).float().div(255))
            logits.append(outputs[0].cpu())
            boxes.append(outputs[1].cpu())
        found, judged, bad = torch.cat(boxes), torch.cat(logits), held.labels > 0
        overlaps = _overlaps(found[bad], held.boxes[bad])
        return {
            "accuracy": float((judged.argmax(dim=1) == held.labels).float().mean()),
            "iou": float(overlaps.mean()) if bool(bad.any()) else 0.0,
            "loss": float(_loss((judged, found), held.labels, held.boxes)),
        }
