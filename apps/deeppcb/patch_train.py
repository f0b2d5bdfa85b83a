"""Training of the patch classifier on random crops, and the choice of its threshold on whole held-out images."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import torch
from torch.nn import functional

from apps.deeppcb import crops
from apps.deeppcb.data import Pair, defects
from coe.core import Expert
from coe.errors import ConfigError
from coe.store.kinds import ModuleKind, Progress, Trained, TrainingPlan
from experts.classifier_train import computing, pace
from experts.matching import load_matching

STEPS = 25
"""Optimizer steps in an epoch: crops are drawn at random, so that there is no natural end."""

COLUMNS = ("split", "group", "tested", "template", "note")


def write_list(path: Path, splits: dict[str, list[Pair]]) -> Path:
    """Write pairs as the list that `train` reads; the images stay where they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for split, pairs in splits.items():
            writer.writerows([split, pair.group, pair.tested, pair.template, pair.note] for pair in pairs)
    return path


def read_list(path: Path) -> dict[str, list[Pair]]:
    """Read a list of pairs; raises ConfigError unless it has pairs of `train` and of `val`."""
    splits: dict[str, list[Pair]] = {"train": [], "val": []}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                note = Path(row["note"])
                annotated = tuple(defects(note))
                pair = Pair(note.stem, row["group"], Path(row["tested"]), Path(row["template"]), note, annotated)
                splits[row["split"]].append(pair)
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(f"'{path}' is not a list of pairs ({error}); make it with apps/deeppcb/train.py") from error
    if not splits["train"] or not splits["val"]:
        raise ConfigError(f"'{path}' needs pairs of 'train' and of 'val'")
    return splits


def train(kind: ModuleKind, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
    """Train for `plan.epochs` times 25 steps and set the threshold; the last weights are returned.

    The limit is calibrated once, on held-out pairs: a probability of 0.5 lies midway between the good and the bad
    images, see `threshold`.
    """
    with computing(plan.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        splits = read_list(plan.data)
        module = kind.skeleton(expert)
        if plan.init is not None:
            load_matching(module, plan.init)
        module = module.to(memory_format=torch.channels_last).train()
        drawn = crops.Crops(crops.load(splits["train"]), plan.seed)
        optimizer = torch.optim.AdamW(module.parameters(), lr=plan.learning_rate, weight_decay=0.01)
        steps = plan.epochs * STEPS
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: pace(step, steps))
        lost = 0.0
        for step in range(1, steps + 1):
            loss = _loss(module, *drawn.batch(plan.batch))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            lost += float(loss.detach()) / STEPS
            if step % STEPS == 0:
                progress(step // STEPS, plan.epochs, {"train_loss": lost})
                lost = 0.0
        module.eval()
        metrics = _calibrate(kind, module, expert, splits["val"])
    state = {name: value.detach().contiguous().clone() for name, value in module.state_dict().items()}
    return Trained(state=state, labels=expert.labels, metrics=metrics)


def _loss(module: torch.nn.Module, images: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the loss: of every place, and of the worst place of each crop, which decides in inspection."""
    logits = module(images.float().div_(255.0))
    places = (
        functional.binary_cross_entropy_with_logits(logits, targets, reduction="none") * weights * (1 + 4 * targets)
    )
    counted = logits.masked_fill(weights == 0, -20.0).flatten(1).amax(dim=1)
    counts = weights.flatten(1).amax(dim=1)
    bad = targets.flatten(1).amax(dim=1)
    whole = functional.binary_cross_entropy_with_logits(counted, bad, reduction="none") * counts
    return 4 * places.mean() + 0.5 * whole.mean()


@torch.inference_mode()
def _calibrate(kind: ModuleKind, module: torch.nn.Module, expert: Expert, held: list[Pair]) -> dict[str, float]:
    scores: dict[str, list[float]] = {"good": [], "bad": []}
    module.limit.zero_()
    for pair in crops.load(held):
        for name, image in (("good", pair.template), ("bad", pair.tested)):
            pixels = kind.preprocess(image[:, :, None].repeat(3, axis=2), expert).pixels
            scores[name].append(float(kind.forward(module, torch.from_numpy(pixels)[None])[0]))
    limit = threshold(scores["good"], scores["bad"])
    module.limit.fill_(limit)
    escaped = sum(score < limit for score in scores["bad"])
    called = sum(score >= limit for score in scores["good"])
    count = len(held)
    return {
        "accuracy": 1 - (escaped + called) / (2 * count),
        "escape_rate": escaped / count,
        "false_call_rate": called / count,
        "held_out": float(2 * count),
        "threshold": limit,
    }


def threshold(good: list[float], bad: list[float]) -> float:
    """Return the limit with the fewest images on its wrong side; of several, the middle of the widest gap."""
    scores = sorted({*good, *bad})
    limits = [(low + high) / 2 for low, high in pairwise(scores)] or [scores[0]]
    gaps = [high - low for low, high in pairwise(scores)] or [0.0]
    wrong = [sum(score >= limit for score in good) + sum(score < limit for score in bad) for limit in limits]
    fewest = min(wrong)
    return max((gap, limit) for gap, limit, count in zip(gaps, limits, wrong, strict=True) if count == fewest)[1]
