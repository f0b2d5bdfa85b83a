"""Learning the kind `good` from a folder of good parts: means, spreads, and the limit for a wanted false-call rate.

Each part is judged by what the others show, so that the limit is not that of parts that were learned (leave-one-out).
The logarithms of their largest deviations are taken as normally distributed; the limit is their one-sided tolerance
limit (Natrella, 1963), which holds the wanted rate with a confidence of 95 %. `called` of `good_parts` counts without
that assumption, and `called_at_most` is its bound (Clopper and Pearson).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from coe.board.decoding import decode
from coe.core import Expert
from coe.errors import ConfigError, ImageError
from coe.rates import Rate, tolerance_factor
from coe.store.kinds import Image, ModuleKind, Progress, Reference, Trained, TrainingPlan
from experts.classifier_train import computing
from experts.good_network import GoodNetwork, of_features, of_pixels
from experts.labelled_folder import SUFFIXES
from experts.matching import load_matching
from experts.pair import PreparedPair

WANTED = 0.05
"""The false-call rate that is wanted if the plan does not say it."""
FEW = 5
"""With fewer good parts nothing can be said of the next."""
_PIXEL_FLOOR = 12.0
"""Grey levels that every pixel may differ, as by the noise of a camera and of its alignment."""
_STRANGE = 8.0
"""A part is left out if it deviates by so many median deviations more than the middle of all."""
_BATCH = 16

Numbers = NDArray[np.float64]
Judge = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What good parts show at each place: `mean` and `spread`, each of the shape of one part."""

    mean: torch.Tensor
    spread: torch.Tensor


def train(kind: ModuleKind, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
    """Learn from the images in the folder of the plan; `plan.init` gives the frozen layers, else they are random.

    Raises ConfigError without a reference, for frozen parts, for too few good parts, and if most do not fit.
    """
    if plan.freeze:
        raise ConfigError(f"expert '{expert.id}': nothing but the statistics of this kind learns; leave 'freeze' out")
    if plan.reference is None:
        raise ConfigError(
            f"expert '{expert.id}' learns from parts aligned with their reference; make it with `coe-experts "
            "reference`, and train with --board, whose rules name it"
        )
    with computing(plan.threads), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(plan.seed)
        network = kind.skeleton(expert)
        assert isinstance(network, GoodNetwork)
        if plan.init is not None:
            load_matching(network, plan.init)
        names, images, remarks = _aligned(kind, expert, plan, plan.reference)
        return _learned(network, expert, plan, (names, images, remarks), progress)


def _aligned(
    kind: ModuleKind, expert: Expert, plan: TrainingPlan, reference: Reference
) -> tuple[list[str], torch.Tensor, list[str]]:
    """Return names and inputs (n, 3, S, S) uint8 of the good parts that fit the reference, and why others do not."""
    if not plan.data.is_dir():
        raise ConfigError(f"{plan.data}: give a folder with images of good parts")
    paths = sorted(path for path in plan.data.rglob("*") if path.suffix.lower() in SUFFIXES)
    names, inputs, remarks = [], [], []
    for path in paths:
        name = path.relative_to(plan.data).as_posix()
        prepared = kind.compare(_pixels(path), reference, expert)  # type: ignore[attr-defined]
        assert isinstance(prepared, PreparedPair)
        if prepared.doubt:
            remarks.append(f"left out: {name}: {prepared.doubt}")
        else:
            names.append(name)
            inputs.append(prepared.pixels)
    if len(inputs) < FEW or len(inputs) < len(paths) / 2:
        why = f", such as {remarks[0].removeprefix('left out: ')}" if remarks else ""
        raise ConfigError(
            f"{plan.data}: {len(inputs)} of {len(paths)} images fit the reference{why}; give at least {FEW} good "
            "parts, and better 10"
        )
    return names, torch.from_numpy(np.stack(inputs)), remarks


def _pixels(path: Path) -> Image:
    try:
        return decode(path)
    except ImageError as error:
        raise ConfigError(f"'{path}' {error}; remove it from the folder of good parts") from error


def _learned(
    network: GoodNetwork,
    expert: Expert,
    plan: TrainingPlan,
    parts: tuple[list[str], torch.Tensor, list[str]],
    progress: Progress,
) -> Trained:
    names, images, remarks = parts
    groups = images.split(_BATCH)
    pixels = torch.cat([network.pixels(group) for group in groups])
    features = torch.cat([network.features(group) for group in groups])
    kept = list(range(len(names)))
    largest = _left_out(pixels, features)
    if strange := _strange(largest):
        remarks += [f"left out: {names[place]}: it looks unlike the other good parts" for place in strange]
        kept = [place for place in kept if place not in strange]
        pixels, features = pixels[kept], features[kept]
        largest = _left_out(pixels, features)
    centre, deviation = largest.mean(axis=0), np.maximum(largest.std(axis=0, ddof=1), 1e-3)
    deviations = ((largest - centre) / deviation).max(axis=1)
    wanted = WANTED if plan.false_calls is None else plan.false_calls
    limit = float(deviations.mean() + tolerance_factor(len(kept), wanted) * deviations.std(ddof=1))
    called = Rate(int((deviations > limit).sum()), len(kept))
    of_pixel, of_feature = _statistics(pixels, _PIXEL_FLOOR**2), _statistics(features, _feature_floor(features))
    state = dict(network.state_dict())
    state |= {"pixel_mean": of_pixel.mean, "pixel_log_spread": of_pixel.spread.log()}
    state |= {"feature_mean": of_feature.mean, "feature_log_spread": of_feature.spread.log()}
    numbers = {"centre": centre, "deviation": deviation, "limit": np.array([limit])}
    state |= {name: torch.from_numpy(value).float() for name, value in numbers.items()}
    metrics = {
        "good_parts": float(len(kept)),
        "wanted_false_calls": wanted,
        "called": float(called.events),
        "called_at_most": called.upper(),
        "limit": limit,
        "left_out": float(len(remarks)),
    }
    progress(plan.epochs, plan.epochs, metrics)
    return Trained(state=state, labels=expert.labels, metrics=metrics, remarks=tuple(remarks))


def _left_out(pixels: torch.Tensor, features: torch.Tensor) -> Numbers:
    """Return for each part (n) the largest deviation of its pixels and features from the other parts, (n, 2)."""
    floor = _feature_floor(features)
    columns = [
        _each_without(pixels, of_pixels, _PIXEL_FLOOR**2),
        _each_without(features, of_features, floor),
    ]
    return np.stack(columns, axis=1)


def _each_without(parts: torch.Tensor, judge: Judge, floor: float) -> Numbers:
    number, whole, squares = len(parts), parts.double().sum(dim=0), parts.double().square().sum(dim=0)
    largest = []
    for part in parts:
        mean = (whole - part) / (number - 1)
        variance = (squares - part.double().square()) / (number - 1) - mean.square()
        spread = (variance.clamp_min(0) * (number - 1) / (number - 2) + floor).sqrt()
        largest.append(float(judge(part[None], mean.float(), spread.float()).max()))
    return np.array(largest)


def _statistics(parts: torch.Tensor, floor: float) -> Statistics:
    return Statistics(parts.mean(dim=0), (parts.var(dim=0) + floor).sqrt())


def _feature_floor(features: torch.Tensor) -> float:
    """Return the mean variance of all features: a feature that hardly varies in a few parts may vary in the next."""
    return float(features.var(dim=0).mean())


def _strange(largest: Numbers) -> list[int]:
    """Return the parts, by place, that deviate far more than the others."""
    middle = np.median(largest, axis=0)
    typical = np.maximum(1.4826 * np.median(np.abs(largest - middle), axis=0), 0.1)
    return np.flatnonzero(((largest - middle) / typical).max(axis=1) > _STRANGE).tolist()
