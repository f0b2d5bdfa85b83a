"""Training of the kind `golden`: AdamW, a cosine schedule, averaged weights; the best epoch, or the last of few pairs.

What chose the epoch does not measure it: the figures are of a third part. An epoch takes all crops with a defect, and
half as many of the others, drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from coe.core import Expert
from coe.errors import ConfigError
from coe.helpers.rates import Rate
from coe.pictures.photographs import Purpose
from coe.store.kinds import Progress, Trained, TrainingPlan
from coe.store.skeletons import bare_skeleton
from experts import pair_data, pair_limits
from experts.classifier_train import pace
from experts.golden_crops import MARGIN, NONE, Crops, cut, shows_defect, varied
from experts.golden_network import PEAKS, SIDE, GoldenNetwork, peaks
from experts.pair import PairKind
from experts.proof import unproven_answers, unproven_objects
from experts.proposals import REACH
from experts.taken import TakenPictures
from experts.trainers import computing, forward_precision, load_matching

_BOX_WEIGHT, _BOX_BETA = 2.0, 0.03
_WEIGHT_DECAY = 0.02
_MEMORY = 0.998
"""How much of the averaged weights a step keeps."""
_SPREAD = 0.14
"""How fast the wanted score falls beside the middle of a defect, as a share of the defect's width and height."""
_NEAR = 0.4
"""The least wanted score of places whose box is learned."""


@dataclass(frozen=True, slots=True)
class _Data:
    """Crops to train on, to choose the epoch by (None: nothing chooses), and held out.

    `inverse` is for each label that of the same defect in the negative, if it is known.
    """

    training: Crops
    choosing: Crops | None
    held_out: Crops
    inverse: torch.Tensor | None


def train(kind: PairKind, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
    """Train and return the averaged weights of the epoch with the least loss in the part to choose by, else the last.

    Crops are cut where a picture differs from its reference by more than the kind's `levels` grey levels. Beside the
    boxes all pairs are good, and say how far good parts lie from their references.

    Raises ConfigError for a data set that does not fit, and for frozen layers, which this kind has not.
    """
    if plan.freeze:
        raise ConfigError(f"expert '{expert.id}': layers of this kind cannot be frozen; plan it without 'freeze'")
    with computing(plan.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        pairs, taken = pair_data.read(expert, plan), TakenPictures(plan.data.parent)
        inverse = _by_label(pair_data.inverse(expert, plan.data))
        made = {part: cut(kind, expert, files, plan, taken, part) for part, files in pairs.items() if files}
        choosing = made[Purpose.VERIFY].crops if Purpose.VERIFY in made else None
        data = _Data(made[Purpose.LEARN].crops, choosing, made[Purpose.TEST].crops, inverse)
        trained = _train(kind, expert, plan, progress, data)
        remarks = [sentence for one in made.values() for sentence in one.remarks]
        return replace(
            trained,
            remarks=(*remarks, *taken.identical()),
            took=taken.sentence(),
            learned=taken.learned,
            limits=pair_limits.limits_of([part for one in made.values() for part in one.parts], {"": (0, 0)}),
        )


def _train(kind: PairKind, expert: Expert, plan: TrainingPlan, progress: Progress, data: _Data) -> Trained:
    training, inverse = data.training, data.inverse
    watched = data.held_out if data.choosing is None else data.choosing
    shows = shows_defect(training)
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
    best, state, chosen = math.inf, {}, {}
    done = 0
    for epoch in range(1, plan.epochs + 1):
        network.train()
        lost = 0.0
        drawn = other[torch.randperm(len(other))[: len(bad) // 2]]
        for places in _batches(torch.cat((bad, drawn)), plan.batch):
            images, labels, boxes = (value.to(device) for value in varied(training, places, inverse))
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
        seen = _measure(kind, expert, average, watched, device)
        when = {"train_loss": lost, "epoch": float(epoch)}
        if data.choosing is None or seen.metrics["loss"] < best:
            best, chosen = seen.metrics["loss"], when
            state = {name: value.cpu().contiguous().clone() for name, value in average.items()}
        progress(epoch, plan.epochs, {**seen.metrics, **when})
    if data.choosing is not None:
        seen = _measure(kind, expert, state, data.held_out, device)
    metrics = {**seen.metrics, **chosen, "held_out": float(len(data.held_out))}
    return Trained(state=state, labels=expert.labels, metrics=metrics, unproven=seen.unproven)


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
    """Return the label of each defect in the negative, by its label; NONE, the last, stays."""
    return None if inverse is None else torch.tensor([*inverse, NONE])


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
    near = falls[1][..., :, None] * falls[0][..., None, :] * (labels != NONE)[..., None, None]
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


@dataclass(frozen=True, slots=True)
class _Measured:
    """Measures of crops, and why they do not prove the expert ("" if they do)."""

    metrics: dict[str, float]
    unproven: str


def _measure(
    kind: PairKind, expert: Expert, state: dict[str, torch.Tensor], held: Crops, device: torch.device
) -> _Measured:
    """Measure crops: their loss, and of their defects the share with the right label and the mean IoU."""
    network = bare_skeleton(kind, expert)
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
        metrics = {"loss": float(_loss((judged, found), held.labels, held.boxes))}
        if len(right):
            share = Rate(int(right.sum()), len(right))
            metrics |= {"accuracy": share.share, "accuracy_at_least": share.lower(), "iou": float(overlaps.mean())}
        called = peaks(judged, found, PEAKS, REACH)[..., :-4].flatten(1).amax(dim=1) >= kind.threshold
        return _Measured(metrics, _unproven(shows_defect(held), called))


def _unproven(bad: torch.Tensor, called: torch.Tensor) -> str:
    """Say why calls of crops, (n,) bool, do not prove an expert; `bad` crops show a defect."""
    if bool(bad.any()) and not bool(bad.all()):
        return unproven_answers(bad, called)
    return unproven_objects(int((bad & called).sum()), int(bad.sum()))
