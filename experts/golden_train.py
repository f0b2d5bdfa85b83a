"""Training of the kind `golden`: AdamW, a cosine schedule, averaged weights; the best epoch by held-out loss.

Crops are cut once, wider than the network sees, and kept in memory; each step sees them shifted, mirrored and turned,
some of them with their reference a little displaced, thicker or thinner, also at one side alone, as after an alignment
or an etching that is not perfect. An epoch takes all crops with a defect, and half as many of the others, drawn at
random. Aligned pictures have few others, so more are cut where a picture differs from its displaced reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from coe.board.alignment import Numbers
from coe.core import Expert
from coe.errors import ConfigError
from coe.store.kinds import Image, ModuleKind, Progress, Trained, TrainingPlan
from experts import pair_data
from experts.classifier_train import computing, pace
from experts.golden_network import SIDE, GoldenNetwork
from experts.matching import load_matching
from experts.mixed_precision import forward_precision
from experts.pair import differences
from experts.pair_data import LabelledPair, PairFiles
from experts.proposals import CELL, REACH, Region, covering, crops, regions

_Parts = tuple[NDArray[np.uint8], list[Numbers], list[Numbers]]
"""Crops (n, side, side, 3), and for each the labels (m,) and boxes (m, 4) of the defects in it."""

MARGIN = 24
"""By how many pixels, in each direction, a kept crop is wider than what the network sees."""
_SHIFT = 16
_DISPLACED, _FAR = 3, 8
"""The most pixels by which the reference of a crop is displaced: mostly, and seldom."""
_THICKER = 2
"""The most pixels by which a border in the reference is moved: traces are etched more or less."""
_VARIED_SHARE = 0.35
"""The share of the crops whose reference is displaced, thicker or thinner."""
_MOST_DISPLACED = 8
"""How many places of a picture that differ only from its displaced reference are cut."""
_BOX_WEIGHT, _BOX_BETA = 2.0, 0.03
_WEIGHT_DECAY = 0.02
_MEMORY = 0.998
"""How much of the averaged weights a step keeps."""
_SPREAD = 0.14
"""How fast the wanted score falls beside the middle of a defect, as a share of the defect's width and height."""
_NEAR = 0.4
"""The least wanted score of places whose box is learned."""
_MOST = 12
"""How many defects of a crop are kept."""
_NONE = -1
"""The label of a row without a defect."""
_GROUP = 4
"""So many crops of a batch are shifted and turned together."""


@dataclass(frozen=True, slots=True)
class Crops:
    """Crops (n, 3, CELL + 2 MARGIN, ...) uint8, and the defects in them.

    `labels` is (n, _MOST), _NONE in rows without a defect; `boxes` (n, _MOST, 4) are x1, y1, x2, y2 as shares of CELL,
    from the top left of what the network sees without a shift.
    """

    images: torch.Tensor
    labels: torch.Tensor
    boxes: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


_Data = tuple[Crops, Crops, torch.Tensor | None]
"""Crops to train on, crops held out, and for each label that of the same defect in the negative, if it is known."""


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
        inverse = pair_data.inverse(expert, plan.data)
        data = cut(levels, expert, training, plan, more=True), cut(levels, expert, held, plan, more=False)
        return _train(kind, expert, plan, progress, (*data, _by_label(inverse)))


def cut(levels: int, expert: Expert, pairs: Sequence[PairFiles], plan: TrainingPlan, *, more: bool) -> Crops:
    """Cut the crops of pairs as a line would find them, and with `more` those that differ when displaced."""
    chance = np.random.default_rng(plan.seed)
    return crops_of(pair_data.labelled(pairs, len(expert.labels), plan.data), levels, chance if more else None)


def crops_of(pairs: Iterable[LabelledPair], levels: int, chance: np.random.Generator | None) -> Crops:
    """Cut the crops of labelled pairs; with `chance` also of places that differ from a displaced reference."""
    parts = []
    for pair in pairs:
        parts.append(_cut(pair.stack, pair, covering(regions(differences(pair.stack) > levels))))
        if chance is not None:
            parts.append(_displaced(levels, pair, chance))
    images = np.concatenate([part[0] for part in parts])
    count = len(images)
    labels, boxes = np.full((count, _MOST), _NONE, np.int64), np.zeros((count, _MOST, 4), np.float32)
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


def _train(
    kind: ModuleKind,
    expert: Expert,
    plan: TrainingPlan,
    progress: Progress,
    data: tuple[Crops, Crops, torch.Tensor | None],
) -> Trained:
    training, held, inverse = data
    shows = _shows_defect(training)
    bad, other = shows.nonzero().flatten(), (~shows).nonzero().flatten()
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
            images, labels, boxes = (value.to(device) for value in _varied(training, places, inverse))
            with forward_precision(plan, device):
                outputs = network(images)
            loss = _loss(outputs, labels, boxes)
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


def _by_label(inverse: Sequence[int] | None) -> torch.Tensor | None:
    """Return the label of each defect in the negative, by its label; _NONE, the last, stays."""
    return None if inverse is None else torch.tensor([*inverse, _NONE])


def _shows_defect(data: Crops) -> torch.Tensor:
    """Tell for each crop whether the middle of a defect lies near enough to its own."""
    middle = (data.boxes[..., :2] + data.boxes[..., 2:]) / 2
    return (((middle - 0.5).abs().amax(dim=2) <= REACH / CELL) & (data.labels != _NONE)).any(dim=1)


def _varied(
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


def _wanted(labels: torch.Tensor, boxes: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what the network should say of crops.

    The scores (n, count, SIDE, SIDE); the nearness of each place to the middle of a defect (n, SIDE, SIDE), 1 at the
    middle; and the box of that defect (n, 4, SIDE, SIDE).
    """
    index = torch.arange(SIDE, device=boxes.device, dtype=torch.float32)
    middle, size = (boxes[..., :2] + boxes[..., 2:]) / 2, (boxes[..., 2:] - boxes[..., :2]).clamp(min=1e-3)
    falls = []
    for axis in (0, 1):
        place = (middle[..., axis] * SIDE).floor()[..., None]
        spread = (_SPREAD * SIDE * size[..., axis]).clamp(min=0.7)[..., None]
        falls.append(torch.exp(-((index - place) ** 2) / (2 * spread**2)))
    near = falls[1][..., :, None] * falls[0][..., None, :] * (labels != _NONE)[..., None, None]
    scores = torch.stack([(near * (labels == one)[..., None, None]).amax(dim=1) for one in range(count)], dim=1)
    nearest, which = near.max(dim=1)
    chosen = boxes.gather(1, which.flatten(1)[..., None].expand(-1, -1, 4)).transpose(1, 2).unflatten(2, (SIDE, SIDE))
    x, y = ((index + 0.5) / SIDE).expand(SIDE, SIDE), ((index + 0.5) / SIDE)[:, None].expand(SIDE, SIDE)
    away = torch.stack((x - chosen[:, 0], y - chosen[:, 1], chosen[:, 2] - x, chosen[:, 3] - y), dim=1)
    return scores, nearest, away


def _loss(outputs: tuple[torch.Tensor, torch.Tensor], labels: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Return the focal loss of the scores (Law and Deng, CornerNet, 2018) and the loss of the boxes near a middle."""
    logits, found = (output.float() for output in outputs)
    wanted, nearest, away = _wanted(labels, boxes, logits.shape[1])
    score = logits.sigmoid()
    middle = wanted == 1
    right = functional.logsigmoid(logits) * (1 - score) ** 2
    wrong = functional.logsigmoid(-logits) * score**2 * (1 - wanted) ** 4
    loss = -torch.where(middle, right, wrong).sum() / middle.sum().clamp(min=1)
    near = nearest > _NEAR
    if not bool(near.any()):
        return loss
    found, away, weight = found.permute(0, 2, 3, 1)[near], away.permute(0, 2, 3, 1)[near], nearest[near]
    apart = functional.smooth_l1_loss(found, away, beta=_BOX_BETA, reduction="none").mean(dim=1)
    return loss + ((1 - _overlaps(found, away) + _BOX_WEIGHT * apart) * weight).sum() / weight.sum()


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
    """Return the loss of held-out crops, and of their defects the share with the right label and the mean IoU."""
    network = kind.skeleton(expert)
    assert isinstance(network, GoldenNetwork)
    network.load_state_dict(state)
    network = network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    logits, boxes = [], []
    with torch.inference_mode():
        for part in held.images[:, :, MARGIN:-MARGIN, MARGIN:-MARGIN].split(256):
            outputs = network(part.to(device).float().div(255))
            logits.append(outputs[0].cpu())
            boxes.append(outputs[1].cpu())
        judged, found = torch.cat(logits), torch.cat(boxes)
        wanted, nearest, away = _wanted(held.labels, held.boxes, len(expert.labels))
        crop, row, column = (nearest == 1).nonzero(as_tuple=True)
        right = judged[crop, :, row, column].argmax(dim=1) == wanted[crop, :, row, column].argmax(dim=1)
        overlaps = _overlaps(found[crop, :, row, column], away[crop, :, row, column])
        return {
            "accuracy": float(right.float().mean()) if len(right) else 1.0,
            "iou": float(overlaps.mean()) if len(right) else 0.0,
            "loss": float(_loss((judged, found), held.labels, held.boxes)),
        }
