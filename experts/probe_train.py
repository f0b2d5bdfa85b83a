"""Learning a `probe` from a labelled folder: features once, then a head in less than a second.

Without folders `train`, `val` or `test` every picture is learned from, and every picture measures: in cross-validation
each is judged by a head that learned without it. Cross-validation chooses nothing but how sure the scores are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional

from coe.board.photo_labels import Answers
from coe.core import Expert
from coe.errors import ConfigError, list_few
from coe.rates import tolerance_factor
from coe.store.kinds import Progress, Trained, TrainingPlan
from coe.store.skeletons import bare_skeleton
from experts import series, two_groups
from experts.backbone import BackboneKind, load_backbone
from experts.classifier_train import HeldAnswers, computing
from experts.labelled_folder import LabelledImages, read
from experts.logistic import Chosen, LinearHead, Numbers, Places, calibrated, judged_by_others, mean_loss
from experts.probe_network import EXAMPLES, ProbeNetwork, distances_of
from experts.proof import unproven_answers
from experts.taken import DataPart, TakenPictures

TURNS = 8
"""In how many turns, 45 degrees apart, each picture is learned if parts lie turned."""
_UNLIKE = 0.01
"""The share of pictures of this part that may be in doubt because they look unlike all others."""
_STRANGE = 6.0
"""A picture is named whose distance from all others, as a logarithm, is as many deviations above the usual one."""
BATCH = 16
_FEW = 10
_SHOWN = 3
_OF_FEW = "none is judged by its like, so the figures are of so few parts"


@dataclass(frozen=True, slots=True)
class Learning:
    """What is learned from: images (n, 3, S, S) uint8, label numbers (n,), and numbers (n,) that one picture's share.

    `good` tells which show good parts.
    """

    images: torch.Tensor
    labels: Places
    groups: Places
    good: Chosen


Features = Callable[[Chosen, Places], Numbers]
"""Gives features (n, d) of all pictures that are learned from, where some of them, a mask (n,), are unknown.

Pictures of one number (n,) show one part: none is compared with its like.
"""


@dataclass(frozen=True, slots=True)
class _Seen:
    features: Numbers
    labels: Places
    groups: Places


def seen_alone(
    see: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor], module: ProbeNetwork, learning: Learning
) -> Features:
    """Return the features of pictures of which none depends on the others, as `see` gives them of a batch."""
    features = torch.cat([see(module, batch) for batch in learning.images.split(BATCH)]).double().numpy()
    return lambda *_: features


def train(
    kind: BackboneKind,
    expert: Expert,
    plan: TrainingPlan,
    progress: Progress,
    look: Callable[[ProbeNetwork, Learning], Features],
    given: int = 0,
) -> Trained:
    """Learn from what `look` sees, whose last `given` features have a scale of their own.

    Raises ConfigError as `labelled_folder.read`, for frozen parts, and for labels with the same pictures."""
    if plan.freeze:
        raise ConfigError(f"expert '{expert.id}': all but the head of kind '{kind.name}' is frozen; leave 'freeze' out")
    with computing(plan.threads), torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(plan.seed)
        module = bare_skeleton(kind, expert)
        assert isinstance(module, ProbeNetwork)
        load_backbone(module, kind, expert, plan.init)
        module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        taken = TakenPictures(plan.data, plan.bits)
        parts = read(kind, expert, replace(plan, held_out=0.0), taken)
        _refuse_same(taken, expert)
        _refuse_alike(taken, expert)
        learning = _joined(parts.training, parts.choosing)
        turns, count = TURNS if plan.turned else 1, len(expert.labels)
        labels, groups = (np.tile(one, turns) for one in (learning.labels.numpy(), _numbers(taken)))
        good = np.isin(labels, [expert.labels.index(one) for one in Answers.of_labels(expert).good])
        features = look(module, Learning(turned(learning.images, turns), labels, groups, good))
        nothing = np.zeros(len(labels), np.bool_)
        groups = _of_parts(features(nothing, groups), learning.labels.numpy(), groups)
        others = judged_by_others(lambda out: features(out, groups), labels, groups, count, plan.seed, given)
        temperature, bias = calibrated(others, labels)
        seen = _Seen(features(nothing, groups), labels, groups)
        head = LinearHead.learned(seen.features, labels, count, given)
        honest = replace(head, weights=head.weights / temperature, bias=head.bias / temperature + bias)
        distances = _fill(module, honest, seen)
        if len(parts.held_out.labels):
            measured, truth = _outputs(kind, module, parts.held_out.images).numpy(), parts.held_out.labels.numpy()
            logits, far = measured[:, :-1], measured[:, -1] > 1
        else:
            count = len(learning.labels)  # the first turn of each picture
            logits, truth, far = others[:count] / temperature + bias, labels[:count], distances[:count] > 1
    answers = HeldAnswers(torch.from_numpy(truth), torch.from_numpy(logits.argmax(axis=1)), mean_loss(logits, truth))
    metrics = {**answers.measures(), "held_out": float(len(truth)), "in_doubt": float(far.mean())}
    progress(plan.epochs, plan.epochs, metrics)
    deepest = kind.architecture.channels[kind.stages[-1]]
    remarks = _remarks(taken, expert, distances[: len(learning.labels)], seen.features, deepest)
    return Trained(
        {name: value.contiguous().clone() for name, value in module.state_dict().items()},
        expert.labels,
        metrics,
        (*remarks, *answers.unseen_labels(expert.labels)),
        taken.sentence(),
        learned=taken.learned,
        preprocessing=expert.preprocessing or kind.preprocessing,
        unproven=unproven_answers(truth, logits.argmax(axis=1)),
    )


def turned(images: torch.Tensor, turns: int) -> torch.Tensor:
    """Return images (n, 3, S, S) uint8 in so many turns, (turns * n, 3, S, S): first as they are."""
    result = [images]
    for turn in range(1, turns):
        angle = 2 * math.pi * turn / turns
        rotation = torch.tensor([[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]])
        grid = functional.affine_grid(rotation.expand(len(images), 2, 3), list(images.shape), align_corners=False)
        moved = functional.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
        result.append(moved.round().clamp(0, 255).to(torch.uint8))
    return torch.cat(result)


def _joined(one: LabelledImages, other: LabelledImages) -> LabelledImages:
    return LabelledImages(torch.cat((one.images, other.images)), torch.cat((one.labels, other.labels)))


def _numbers(taken: TakenPictures) -> Places:
    """Return a number for each picture that is learned from, the same for identical ones."""
    order = (DataPart.TRAINING, DataPart.CHOOSING)
    digests = [picture.digests.pixels for part in order for picture in taken.pictures if picture.part is part]
    known = {digest: number for number, digest in enumerate(dict.fromkeys(digests))}
    return np.array([known[digest] for digest in digests], np.intp)


def _of_parts(features: Numbers, labels: Places, groups: Places) -> Places:
    """Return the numbers of pictures and their turns (m,), the same for a series of a label; `labels` are (n,)."""
    joined = groups.copy()
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        if (parts := series.parts_of(series.looks_of(features[places]))) is not None:
            for part in np.unique(parts):
                own = joined[places[parts == part]]
                joined[np.isin(joined, own)] = own.min()
    return joined


def _outputs(kind: BackboneKind, module: ProbeNetwork, images: torch.Tensor) -> torch.Tensor:
    return torch.cat([kind.forward(module, batch) for batch in images.split(BATCH)])


def _fill(module: ProbeNetwork, head: LinearHead, seen: _Seen) -> Numbers:
    """Put what was learned into the network; return how far each picture is from the others (n,), 1 at the limit."""
    rows = torch.from_numpy((seen.features - head.centre) / head.deviation).float()
    module.centre.copy_(torch.from_numpy(head.centre))
    module.scale.copy_(torch.from_numpy(1 / head.deviation))
    module.weights.copy_(torch.from_numpy(head.weights))
    module.bias.copy_(torch.from_numpy(head.bias))
    chosen = np.concatenate([_spread_out(rows, seen, label) for label in range(len(module.bias))])
    module.examples.copy_(rows[chosen])
    apart = distances_of(rows, module.examples.float()).numpy()
    apart[seen.groups[:, None] == seen.groups[chosen][None, :]] = np.inf
    nearest = apart.min(axis=1)
    logs = np.log(nearest.clip(1e-6))
    usual = logs[~_strange(logs)]
    limit = math.exp(usual.mean() + tolerance_factor(len(usual), _UNLIKE) * usual.std(ddof=1))
    module.limit.fill_(limit)
    return np.asarray(nearest / limit)


def _spread_out(rows: torch.Tensor, seen: _Seen, label: int) -> Places:
    """Return EXAMPLES places of a label's pictures: each as far as may be from those before (a greedy core set)."""
    places = np.flatnonzero(seen.labels == label)
    chosen = [0]
    nearest = distances_of(rows[places], rows[places[:1]])[:, 0]
    while len(chosen) < EXAMPLES:
        chosen.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, distances_of(rows[places], rows[places[chosen[-1:]]])[:, 0])
    return np.asarray(places[chosen])


def _strange(logs: Numbers) -> Numbers:
    """Tell which pictures (n,) are far from all others, by the median and the median absolute deviation."""
    middle = float(np.median(logs))
    deviation = 1.4826 * float(np.median(np.abs(logs - middle)))
    return np.asarray(logs > middle + _STRANGE * max(deviation, 0.05))


def _refuse_same(taken: TakenPictures, expert: Expert) -> None:
    """Raise ConfigError if all pictures of a label stand under another label as well."""
    of_label = {label: {p.digests.pixels for p in taken.pictures if p.label == label} for label in expert.labels}
    for label, digests in of_label.items():
        for other, theirs in of_label.items():
            if label != other and digests <= theirs:
                raise ConfigError(
                    f"expert '{expert.id}': all pictures of '{label}' stand under '{other}' as well, so nothing tells "
                    "the two apart; take them out of the folder in which they are wrong"
                )


def _refuse_alike(taken: TakenPictures, expert: Expert) -> None:
    """Raise ConfigError for labels whose pictures are all the same one: no other could judge it."""
    learned = [p for p in taken.pictures if p.part in (DataPart.TRAINING, DataPart.CHOOSING)]
    given = {label: [p.digests.pixels for p in learned if p.label == label] for label in expert.labels}
    if alike := [f"'{label}' ({len(digests)})" for label, digests in given.items() if len(set(digests)) == 1]:
        raise ConfigError(
            f"expert '{expert.id}': all pictures of {' and '.join(alike)} are the same one; give different ones, of as "
            "many parts"
        )


def _remarks(taken: TakenPictures, expert: Expert, distances: Numbers, features: Numbers, deepest: int) -> list[str]:
    """Return what to say of pictures by their features (n, d); the deepest stage has so many channels."""
    learned = [p for part in (DataPart.TRAINING, DataPart.CHOOSING) for p in taken.pictures if p.part is part]
    remarks = list(taken.identical())
    strange = [p.path for p, far in zip(learned, _strange(np.log(distances.clip(1e-6))), strict=True) if far]
    if strange:
        names = list_few(map(taken.name, strange), _SHOWN)
        remarks.append(f"{names}: unlike all other pictures; is this the same part, with the same camera?")
    good = Answers.of_labels(expert).good
    few, middle = [], features.shape[1] // 2  # means of channels, and then their largest values
    for label in expert.labels:
        places = [place for place, one in enumerate(learned) if one.label == label]
        if label in good:
            names = [taken.name(learned[place].path) for place in places]
            # Not as `series.looks_of`: what tells two groups apart best spreads most, and would count least. Earlier
            # stages see colours of boards: 42 of 240 draws of parts on boards of any colour were named.
            remarks += two_groups.remarks(names, features[places][:, middle - deepest : middle], "nothing is wrong")
        parts = series.parts_of(series.looks_of(features[places]))
        remarks += series.remarks(parts, _OF_FEW, f" of '{label}'")
        if len(places) < _FEW:
            few.append(f"{len(places)} pictures of '{label}'")
    if few:
        remarks.append(f"only {', '.join(few)}: what else they look like is not known; give {_FEW}")
    return remarks
