"""Learning a `probe` from a labelled folder: features once, then a head in less than a second.

Without folders `train`, `val` or `test` every picture is learned from, and every picture measures: in cross-validation
each is judged by a head that learned without it. Cross-validation chooses nothing but how sure the scores are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional

from coe.board.photo_labels import Answers
from coe.core import Expert, Shown
from coe.errors import ConfigError, TooFewPictures
from coe.store.exam import Exam, ExamItem
from coe.store.kinds import Progress, Trained, TrainingPlan
from coe.store.skeletons import bare_skeleton
from experts import exam, patch_train, series, two_groups
from experts.backbone import BackboneKind, load_backbone
from experts.classifier_train import HeldAnswers, computing
from experts.labelled_folder import LabelledImages, read
from experts.logistic import Chosen, LinearHead, Numbers, Places, calibrated, judged_by_others, mean_loss
from experts.patch_deviations import LeftOut, Parts
from experts.patch_train import LearnedLook, see
from experts.probe_network import LEAST, MOST, ROWS, ProbeNetwork
from experts.proof import unproven_answers
from experts.taken import DataPart, TakenPictures

TURNS = 8
"""In how many turns, 45 degrees apart, each picture is learned if parts lie turned."""
_UNLIKE, _UNLIKE_POLAR = 0.01, 0.025
"""The share of good parts that may be in doubt because they look unlike all others; of parts that have a polarity."""
BATCH = 16
_FEW = 10
_OF_FEW = "none is judged by its like, so the figures are of so few parts"


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is learned from: images (n, 3, S, S) uint8, and what the backbone sees of them.

    `seen` are patches (n, G, G, channels) in halves of floats, `whole` (n, d) are pooled features. Names and label
    numbers are (n,).

    Pictures of one number in `groups` (n,) are one: copies, turns, or a series of one part. `good` tells which show
    good parts, `bad` which speak against one.
    """

    images: torch.Tensor
    names: list[str]
    labels: Places
    groups: Places
    good: Chosen
    seen: torch.Tensor
    whole: Numbers

    @property
    def bad(self) -> Chosen:
        return ~self.good

    def of(self, kept: Chosen) -> _Rows:
        """Return some of the rows."""
        names = [name for name, is_kept in zip(self.names, kept, strict=True) if is_kept]
        rows = torch.from_numpy(kept)
        labels, groups, good = (one[kept] for one in (self.labels, self.groups, self.good))
        return _Rows(self.images[rows], names, labels, groups, good, self.seen[rows], self.whole[kept])


def train(kind: BackboneKind, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
    """Learn from a labelled folder.

    Raises ConfigError as `labelled_folder.read`, for frozen parts, and for labels with the same pictures.
    """
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
        rows = _rows(kind, module, expert, plan, _joined(parts.training, parts.choosing), taken)
        remarks = _remarks(rows, expert, kind.architecture.channels[kind.stages[-1]])
        rows, left_out, named = _without_suspects(rows)
        look = _learned_parts(kind, module, plan, rows)
        head = _Head.learned(look, rows, expert, plan.seed)
        examined, items = _examined(kind, module, look, rows, head)
        module.parts.near.fill(examined.nearness)
        head.fill(module, [label in Answers.of_labels(expert).good for label in expert.labels])
        if len(parts.held_out.labels):
            measured = [kind.forward(module, batch) for batch in parts.held_out.images.split(BATCH)]
            logits, truth = torch.cat([one["logits"] for one in measured]).numpy(), parts.held_out.labels.numpy()
        else:
            first = np.arange(len(rows.labels)) < len(rows.labels) // (TURNS if plan.turned else 1)
            logits, truth = head.logits[first], rows.labels[first]
    answers = HeldAnswers(torch.from_numpy(truth), torch.from_numpy(logits.argmax(axis=1)), mean_loss(logits, truth))
    in_doubt = float((examined.called | examined.in_doubt).mean())
    metrics = {**answers.measures(), "held_out": float(len(truth)), "in_doubt": in_doubt}
    progress(plan.epochs, plan.epochs, metrics)
    is_surface = bool(items) and not any(item.item is Shown.MISSING for item in items)
    return Trained(
        {name: value.contiguous().clone() for name, value in module.state_dict().items()},
        expert.labels,
        metrics,
        (*taken.identical(), *remarks, *named, *answers.unseen_labels(expert.labels)),
        taken.sentence(),
        learned=taken.learned,
        preprocessing=expert.preprocessing or kind.preprocessing,
        unproven=unproven_answers(truth, logits.argmax(axis=1)),
        exam=Exam(items=items, is_surface=is_surface, left_out=left_out) if items or left_out else None,
    )


def _rows(
    kind: BackboneKind,
    module: ProbeNetwork,
    expert: Expert,
    plan: TrainingPlan,
    learning: LabelledImages,
    taken: TakenPictures,
) -> _Rows:
    turns = TURNS if plan.turned else 1
    images = turned(learning.images, turns)
    found = [see(kind, module, batch) for batch in images.split(BATCH)]
    seen = torch.cat([patches.half() for patches, _ in found])
    whole = torch.cat([pooled for _, pooled in found]).double().numpy()
    labels, groups = (np.tile(one, turns) for one in (learning.labels.numpy(), _numbers(taken)))
    groups = _of_parts(whole, learning.labels.numpy(), groups)
    order = (DataPart.TRAINING, DataPart.CHOOSING)
    names = [taken.name(picture.path) for part in order for picture in taken.pictures if picture.part is part]
    good = np.isin(labels, [expert.labels.index(one) for one in Answers.of_labels(expert).good])
    if not good.any():
        good = np.ones(len(labels), np.bool_)  # none speaks for a part: what is unlike all of them is in doubt
    return _Rows(images, names * turns, labels, groups, good, seen, whole)


def _without_suspects(rows: _Rows) -> tuple[_Rows, tuple[str, ...], list[str]]:
    """Return the rows without good pictures that look bad, the names of these, and remarks."""
    if not rows.bad.any():
        return rows, (), []
    names = list(dict.fromkeys(rows.names))  # the first turn of each picture
    first, good = rows.whole[: len(names)], rows.good[: len(names)]
    of_good = [names[place] for place in np.flatnonzero(good)]
    odd, remarks = patch_train.suspect(of_good, first[good], first[~good])
    left_out = tuple(of_good[place] for place in odd)
    kept = ~(np.isin(rows.names, left_out) & rows.good)
    return rows.of(kept), left_out, remarks


def _learned_parts(kind: BackboneKind, module: ProbeNetwork, plan: TrainingPlan, rows: _Rows) -> LearnedLook:
    """Learn what good parts look like, and write it into the network; raises TooFewPictures."""
    places = exam.evenly(list(np.flatnonzero(rows.good)), patch_train.MOST)
    numbers = rows.groups[places]
    if (different := len(np.unique(numbers))) < kind.least_of_label:
        raise TooFewPictures(f"{different} good parts are too few to compare with; give {kind.least_of_label}")
    names, whole = [rows.names[place] for place in places], torch.from_numpy(rows.whole[places])
    parts = Parts(names, rows.images[places], rows.seen[places].float(), whole, torch.from_numpy(numbers), None)
    unlike = _UNLIKE_POLAR if plan.polarity else _UNLIKE
    judge = LeftOut(parts, ROWS)
    return patch_train.learned_look(module.parts, parts, judge, patch_train.WANTED, unlike)


@dataclass(frozen=True, slots=True)
class _Head:
    """A linear head, and how it judges what it has not seen: `logits` (n, labels) of all rows, honest as `calibrated`.

    `features` (n, d + 1) are what it sees of the rows; `folds` are heads with the rows (n,) that each has not seen.
    """

    head: LinearHead
    temperature: float
    bias: Numbers
    logits: Numbers
    features: Numbers
    folds: list[tuple[Chosen, LinearHead]]
    labels: tuple[str, ...]

    @classmethod
    def learned(cls, look: LearnedLook, rows: _Rows, expert: Expert, seed: int) -> _Head:
        """Learn from the rows."""
        batches = (slice(first, first + BATCH) for first in range(0, len(rows.groups), BATCH))
        beyond = [look.deviations_of(rows.seen[batch].float(), rows.groups[batch]) for batch in batches]
        features = np.column_stack((rows.whole, np.concatenate(beyond).clip(LEAST, MOST)))
        count = len(expert.labels)
        logits, folds = judged_by_others(features, rows.labels, rows.groups, count, seed, given=1)
        temperature, bias = calibrated(logits, rows.labels)
        head = LinearHead.learned(features, rows.labels, count, given=1)
        return cls(head, temperature, bias, logits / temperature + bias, features, folds, expert.labels)

    def of(self, features: Numbers, groups: Places, rows: _Rows) -> Numbers:
        """Return the logits (m, labels) of pictures made of rows of groups (m,), by heads that know none of them."""
        logits = np.empty((len(features), len(self.bias)))
        for out, head in self.folds:
            own = np.isin(groups, rows.groups[out])
            logits[own] = head.logits(features[own])
        return logits / self.temperature + self.bias

    def without(self, label: int, rows: _Rows) -> Numbers:
        """Return the logits (m, labels) of the rows of a label, by a head that learned without this label."""
        kept, count = rows.labels != label, len(self.bias)
        logits = LinearHead.learned(self.features[kept], rows.labels[kept], count, given=1).logits(self.features[~kept])
        logits[:, label] = -np.inf
        return logits / self.temperature + self.bias

    def fill(self, module: ProbeNetwork, is_good: list[bool]) -> None:
        """Write the head into the network; `is_good` is of its labels."""
        module.centre.copy_(torch.from_numpy(self.head.centre))
        module.scale.copy_(torch.from_numpy(1 / self.head.deviation))
        module.weights.copy_(torch.from_numpy(self.head.weights / self.temperature))
        module.bias.copy_(torch.from_numpy(self.head.bias / self.temperature + self.bias))
        module.is_good.copy_(torch.tensor(is_good if any(is_good) else [True] * len(is_good)))


def _examined(
    kind: BackboneKind, module: ProbeNetwork, look: LearnedLook, rows: _Rows, head: _Head
) -> tuple[LearnedLook, tuple[ExamItem, ...]]:
    """Return how good parts look, the nearness tightened if too many missing parts pass, and the rows of the exam."""
    if not rows.bad.any():
        return look, ()
    good_labels = np.unique(rows.labels[rows.good])
    groups = look.parts.numbers.numpy()
    is_turned = len(np.unique(rows.names)) < len(rows.names)
    found = []
    for sheet in exam.sheets(look.parts.images, patch_train.unlike_edges(kind, module, look.parts)):
        if sheet.item is Shown.TURNED and is_turned:
            continue  # it learned that parts may lie so
        seen, whole = see(kind, module, sheet.images)
        own = groups[sheet.made_of]
        beyond = look.deviations_of(seen, own)
        features = np.column_stack((whole.double().numpy(), beyond.clip(LEAST, MOST)))
        passes = np.isin(head.of(features, own, rows).argmax(axis=1), good_labels) & (beyond <= look.limit)
        far = look.nearness.of_changed(features[:, :-1], own)
        found.append((sheet.item, np.where(passes, far, np.inf)))
    limit = look.nearness.limit
    for item, far in found:
        if item is Shown.MISSING:
            limit = exam.tightened(limit, list(far))
    items = [exam.graded(item, far <= limit) for item, far in found]
    bad = [label for label in np.unique(rows.labels) if label not in good_labels]
    for label in bad if len(bad) > 1 else ():
        own = rows.labels == label
        passes = np.isin(head.without(label, rows).argmax(axis=1), good_labels)
        passes &= (head.features[own, -1] <= look.limit) & (look.nearness.of_others(rows.whole[own]) <= limit)
        items.append(exam.graded(Shown.UNTAUGHT, passes, head.labels[label]))
    return replace(look, nearness=replace(look.nearness, limit=limit)), tuple(items)


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


def _remarks(rows: _Rows, expert: Expert, deepest: int) -> list[str]:
    """Return what to say of the pictures that are learned from; the deepest stage has so many channels."""
    remarks, few, middle = [], [], rows.whole.shape[1] // 2  # means of channels, and then their largest values
    count = len(dict.fromkeys(rows.names))
    for number, label in enumerate(expert.labels):
        places = np.flatnonzero(rows.labels[:count] == number)
        if rows.good[places].all() and rows.bad.any():
            names = [rows.names[place] for place in places]
            # Not as `series.looks_of`: what tells two groups apart best spreads most, and would count least. Earlier
            # stages see colours of boards: 42 of 240 draws of parts on boards of any colour were named.
            remarks += two_groups.remarks(names, rows.whole[places][:, middle - deepest : middle], "nothing is wrong")
        parts = series.parts_of(series.looks_of(rows.whole[places]))
        remarks += series.remarks(parts, _OF_FEW, f" of '{label}'")
        if len(places) < _FEW:
            few.append(f"{len(places)} pictures of '{label}'")
    if few:
        remarks.append(f"only {', '.join(few)}: what else they look like is not known; give {_FEW}")
    return remarks
