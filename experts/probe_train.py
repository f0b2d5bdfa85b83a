"""Learning a `probe` from a labelled folder: features once, then a head in less than a second.

Without folders `train`, `val` or `test` every picture is learned from, and every picture measures: in cross-validation
each is judged by a head that learned without it. Cross-validation chooses nothing but how sure the scores are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from coe.board.photo_labels import Answers
from coe.core import Expert, Shown
from coe.errors import ConfigError
from coe.pictures.photographs import Purpose
from coe.store.exam import ExamItem
from coe.store.kinds import Progress, Trained, TrainingPlan
from coe.store.skeletons import bare_skeleton
from experts import beside_good, exam, series, two_groups
from experts.backbone import BackboneKind, load_backbone
from experts.beside_good import BATCH, TURNS, Pictures, Rows
from experts.classifier_train import HeldAnswers
from experts.labelled_folder import LabelledImages, read
from experts.logistic import Chosen, LinearHead, Numbers, Places, calibrated, judged_by_others, mean_loss
from experts.patch_train import LearnedLook
from experts.probe_network import LEAST, MOST, ProbeNetwork
from experts.proof import unproven_answers
from experts.taken import TakenPictures
from experts.trainers import computing

_FEW = 10
_OF_FEW = "no similar part judges it, so the figures come from few parts"


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
        learning, turns = _joined(parts[Purpose.LEARN], parts[Purpose.VERIFY]), TURNS if plan.turned else 1
        pictures = Pictures.of_data(learning, taken, Purpose.LEARN, Purpose.VERIFY)
        rows = beside_good.rows_of(kind, module, expert, pictures, turns)
        remarks = _remarks(rows, expert, kind.architecture.channels[kind.stages[-1]])
        left_out, named = beside_good.suspects(rows)
        rows = rows.of(~(np.isin(rows.names, left_out) & rows.good))
        look = beside_good.learned_parts(module.parts, rows, kind.least_of_label)
        head = _Head.learned(look, rows, expert, plan.seed)
        look, items = _examined(kind, module, look, rows, head, turns)
        module.parts.near.fill(look.nearness)
        head.fill(module, [label in Answers.of_labels(expert).good for label in expert.labels])
        if len(parts[Purpose.TEST].labels):
            measured = [kind.forward(module, batch) for batch in parts[Purpose.TEST].images.split(BATCH)]
            logits, truth = torch.cat([one["logits"] for one in measured]).numpy(), parts[Purpose.TEST].labels.numpy()
        else:
            first = np.arange(len(rows.labels)) < len(rows.labels) // turns
            logits, truth = head.logits[first], rows.labels[first]
    answers = HeldAnswers(torch.from_numpy(truth), torch.from_numpy(logits.argmax(axis=1)), mean_loss(logits, truth))
    metrics = {**answers.measures(), "held_out": float(len(truth)), "in_doubt": beside_good.in_doubt(look)}
    metrics |= taken.measures(expert)
    progress(plan.epochs, plan.epochs, metrics)
    return Trained(
        {name: value.contiguous().clone() for name, value in module.state_dict().items()},
        expert.labels,
        metrics,
        (*taken.identical(), *remarks, *named, *answers.unseen_labels(expert.labels)),
        taken.sentence(),
        learned=taken.learned,
        preprocessing=expert.preprocessing or kind.preprocessing,
        unproven=unproven_answers(truth, logits.argmax(axis=1)),
        exam=beside_good.exam_of(items, left_out),
    )


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
    def learned(cls, look: LearnedLook, rows: Rows, expert: Expert, seed: int) -> _Head:
        """Learn from the rows."""
        batches = (slice(first, first + BATCH) for first in range(0, len(rows.groups), BATCH))
        beyond = [look.deviations_of(rows.seen[batch].float(), rows.groups[batch]) for batch in batches]
        features = np.column_stack((rows.whole, np.concatenate(beyond).clip(LEAST, MOST)))
        count = len(expert.labels)
        logits, folds = judged_by_others(features, rows.labels, rows.groups, count, seed, given=1)
        temperature, bias = calibrated(logits, rows.labels)
        head = LinearHead.learned(features, rows.labels, count, given=1)
        return cls(head, temperature, bias, logits / temperature + bias, features, folds, expert.labels)

    def of(self, features: Numbers, groups: Places, rows: Rows) -> Numbers:
        """Return the logits (m, labels) of pictures made of rows of groups (m,), by heads that know none of them."""
        logits = np.empty((len(features), len(self.bias)))
        for out, head in self.folds:
            own = np.isin(groups, rows.groups[out])
            logits[own] = head.logits(features[own])
        return logits / self.temperature + self.bias

    def without(self, label: int, rows: Rows) -> Numbers:
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
    kind: BackboneKind, module: ProbeNetwork, look: LearnedLook, rows: Rows, head: _Head, turns: int
) -> tuple[LearnedLook, list[ExamItem]]:
    """Return how good parts look, the nearness tightened if too many missing parts pass, and the rows of the exam."""
    if not rows.bad.any():
        return look, []
    good_labels = np.unique(rows.labels[rows.good])

    def says_good(_: torch.Tensor, features: Numbers, own: Places) -> Chosen:
        return np.isin(head.of(features, own, rows).argmax(axis=1), good_labels)

    look, items = beside_good.examined(kind, module, look, says_good, shows_turned=turns == 1)
    bad, limit = [label for label in np.unique(rows.labels) if label not in good_labels], look.nearness.limit
    for label in bad if len(bad) > 1 else ():
        own = rows.labels == label
        passes = np.isin(head.without(label, rows).argmax(axis=1), good_labels)
        passes &= (head.features[own, -1] <= look.limit) & (look.nearness.of_others(rows.whole[own]) <= limit)
        items.append(exam.graded(Shown.UNTAUGHT, passes, head.labels[label]))
    return look, items


def _joined(one: LabelledImages, other: LabelledImages) -> LabelledImages:
    return LabelledImages(torch.cat((one.images, other.images)), torch.cat((one.labels, other.labels)))


def _refuse_same(taken: TakenPictures, expert: Expert) -> None:
    """Raise ConfigError if all pictures of a label stand under another label as well."""
    of_label = {label: {p.digests.pixels for p in taken.pictures if p.label == label} for label in expert.labels}
    for label, digests in of_label.items():
        for other, theirs in of_label.items():
            if label != other and digests <= theirs:
                raise ConfigError(
                    f"expert '{expert.id}': all pictures of '{label}' are also in '{other}', so the two cannot be "
                    "distinguished; remove them from the wrong folder"
                )


def _refuse_alike(taken: TakenPictures, expert: Expert) -> None:
    """Raise ConfigError for labels whose pictures are all the same one: no other could judge it."""
    learned = [p for p in taken.pictures if p.part in (Purpose.LEARN, Purpose.VERIFY)]
    given = {label: [p.digests.pixels for p in learned if p.label == label] for label in expert.labels}
    if alike := [f"'{label}' ({len(digests)})" for label, digests in given.items() if len(set(digests)) == 1]:
        raise ConfigError(
            f"expert '{expert.id}': all pictures of {' and '.join(alike)} are the same picture; give "
            "different ones, of different parts"
        )


def _remarks(rows: Rows, expert: Expert, deepest: int) -> list[str]:
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
        remarks.append(f"only {', '.join(few)}: too few to show how such parts vary; give {_FEW}")
    return remarks
