"""Learning the kind `patch` from a folder of good parts: a bank of patches, and the limit for a wanted false-call rate.

Each part is judged by the rows of others (leave-one-out), so that the limit is not that of parts that were learned.
The next good part exceeds the limit with the wanted chance (a prediction limit): limits of a confidence of 95 % let
most defects pass beside odd good parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from coe.comparing import left_out
from coe.comparing.alternates import best_of
from coe.core import Expert, Shown
from coe.errors import ConfigError, TooFewPictures
from coe.helpers.rates import Rate, extreme_factor, prediction_factor
from coe.pictures.photographs import Purpose
from coe.store.exam import Exam, ExamItem, added
from coe.store.kinds import Comparing, ExpertInput, Image, Progress, Reference, Trained, TrainingPlan
from coe.store.runnable_kinds import BACKBONE
from coe.store.skeletons import bare_skeleton
from experts import exam, labelled_folder, series, suspects, two_groups
from experts.backbone import BackboneKind, Seeing, load_backbone
from experts.core_set import core_set
from experts.nearness import AXES, Nearness
from experts.patch_colours import colours, leeway_of
from experts.patch_deviations import Bank, LeftOut, Parts, apart, largest_of, usual_at
from experts.patch_network import EXAMPLES, SIDE, PatchNetwork, picture_logarithm, seen_and_whole, window
from experts.scale import Numbers, Scale
from experts.taken import TakenPictures
from experts.trainers import computing

WANTED = 0.05
"""The false-call rate that is wanted if the plan does not say it."""
FEW = 5
"""With fewer good parts nothing can be said of the next."""
ADVISED = 10
"""With fewer good parts training says that the limit is wide."""
MOST = AXES
"""The most pictures that are learned from: a bank has no room for what more of them show."""
_SPREADS = np.array([0.27, 0.1])
"""How much the logarithms of the largest deviations of good parts usually spread: of colours, and of patches."""
_WORTH, _WORTH_ALONE = 10, 5
"""How many further good parts this is worth, of parts that are aligned, and of others, which differ more in it."""
_UNLIKE_ALIGNED = 0.01
"""Of aligned good parts so many may be in doubt as wholes: each place says what is missing there."""
_SMALL = 0.06
"""A part that fills less of its pictures than this share is small."""
_TWO_WAYS = "name a reference for each (`reference: [A, B]`): with one limit for both, defects of one may pass"
_OWN_LIMIT = "each has a limit of its own"
_WHITE = 128
"""Pictures of which a hundredth is not as bright are made so before it is told where their parts are."""
_OTHER, _OTHER_OF_MOST = 0.5, 0.55
"""Edges lie so far from each other, as does what is no part; or so much of how far the farthest place lies."""
_SEES = 24
"""In a grid of so many places, of an input of 192 pixels, each sees one place farther than it is."""
_EDGES = 256
"""So many places of edges stand for all of them."""
_BATCH = 8


def train(kind: BackboneKind, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
    """Learn from the pictures in the folder of the plan; `plan.init` gives the backbone.

    Raises ConfigError without a backbone, for frozen parts, for too few good parts, and if most do not fit.
    """
    if plan.freeze:
        raise ConfigError(f"expert '{expert.id}': this kind has no layers to freeze; leave 'freeze' out")
    with computing(plan.threads), torch.no_grad():
        network = bare_skeleton(kind, expert)
        assert isinstance(network, PatchNetwork)
        if not plan.references:
            network.optional = network.leeway = None
        load_backbone(network, kind, expert, plan.init)
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        taken = TakenPictures(plan.data)
        groups, unfit, remarks = _pictures(kind, expert, plan, taken)
        looks = [look for id, group in groups.items() for look in _looks(kind, network, plan, id, group)]
        trained = _together(expert, wanted_of(plan), looks, unfit)
        progress(plan.epochs, plan.epochs, trained.metrics)
        state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()} | trained.state
        return replace(
            trained,
            state=state,
            metrics={**trained.metrics, **taken.measures(expert)},
            in_frame=bool(plan.references),
            preprocessing=expert.preprocessing,
            looks=1 if plan.references else len(looks),
            remarks=(*trained.remarks, *remarks, *taken.identical()),
            took=taken.sentence(),
            learned=taken.learned,
        )


@dataclass(frozen=True, slots=True)
class _Group:
    """The inputs (3, S, S) uint8 of different good parts by name, and of bad ones that are at hand."""

    good: dict[str, Image]
    bad: list[Image]


@dataclass(frozen=True, slots=True)
class _Look:
    """What the good parts of one reference tell: tensors by name, how they look, and their exam.

    `strange` are the parts that were left out, with the reason, and `remarks` are for people. `reference` is its id.
    """

    reference: str
    state: dict[str, torch.Tensor]
    look: LearnedLook
    exam: tuple[ExamItem, ...]
    strange: dict[str, str]
    remarks: tuple[str, ...]


def wanted_of(plan: TrainingPlan) -> float:
    """Return the false-call rate that is wanted."""
    return WANTED if plan.false_calls is None else plan.false_calls


def _reference_of(expert: Expert, plan: TrainingPlan) -> Reference:
    """Return the only reference of a plan that has some; raises ConfigError if there are several."""
    first, *others = plan.references.values()
    if any(other is not first for other in others):
        raise ConfigError(
            f"expert '{expert.id}' learns in the frame of one reference, but its components have several "
            f"({', '.join(plan.references)}); write the same `reference: NAME` in each of them"
        )
    return first


def _together(expert: Expert, wanted: float, looks: Sequence[_Look], unfit: Mapping[str, str]) -> Trained:
    """Return what an expert learned of all alternates; its state holds the tensors of the looks alone.

    `unfit` says why parts fit none of them. Raises ConfigError if too many parts are left out.
    """
    strange = {name: reason for look in looks for name, reason in look.strange.items()}
    without = {**unfit, **strange}
    called, in_doubt = (np.concatenate([getattr(look.look, of) for look in looks]) for of in ("called", "in_doubt"))
    left_out.check(len(called), without)
    remarks = [f"left out: {name}: {reason}" for name, reason in without.items()]
    for look in looks:
        if (count := len(look.look.called)) < ADVISED:
            of = (f" of '{look.reference}'" if look.reference else " of a look") if len(looks) > 1 else ""
            remarks.append(
                f"only {count} good parts{of}: a limit from so few is wide, and defects may pass; give {ADVISED} or "
                "more"
            )
        remarks += look.remarks
    # What was left out as unlike is called, so that if it is good, the expert calls its like as well.
    calls = Rate(int(called.sum()) + len(strange), len(called) + len(strange))
    metrics = {
        "good_parts": float(len(called)),
        "wanted_false_calls": wanted,
        "called": float(calls.events),
        "called_at_most": calls.upper(),
        "in_doubt": float(in_doubt.mean()),
        "limit": max(look.look.limit for look in looks),
        "left_out": float(len(without)),
    }
    state = {name: torch.cat([look.state[name] for look in looks]) for name in looks[0].state}
    items = added(item for look in looks for item in look.exam)
    taken = Exam.of(items, strange)
    return Trained(state, expert.labels, metrics, tuple(remarks), exam=taken)


def _pictures(
    kind: BackboneKind, expert: Expert, plan: TrainingPlan, taken: TakenPictures
) -> tuple[dict[str, _Group], dict[str, str], list[str]]:
    """Return the pictures for each reference by its id; without a reference that is "".

    Return too why others are left out, and remarks.
    """
    reference = _reference_of(expert, plan) if plan.references else None
    groups = {one.id: _Group({}, []) for one in reference.alternates} if reference else {"": _Group({}, [])}
    known: set[bytes] = set()
    without: dict[str, str] = {}
    remarks = []

    def input_of(image: Image) -> tuple[ExpertInput, str]:
        if reference is None:
            return kind.preprocess(image, expert), ""
        assert isinstance(kind, Comparing), "a kind without references was given one"
        best = best_of(image, reference.alternates)
        return kind.compare(image, best, expert), best.id

    shown = labelled_folder.shown_parts(expert, plan)
    paths = [one.path for one in shown if one.good]
    if len(paths) > MOST:
        remarks.append(
            f"learned from {MOST} of {len(paths)} pictures, evenly spaced: the memory of patches holds no more"
        )
        paths = exam.evenly(paths, MOST)
    for path in paths:
        name = path.relative_to(plan.data).as_posix() if path.is_relative_to(plan.data) else path.name
        prepared, id = input_of(labelled_folder.pixels(path, plan, taken))
        if prepared.doubt:
            without[name] = prepared.doubt
        elif (key := prepared.pixels.tobytes()) not in known:
            known.add(key)
            groups[id].good[name] = prepared.pixels
    left_out.check(len(known), without)
    for id, group in groups.items():
        if len(group.good) < FEW:
            given = len(paths) - len(without)
            same = f" ({given} are given, and only {len(known)} of them differ)" if given > len(known) else ""
            of = f" that fit '{id}' best" if len(groups) > 1 else ""
            raise TooFewPictures(
                f"{plan.data}: {len(group.good)} pictures of good parts{of}{same} are too few; give at least {FEW}, of "
                f"as many parts, better {ADVISED}"
            )
    for path in exam.evenly(sorted(one.path for one in shown if not one.good), MOST):
        # Bad pictures say which good ones look bad; nothing else is learned from them.
        prepared, id = input_of(labelled_folder.pixels(path, plan, taken, Purpose.TEST))
        if not prepared.doubt:
            groups[id].bad.append(prepared.pixels)
    return groups, without, remarks


@dataclass(frozen=True, slots=True)
class LearnedLook:
    """How good parts look, and how each deviates from the others: by its patches, and as a whole.

    `limit` is how many deviations of `scale` are allowed; that of `nearness` is its own.
    """

    parts: Parts
    judge: LeftOut
    scale: Scale
    limit: float
    nearness: Nearness

    @property
    def called(self) -> NDArray[np.bool_]:
        """Which of the parts (n,) deviate too much by their patches."""
        return np.asarray(self.scale.deviations > self.limit)

    @property
    def in_doubt(self) -> NDArray[np.bool_]:
        """Which others of the parts (n,) are unlike the rest as wholes."""
        return np.asarray((self.nearness.deviations > self.nearness.limit) & ~self.called)

    def deviations_of(self, seen: torch.Tensor, own: NDArray[np.intp]) -> Numbers:
        """Return the deviations (m,) by patches (m, G, G, channels) of further pictures; not of aligned parts.

        Of each the patches of parts of its number, of `own` (m,), do not count.
        """
        far = picture_logarithm(self.judge.of_others(self.parts.numbers, own, seen)).double().numpy()
        return np.asarray((far - self.scale.centre[0]) / self.scale.deviation[0])


def learned_look(network: PatchNetwork, parts: Parts, judge: LeftOut, wanted: float, unlike: float) -> LearnedLook:
    """Learn how parts look, judged by `judge` of all of them, and write it into a network of one look.

    Of further good parts a share `wanted` is to deviate too much by its patches, and `unlike` as a whole.
    """
    spreads = _SPREADS if parts.colours is not None else _SPREADS[1:]
    squares = judge.squares(parts.numbers)
    worth, extremes = (_WORTH, False) if parts.colours is not None else (_WORTH_ALONE, True)
    scale = Scale.of(largest_of(parts, squares), spreads, worth, extremes=extremes)
    # Of two deviations each may call half of what is wanted. What parts that are not aligned deviate by is skewed as
    # the extreme of many places is; that of aligned ones, which is measured by what is usual at each place, is not.
    factor = extreme_factor if extremes else prediction_factor
    limit = factor(len(parts.numbers.unique()), wanted / len(spreads), worth)
    _fill(network, parts, judge.bank)
    if parts.colours is not None:
        network.log_usual.copy_(usual_at(squares).log())
        assert network.optional is not None
        assert network.leeway is not None
        network.leeway.fill_(parts.leeway)
        network.optional.learn(parts.colours, parts.numbers, parts.leeway)
    first = 2 - len(scale.centre)
    network.centre[first:].copy_(torch.from_numpy(scale.centre))
    network.deviation[first:].copy_(torch.from_numpy(scale.deviation))
    network.limit.fill_(limit)
    nearness = Nearness.of(parts.whole.double().numpy(), parts.numbers.numpy(), unlike)
    network.near.fill(nearness)
    return LearnedLook(parts, judge, scale, limit, nearness)


def _looks(kind: BackboneKind, network: PatchNetwork, plan: TrainingPlan, reference: str, group: _Group) -> list[_Look]:
    """Learn how the good parts of one reference look, or without one, in each of two ways if they look so."""
    images, wanted = torch.from_numpy(np.stack(list(group.good.values()))), wanted_of(plan)
    seen, whole = see(kind, network, images)
    coloured = torch.cat([colours(some) for some in images.split(_BATCH)]) if plan.references else None
    numbers = series.parts_of(_mean_patches(kind, seen))
    parts = Parts(list(group.good), images, seen, whole, torch.arange(len(images)), coloured)
    if numbers is not None:
        parts = replace(parts, numbers=torch.from_numpy(numbers))
    # A whole series may look unlike the others and be left out, so series are told first.
    remarks = series.remarks(numbers, "a limit from so few parts causes false calls")
    bad = see(kind, network, torch.from_numpy(np.stack(group.bad)))[1].double().numpy() if group.bad else None
    odd, named = suspect(parts.names, parts.whole.double().numpy(), bad)
    remarks += named
    strange = {parts.names[place]: "it looks like a bad part" for place in odd}
    parts = parts.of([place for place in range(len(images)) if place not in odd])
    if parts.colours is not None:
        parts = replace(parts, apart=apart(parts), leeway=leeway_of(parts.colours, wanted))
    looks_of = _mean_patches(kind, parts.seen)
    fewer = two_groups.smaller(looks_of)
    others = [place for place in range(len(parts.names)) if place not in fewer]
    divided = coloured is None and min(len(parts.numbers[places].unique()) for places in (fewer, others)) >= FEW
    remarks += two_groups.remarks(parts.names, looks_of, _OWN_LIMIT if divided else _TWO_WAYS)
    made = []
    for each in [parts.of(others), parts.of(fewer)] if divided else [parts]:
        is_series = len(each.numbers.unique()) < series.LEAST_PARTS
        own = replace(each, numbers=torch.arange(len(each.names))) if is_series else each
        unlike = wanted if own.colours is None else min(wanted, _UNLIKE_ALIGNED)
        look = learned_look(network, own, LeftOut(own), wanted, unlike)
        if (share := _share_of(kind, network, own)) < _SMALL:
            remarks.append(
                f"the part fills about {share:.0%} of its pictures, so that a defect is a few pixels; crop closer"
            )
        sheets = exam.sheets(own.images)
        look, items = examined(kind, network, look, sheets, partial(_called, network, look))
        network.near.fill(look.nearness)
        state = network.state_dict()
        tensors = {name: one.contiguous().clone() for name, one in state.items() if not name.startswith(BACKBONE)}
        farthest = series.farthest(own.names, look.scale.deviations, look.limit)
        made.append(_Look(reference, tensors, look, tuple(items), strange, (*remarks, farthest)))
        remarks, strange = [], {}
    return made


def _mean_patches(kind: BackboneKind, seen: torch.Tensor) -> Numbers:
    """Return the mean of the patches of the deepest stage, (n, d), by which series and groups are told."""
    deepest = kind.architecture.channels[kind.stages[-2]]
    return seen[..., -deepest:].mean(dim=(1, 2)).double().numpy()


def see(kind: Seeing, network: torch.nn.Module, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return patches (n, G, G, channels) and pooled features (n, d) of images (n, 3, S, S) uint8."""
    found = [seen_and_whole(kind.maps(network, group)) for group in images.split(_BATCH)]
    return torch.cat([seen for seen, _ in found]), torch.cat([whole for _, whole in found])


def suspect(names: Sequence[str], good: Numbers, bad: Numbers | None) -> tuple[list[int], list[str]]:
    """Return which of good pictures (n, d) of these names look bad and are left out, and remarks on others that do.

    `bad` (m, d) are bad pictures; None: there are none.
    """
    if bad is None:
        return suspects.far_from_most(good), []
    found, are_left_out = suspects.beside_bad(good, bad)
    if are_left_out or not found:
        return found, []
    few = ", ".join(names[place] for place in found[:3])
    return [], [
        f"{len(found)} of {len(good)} good pictures look like bad ones, such as {few}; are they in the right folder?"
    ]


def _share_of(kind: Seeing, network: torch.nn.Module, parts: Parts) -> float:
    """Return which share of their pictures parts fill: the places that are unlike all that the pictures' edges show."""
    seen = parts.seen
    # In little light hardly any place differs much.
    if (gain := _WHITE / max(1.0, float(np.percentile(parts.images[:, :, ::4, ::4], 99)))) > 1:
        seen, _ = see(kind, network, (parts.images * gain).clamp_max(255).to(torch.uint8))
    seen = seen[..., : kind.architecture.channels[kind.stages[0]]]  # deeper ones see a part from afar
    grid = min(seen.shape[1:3])
    seen = functional.normalize(seen, dim=3)
    edge = torch.cat([seen[:, 0], seen[:, -1], seen[:, :, 0], seen[:, :, -1]], dim=1).flatten(0, 1)
    usual = edge[core_set(edge, _EDGES)] if len(edge) > _EDGES else edge
    far = torch.cdist(seen.flatten(0, 2), usual).amin(dim=1).view(seen.shape[:3])
    # No place differs much if the part fills its pictures.
    unlike = far > min(_OTHER, _OTHER_OF_MOST * float(far.amax(dim=(1, 2)).median()))
    # A place sees what lies around it, so a part seems larger than it is by so many places on each side.
    other = functional.max_pool2d((~unlike).float()[:, None], 2 * (grid // _SEES) + 1, 1, grid // _SEES)
    return max(0.01, float((other[:, 0] == 0)[:, 1:-1, 1:-1].float().mean()))


def examined(
    kind: Seeing,
    network: torch.nn.Module,
    look: LearnedLook,
    sheets: Sequence[exam.Sheet],
    called: Callable[[exam.Sheet, torch.Tensor, torch.Tensor], NDArray[np.bool_]],
) -> tuple[LearnedLook, list[ExamItem]]:
    """Return a look, its nearness tightened if too many missing parts pass, and the rows of its exam.

    `called` tells which pictures (m,) of a sheet, given with their patches and pooled features, do not pass whatever
    the nearness is.
    """
    found = []
    for sheet in sheets:
        seen, whole = see(kind, network, sheet.images)
        far = look.nearness.of_changed(whole.double().numpy(), look.parts.numbers.numpy()[sheet.made_of])
        found.append((sheet.item, sheet.least(np.where(called(sheet, seen, whole), np.inf, far))))
    limit = look.nearness.limit
    for item, far in found:
        if item is Shown.MISSING:
            limit = exam.tightened(limit, list(far))
    look = replace(look, nearness=replace(look.nearness, limit=limit))
    return look, [exam.graded(item, far <= limit) for item, far in found]


def _called(
    network: PatchNetwork, look: LearnedLook, sheet: exam.Sheet, seen: torch.Tensor, whole: torch.Tensor
) -> NDArray[np.bool_]:
    if look.parts.colours is None:
        return np.asarray(look.deviations_of(seen, look.parts.numbers.numpy()[sheet.made_of]) > look.limit)
    # Own rows are in this bank. They lie at other places, of which aligned parts hardly see anything.
    return np.asarray((network(seen, whole, sheet.images)["score"] > 0.5).numpy())


def _fill(network: PatchNetwork, parts: Parts, bank: Bank) -> None:
    """Write the bank of parts into a network, with what shows its rows."""
    grid = parts.seen.shape[1]
    owners = bank.patches // grid**2
    counts = torch.bincount(owners, minlength=len(parts.names))
    examples, shown = counts.argsort(descending=True, stable=True)[:EXAMPLES], bank.patches.clone()
    if len(others := torch.nonzero(~torch.isin(owners, examples))[:, 0]):
        # What an example shows that is nearest stands for a row of a part that is no example.
        near = torch.cdist(bank.values[others], parts.seen[examples].flatten(0, 2)).argmin(dim=1)
        shown[others] = examples[near // grid**2] * grid**2 + near % grid**2
    number = {int(example): place for place, example in enumerate(examples)}
    where = []
    for patch in shown.tolist():
        part, place = divmod(patch, grid**2)
        left, top = window(place % grid, place // grid, grid, SIDE)
        where.append((number[part], round(left), round(top)))
    again = torch.arange(len(network.bank)) % len(bank.patches)
    network.bank.copy_((bank.values / bank.step).round().to(torch.int8)[again])
    network.places.copy_(parts.places()[bank.patches].to(torch.uint8)[again])
    network.shown_by.copy_(torch.tensor(where, dtype=torch.uint8)[again])
    network.step.fill_(bank.step)
    network.apart.fill_(parts.apart)
    for place, example in enumerate(examples.tolist()):
        pixels = parts.images[example].permute(1, 2, 0).contiguous().numpy()
        small = cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        network.examples[place].copy_(torch.from_numpy(small))
