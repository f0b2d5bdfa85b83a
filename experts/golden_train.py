"""Training of the kind `golden`: AdamW, a cosine schedule, averaged weights; the best epoch by held-out loss.

Crops are cut once, wider than the network sees, and kept in memory; each step sees them shifted, mirrored and turned.
An epoch takes all crops with a defect, and as many of the others, drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from coe.core import Expert
from coe.errors import ConfigError
from coe.store.kinds import Progress, Trained, TrainingPlan
from coe.surroundings import quiet_torch
from experts import pair_data
from experts.classifier_train import computing, pace
from experts.golden import Golden
from experts.golden_network import GoldenNetwork
from experts.matching import load_matching
from experts.pair import differences
from experts.pair_data import LabelledPair, PairFiles
from experts.proposals import CELL, CONTEXT, crops, regions

REACH = 8
"""By how many pixels of a crop, in each direction, a kept crop is wider than what the network sees."""
_SHIFT = 6
_SMOOTHING = 0.02
_BOX_WEIGHT, _BOX_BETA = 5.0, 0.03
_WEIGHT_DECAY = 0.02
_MEMORY = 0.998
"""How much of the averaged weights a step keeps."""
_IGNORED = -1
"""The label of a crop that shows a part of a defect whose middle lies outside: it is neither good nor bad."""
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


def train(kind: Golden, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
    """Train and return the averaged weights of the epoch with the least held-out loss.

    Raises ConfigError for a data set that does not fit, and for frozen layers, which this kind has not.
    """
    if plan.freeze:
        raise ConfigError(f"expert '{expert.id}': layers of this kind cannot be frozen; plan it without 'freeze'")
    quiet_torch()
    with computing(plan.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        training, held = pair_data.read(expert, plan)
        return _train(kind, expert, plan, progress, (cut(kind, expert, training, plan), cut(kind, expert, held, plan)))


def cut(kind: Golden, expert: Expert, pairs: Sequence[PairFiles], plan: TrainingPlan) -> Crops:
    """Cut the crops of pairs, as a line would find them."""
    parts = [_cut(kind, pair) for pair in pair_data.labelled(pairs, len(expert.labels), plan.data)]
    images = np.concatenate([part[0] for part in parts])
    labels, boxes = (torch.from_numpy(np.concatenate([part[place] for part in parts])) for place in (1, 2))
    kept = labels != _IGNORED
    return Crops(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()[kept], labels[kept], boxes[kept])


def _cut(kind: Golden, pair: LabelledPair) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    found = regions(differences(pair.stack) > kind.levels)
    labels, boxes = np.zeros(len(found), np.int64), np.zeros((len(found), 4), np.float32)
    for place, region in enumerate(found):
        low = np.maximum(pair.boxes[:, :2], region.xyxy[:2])
        high = np.minimum(pair.boxes[:, 2:], region.xyxy[2:])
        common = np.clip(high - low, 0, None).prod(axis=1)
        if not common.any():
            continue
        nearest = int(common.argmax())
        x1, y1, x2, y2 = pair.boxes[nearest]
        x, y = region.centre
        inside = max(abs((x1 + x2) / 2 - x), abs((y1 + y2) / 2 - y)) <= CONTEXT / 2
        labels[place] = pair.labels[nearest] + 1 if inside else _IGNORED
        boxes[place] = np.array([x - x1, y - y1, x2 - x, y2 - y]) / CONTEXT
    wide = CONTEXT + 2 * REACH * CONTEXT // CELL
    return crops(pair.stack, [region.centre for region in found], wide), labels, boxes


def _train(kind: Golden, expert: Expert, plan: TrainingPlan, progress: Progress, data: tuple[Crops, Crops]) -> Trained:
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
    an_epoch = math.ceil((len(bad) + min(len(other), len(bad))) / plan.batch)
    steps = plan.epochs * an_epoch
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: pace(step, steps))
    best, state, metrics = math.inf, {}, {}
    done = 0
    for epoch in range(1, plan.epochs + 1):
        network.train()
        lost = 0.0
        drawn = other[torch.randperm(len(other))[: len(bad)]]
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
        crop = data.images[group][:, :, top : top + CELL, left : left + CELL]
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
    kind: Golden, expert: Expert, state: dict[str, torch.Tensor], held: Crops, device: torch.device
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
