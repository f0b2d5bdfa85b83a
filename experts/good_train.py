"""Learning the kind `good` from a folder of good parts: means, spreads, and the limit for a wanted false-call rate.

Each part is judged by what the others show, so that the limit is not that of parts that were learned (leave-one-out).
The logarithms of their largest deviations are taken as normally distributed; the limit is their one-sided tolerance
limit, which holds the wanted rate with a confidence of 95 %. `called` of `good_parts` counts without
that assumption, and `called_at_most` is its bound (Clopper and Pearson).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from coe.comparing import left_out
from coe.comparing.alternates import best_of
from coe.core import Expert
from coe.errors import ConfigError, TooFewPictures
from coe.rates import Rate, extreme_deviation, tolerance_factor
from coe.store.kinds import Comparing, Image, ModuleKind, Progress, Reference, Trained, TrainingPlan
from experts import good_parts
from experts.classifier_train import computing
from experts.good_network import GoodNetwork, of_features, of_pixels
from experts.pair import PairInput
from experts.taken import TakenPictures
from experts.trainers import load_matching

WANTED = 0.05
"""The false-call rate that is wanted if the plan does not say it."""
FEW = 5
"""With fewer good parts nothing can be said of the next."""
ADVISED = 10
"""With fewer good parts training says that the limit is wide."""
PIXEL_FLOOR = 12.0
"""Grey levels that every pixel may differ, as by the noise of a camera and of its alignment."""
_STRANGE = 0.05
"""A part is left out if an expert that learned from the others, and may call such a share of good parts, calls it."""
MOST_STRANGE = 0.25
"""The largest share of parts that are left out in this way: what more parts show is how good parts are."""
_BATCH = 16

Numbers = NDArray[np.float64]
Judge = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What good parts show at each place: `mean` and `spread`, each of the shape of one part."""

    mean: torch.Tensor
    spread: torch.Tensor


@dataclass(frozen=True, slots=True)
class Scale:
    """How parts deviate: of their largest deviations (n, 2) mean and standard deviation, (2,), and all in these units.

    `deviations` is (n,): for each part that of its pixels or of its features, whichever is larger.
    """

    centre: Numbers
    deviation: Numbers
    deviations: Numbers

    @classmethod
    def of(cls, largest: Numbers, usual: Numbers | None = None, worth: int = 0, *, extremes: bool = False) -> Scale:
        """Return the scale of parts with these largest deviations, (n, k).

        `usual` (k,) are standard deviations that are known beforehand, and count as those of `worth` further parts
        would: a moderated variance (Smyth, 2004), which is less a matter of chance than that of a few parts. Of
        `extremes` the deviations are those of Gumbel's distribution.
        """
        centre = largest.mean(axis=0)
        variance = extreme_deviation(largest.T) ** 2 if extremes else largest.var(axis=0, ddof=1)
        if usual is not None:
            variance = (worth * usual**2 + (len(largest) - 1) * variance) / (worth + len(largest) - 1)
        deviation = np.maximum(np.sqrt(variance), 1e-3)
        return cls(centre, deviation, ((largest - centre) / deviation).max(axis=1))

    def deviation_of(self, largest: Numbers) -> float:
        """Return the deviation of a further part, whose largest deviations are (2,)."""
        return float(((largest - self.centre) / self.deviation).max())

    def limit(self, share: float) -> float:
        """Return the deviation that at most a share of good parts exceeds, with a confidence of 95 %."""
        factor = tolerance_factor(len(self.deviations), share)
        return float(self.deviations.mean() + factor * self.deviations.std(ddof=1))


@dataclass(frozen=True, slots=True)
class _Parts:
    """The inputs (3, S, S) uint8, by name, of the good parts that fit one reference best."""

    reference: str
    inputs: dict[str, Image] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Look:
    """What the good parts of one reference tell: tensors by name, the limit, and how many of them it calls.

    `strange` are the parts that were left out, with the reason, and `remarks` are for people. `reference` is its id.
    """

    reference: str
    state: dict[str, torch.Tensor]
    limit: float
    called: Rate
    strange: dict[str, str]
    remarks: tuple[str, ...] = ()


def train(kind: ModuleKind, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
    """Learn from the images in the folder of the plan; `plan.init` gives the frozen layers, else they are random.

    Raises ConfigError without a reference, for frozen parts, for too few good parts, and if most do not fit.
    """
    if plan.freeze:
        raise ConfigError(f"expert '{expert.id}': nothing but the statistics of this kind learns; leave 'freeze' out")
    reference = reference_of(expert, plan)
    with computing(plan.threads), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(plan.seed)
        network = kind.skeleton(replace(expert, alternates=len(reference.alternates)))
        assert isinstance(network, GoodNetwork)
        if plan.init is not None:
            load_matching(network, plan.init)
        taken = TakenPictures(plan.data)
        parts, unfit = _aligned(kind, expert, plan, reference, taken)
        looks = [_look(network, one, wanted_of(plan)) for one in parts]
        trained = together(expert, wanted_of(plan), looks, unfit)
        progress(plan.epochs, plan.epochs, trained.metrics)
        state, remarks = network.state_dict() | trained.state, (*trained.remarks, *taken.identical())
        trained = replace(trained, state=state, remarks=remarks, in_frame=True)
        return replace(trained, took=taken.sentence(), learned=taken.learned)


def reference_of(expert: Expert, plan: TrainingPlan) -> Reference:
    """Return the only reference of the plan; raises ConfigError if there is none, or if there are several."""
    if not plan.references:
        raise ConfigError(
            f"expert '{expert.id}' learns from parts aligned with their reference; make it with `coe-experts "
            "reference`, and train with --board, whose rules name it"
        )
    first, *others = plan.references.values()
    if any(other is not first for other in others):
        raise ConfigError(
            f"expert '{expert.id}' learns in the frame of one reference, and its components have several "
            f"({', '.join(plan.references)}); write the same `reference: NAME` in each of them"
        )
    return first


def _aligned(
    kind: ModuleKind, expert: Expert, plan: TrainingPlan, reference: Reference, taken: TakenPictures
) -> tuple[list[_Parts], dict[str, str]]:
    """Return the good parts that fit the reference, for each of its alternates, and why others do not."""
    assert isinstance(kind, Comparing)
    looks, unfit = [_Parts(one.id) for one in reference.alternates], {}
    for _, path in good_parts.pictures(expert, plan):
        name, image = path.relative_to(plan.data).as_posix(), good_parts.pixels(path, plan, taken)
        prepared = kind.compare(image, best_of(image, reference.alternates), expert)
        assert isinstance(prepared, PairInput)
        if prepared.doubt:
            unfit[name] = prepared.doubt
        else:
            looks[prepared.place].inputs[name] = prepared.pixels
    fitting = sum(len(parts.inputs) for parts in looks)
    left_out.check(fitting, unfit)
    for parts in looks:
        if len(parts.inputs) < FEW:
            others = "".join(f", {name} not ({reason})" for name, reason in list(unfit.items())[:1])
            fit = "the reference" if len(looks) == 1 else f"'{parts.reference}' best"
            raise TooFewPictures(
                f"{plan.data}: {len(parts.inputs)} of {fitting + len(unfit)} images fit {fit}{others}; give at "
                f"least {FEW} good parts, and better {ADVISED}"
            )
    return looks, unfit


def together(expert: Expert, wanted: float, looks: Sequence[Look], unfit: Mapping[str, str]) -> Trained:
    """Return what an expert learned of all alternates; its state holds the tensors of the looks alone.

    `unfit` says why parts fit none of them. Raises ConfigError if too many parts are left out.
    """
    without = {**unfit, **{name: reason for look in looks for name, reason in look.strange.items()}}
    kept = sum(look.called.trials for look in looks)
    left_out.check(kept, without)
    remarks = [f"left out: {name}: {reason}" for name, reason in without.items()]
    for look in looks:
        if look.called.trials < ADVISED:
            of = (f" of '{look.reference}'" if look.reference else " of a look") if len(looks) > 1 else ""
            remarks.append(
                f"only {look.called.trials} good parts{of}: a limit from so few is wide, and defects may pass; give "
                f"{ADVISED} or more"
            )
        remarks += look.remarks
    # What was left out as unlike is called, so that if it is good, the expert calls its like as well.
    strange = sum(len(look.strange) for look in looks)
    called = Rate(sum(look.called.events for look in looks) + strange, kept + strange)
    metrics = {
        "good_parts": float(kept),
        "wanted_false_calls": wanted,
        "called": float(called.events),
        "called_at_most": called.upper(),
        "limit": max(look.limit for look in looks),
        "left_out": float(len(without)),
    }
    state = {name: torch.cat([look.state[name] for look in looks]) for name in looks[0].state}
    return Trained(state, expert.labels, metrics, tuple(remarks))


def wanted_of(plan: TrainingPlan) -> float:
    """Return the false-call rate that is wanted."""
    return WANTED if plan.false_calls is None else plan.false_calls


def _look(network: GoodNetwork, parts: _Parts, wanted: float) -> Look:
    """Learn how the good parts of one reference look."""
    groups = torch.from_numpy(np.stack(list(parts.inputs.values()))).split(_BATCH)
    pixels = torch.cat([network.pixels(group) for group in groups])
    features = torch.cat([network.features(group) for group in groups])
    kept = typical(len(pixels), lambda places: _left_out(pixels[places], features[places]))
    strange = {
        name: "it looks unlike the other good parts" for place, name in enumerate(parts.inputs) if place not in kept
    }
    pixels, features = pixels[kept], features[kept]
    scale = Scale.of(_left_out(pixels, features))
    limit = scale.limit(wanted)
    of_pixel, of_feature = statistics(pixels, PIXEL_FLOOR**2), statistics(features, _feature_floor(features))
    state = {"pixel_mean": of_pixel.mean, "pixel_log_spread": of_pixel.spread.log()}
    state |= {"feature_mean": of_feature.mean, "feature_log_spread": of_feature.spread.log()}
    numbers = {"centre": scale.centre, "deviation": scale.deviation, "limit": np.array([limit])}
    state |= {name: torch.from_numpy(value).float() for name, value in numbers.items()}
    return Look(parts.reference, state, limit, Rate(int((scale.deviations > limit).sum()), len(kept)), strange)


def _left_out(pixels: torch.Tensor, features: torch.Tensor) -> Numbers:
    """Return for each part (n) the largest deviation of its pixels and features from the other parts, (n, 2)."""
    floor = _feature_floor(features)
    columns = [each_without(pixels, of_pixels, PIXEL_FLOOR**2), each_without(features, of_features, floor)]
    return np.stack(columns, axis=1)


def each_without(parts: torch.Tensor, judge: Judge, floor: float) -> Numbers:
    """Return the largest deviation (n) of each part from the others, as `judge` sees it."""
    number, whole, squares = len(parts), parts.double().sum(dim=0), parts.double().square().sum(dim=0)
    largest = []
    for part in parts:
        mean = (whole - part) / (number - 1)
        variance = (squares - part.double().square()) / (number - 1) - mean.square()
        spread = (variance.clamp_min(0) * (number - 1) / (number - 2) + floor).sqrt()
        largest.append(float(judge(part[None], mean.float(), spread.float()).max()))
    return np.array(largest)


def statistics(parts: torch.Tensor, floor: float) -> Statistics:
    """Return mean and spread of parts, to whose variances `floor` is added."""
    return Statistics(parts.mean(dim=0), (parts.var(dim=0) + floor).sqrt())


def _feature_floor(features: torch.Tensor) -> float:
    """Return the mean variance of all features: a feature that hardly varies in a few parts may vary in the next."""
    return float(features.var(dim=0).mean())


def typical(
    number: int, largest_of: Callable[[list[int]], Numbers], strange: float = _STRANGE, least: Numbers | float = 0.0
) -> list[int]:
    """Return the places of those of a number of parts that are not strange.

    `largest_of` gives the largest deviations (n, k) of the parts at some places, each from the others of these. One
    part after another is taken out, the strangest first, and judged by the others without it: a bad part widens the
    spread that it is judged by, and the limit. It is strange beyond the limit for a share `strange` of good parts, if
    it deviates by `least`, a number for all or (k,), more than any other.
    """
    kept = list(range(number))
    fewest = max(FEW, math.ceil((1 - MOST_STRANGE) * number))
    largest = largest_of(kept)
    while len(kept) > fewest:
        strangest = int(Scale.of(largest).deviations.argmax())
        others = kept[:strangest] + kept[strangest + 1 :]
        of_others = largest_of(others)
        scale = Scale.of(of_others)
        farther = largest[strangest] - of_others.max(axis=0) >= least
        if scale.deviation_of(largest[strangest]) <= scale.limit(strange) or not farther.any():
            break
        kept, largest = others, of_others
    return kept
