"""Learning the kind `patch` from a folder of good parts: a bank of patches, and the limit for a wanted false-call rate.

Each part is judged by the rows of others (leave-one-out), so that the limit is not that of parts that were learned.
The scale is that of kind `good`; see `experts.good_train`. The next good part exceeds the limit with the wanted chance
(a prediction limit): `good`'s, of a confidence of 95 %, let most defects pass beside odd good parts.
"""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import torch
from torch.nn import functional

from coe.comparing import left_out
from coe.comparing.alternates import best_of
from coe.core import Expert
from coe.errors import ConfigError, TooFewPictures
from coe.rates import Rate, extreme_factor, prediction_factor
from coe.store.kinds import Comparing, ExpertInput, Image, Progress, Trained, TrainingPlan
from coe.store.runnable_kinds import BACKBONE
from coe.store.skeletons import bare_skeleton
from experts import good_parts, good_train, patch_hidden, series, two_groups
from experts.backbone import BackboneKind, load_backbone
from experts.classifier_train import computing
from experts.core_set import core_set
from experts.good_train import ADVISED, FEW, WANTED, Numbers, Scale
from experts.patch_colours import colours, leeway_of
from experts.patch_deviations import Bank, LeftOut, Parts, apart, largest_of, usual_at
from experts.patch_network import (
    CELL,
    EXAMPLES,
    NEVER,
    ROWS,
    SIDE,
    USUAL,
    WHOLES,
    PatchNetwork,
    features,
    logarithms,
    whole,
    window,
)
from experts.taken import TakenPictures

MOST = WHOLES
"""The most pictures that are learned from: a bank has no room for what more of them show."""
_SPREADS = np.array([0.27, 0.1])
"""How much the logarithms of the largest deviations of good parts usually spread: of colours, and of patches."""
_WORTH, _WORTH_ALONE = 10, 5
"""How many further good parts this is worth, of parts that are aligned, and of others, which differ more in it."""
_SPREAD_AS_WHOLE, _WORTH_AS_WHOLE = np.array([0.26]), 2
"""The same of how far wholes lie from the nearest other, the median of eleven parts; of one it was 0.08, of one 2.6."""
_STRANGE = 0.01
"""A part is left out that an expert which may call such a share of good parts calls: what is left out, no row shows."""
_FARTHER = 2.5
"""... if the logarithm of its distance is larger by so many of these spreads than that of any other part."""
_FARTHER_TOGETHER = 0.15
"""The same for each of a group of parts, as a logarithm: by chance one lies far off, and hardly several together."""
_UNLIKE = 0.01
"""Of the good parts so many may be called because they look unlike every other as a whole, where `WANTED` are."""
_SMALL = 0.06
"""A part that fills less of its pictures than this share is small."""
_TWO_WAYS = "name a reference of each (`reference: [A, B]`): one limit for both may let defects of one pass"
_OWN_LIMIT = "each has a limit of its own"
_OTHER, _OTHER_OF_MOST = 0.5, 0.55
"""Edges lie so far from each other, as does what is no part; or so much of how far the farthest place lies."""
_WHITE = 128
"""Pictures of which a hundredth is not as bright are made so before it is told how large their parts are."""
_SEES = 24
"""In a grid of so many places, of an input of 192 pixels, each sees one place farther than it is."""
_BATCH = 8


def train(kind: BackboneKind, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
    """Learn from the pictures in the folder of the plan; `plan.init` gives the backbone.

    Raises ConfigError without a backbone, for frozen parts, for too few good parts, and if most do not fit.
    """
    if plan.freeze:
        raise ConfigError(f"expert '{expert.id}': nothing but the bank of this kind learns; leave 'freeze' out")
    with computing(plan.threads), torch.no_grad():
        network = bare_skeleton(kind, expert)
        assert isinstance(network, PatchNetwork)
        if not plan.references:
            network.optional = network.leeway = None
        load_backbone(network, kind, expert, plan.init)
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        taken = TakenPictures(plan.data)
        groups, unfit, remarks = _pictures(kind, expert, plan, taken)
        looks = [look for id, inputs in groups.items() for look in _looks(kind, network, plan, id, inputs)]
        trained = good_train.together(expert, good_train.wanted_of(plan), looks, unfit)
        progress(plan.epochs, plan.epochs, trained.metrics)
        state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()} | trained.state
        remarks = [*trained.remarks, *remarks, *taken.identical()]
        trained = replace(trained, state=state, in_frame=bool(plan.references), preprocessing=expert.preprocessing)
        trained = replace(trained, looks=1 if plan.references else len(looks), remarks=tuple(remarks))
        return replace(trained, took=taken.sentence(), learned=taken.learned)


def _pictures(
    kind: BackboneKind, expert: Expert, plan: TrainingPlan, taken: TakenPictures
) -> tuple[dict[str, dict[str, Image]], dict[str, str], list[str]]:
    """Return the inputs (3, S, S) uint8 of different good parts by name, for each reference by its id.

    Return too why others are left out, and remarks. Without a reference its id is "".
    """
    reference = good_train.reference_of(expert, plan) if plan.references else None
    groups: dict[str, dict[str, Image]] = {one.id: {} for one in reference.alternates} if reference else {"": {}}
    known: set[bytes] = set()
    without: dict[str, str] = {}
    paths = [path for _, path in good_parts.pictures(expert, plan)]
    remarks = []
    if len(paths) > MOST:
        remarks.append(f"learned from {MOST} of {len(paths)} pictures, taken evenly: a bank has no room for more")
        paths = [paths[place] for place in np.linspace(0, len(paths) - 1, MOST).round().astype(int)]
    for path in paths:
        name = path.relative_to(plan.data).as_posix() if path.is_relative_to(plan.data) else path.name
        image = good_parts.pixels(path, plan, taken)
        prepared: ExpertInput
        id = ""
        if reference is not None:
            assert isinstance(kind, Comparing), "a kind without references was given one"
            best = best_of(image, reference.alternates)
            prepared, id = kind.compare(image, best, expert), best.id
            if prepared.doubt:
                without[name] = prepared.doubt
                continue
        else:
            prepared = kind.preprocess(image, expert)
        if (key := prepared.pixels.tobytes()) not in known:
            known.add(key)
            groups[id][name] = prepared.pixels
    left_out.check(len(known), without)
    for id, inputs in groups.items():
        if len(inputs) < FEW:
            given = len(paths) - len(without)
            same = f" ({given} are given, and only {len(known)} of them differ)" if given > len(known) else ""
            of = f" that fit '{id}' best" if len(groups) > 1 else ""
            raise TooFewPictures(
                f"{plan.data}: {len(inputs)} pictures of good parts{of}{same} are too few; give at least {FEW}, of as "
                f"many parts, and better {ADVISED}"
            )
    return groups, without, remarks


def _looks(
    kind: BackboneKind, network: PatchNetwork, plan: TrainingPlan, reference: str, inputs: dict[str, Image]
) -> list[good_train.Look]:
    """Learn how the good parts of one reference look, or without one, in each of two ways if they look so."""
    images, wanted = torch.from_numpy(np.stack(list(inputs.values()))), good_train.wanted_of(plan)
    seen = _seen(kind, network, images)
    coloured = torch.cat([colours(group) for group in images.split(_BATCH)]) if plan.references else None
    numbers = series.parts_of(whole(seen, network.wholes.shape[1]).double().numpy())
    parts = Parts(list(inputs), images, seen, torch.arange(len(images)), coloured)
    if numbers is not None:
        parts = replace(parts, numbers=torch.from_numpy(numbers))
    if coloured is not None:
        parts = replace(parts, apart=apart(parts), leeway=leeway_of(coloured, wanted))
    spreads = _SPREADS if parts.colours is not None else _SPREADS[1:]
    # A whole series may look unlike the others and be left out, so series are told first.
    remarks = series.remarks(numbers, "a limit from so few parts calls others that are good")
    judge = LeftOut(parts)
    kept = _usual(judge, len(parts.names), _FARTHER * spreads)
    odd = [name for place, name in enumerate(parts.names) if place not in kept]
    strange = dict.fromkeys(odd, "it looks unlike the other good parts")
    parts = parts.of(kept)
    if parts.colours is not None:  # what is left out varies in other colours than good parts do
        parts = replace(parts, apart=apart(parts), leeway=leeway_of(parts.colours, wanted))
    seen_whole = whole(parts.seen, network.wholes.shape[1]).double().numpy()
    group = two_groups.smaller(seen_whole)
    others = [place for place in range(len(kept)) if place not in group]
    divided = coloured is None and min(len(parts.numbers[places].unique()) for places in (group, others)) >= FEW
    remarks += two_groups.remarks(parts.names, seen_whole, _OWN_LIMIT if divided else _TWO_WAYS)
    if (share := max(0.01, _filled(kind, network, parts))) < _SMALL:
        remarks.append(
            f"the part fills about {share:.0%} of its pictures, so that a defect is a few pixels; crop closer"
        )
    groups = [parts.of(others), parts.of(group)] if divided else [parts]
    made = [_look(kind, network, plan, reference, one, LeftOut(one) if divided or strange else judge) for one in groups]
    looks = [look for look, _ in made]
    remarks += patch_hidden.remarks(rate for _, rate in made)
    return [replace(looks[0], strange=strange, remarks=(*remarks, *looks[0].remarks)), *looks[1:]]


def _seen(kind: BackboneKind, network: PatchNetwork, images: torch.Tensor) -> torch.Tensor:
    """Return the patches (n, G, G, channels) of images (n, 3, S, S) uint8."""
    return torch.cat([features(kind.maps(network, group), group.shape[-1] // CELL) for group in images.split(_BATCH)])


def _look(
    kind: BackboneKind, network: PatchNetwork, plan: TrainingPlan, reference: str, parts: Parts, judge: LeftOut
) -> tuple[good_train.Look, Rate | None]:
    """Learn how parts look, judged by `judge` of all of them, and what is `passing`; the network is of this look."""
    count, wholes = len(parts.names), whole(parts.seen, network.wholes.shape[1])
    spreads = _SPREADS if parts.colours is not None else _SPREADS[1:]
    if len(parts.numbers.unique()) < series.LEAST_PARTS:
        parts = replace(parts, numbers=torch.arange(count))
    squares = judge.squares(parts.numbers)
    worth, extremes = (_WORTH, False) if parts.colours is not None else (_WORTH_ALONE, True)
    scale = Scale.of(largest_of(parts, squares), spreads, worth, extremes=extremes)
    # Of two deviations each may call half of what is wanted. What parts that are not aligned deviate by is skewed as
    # the extreme of many places is; that of aligned ones, which is measured by what is usual at each place, is not.
    factor = extreme_factor if extremes else prediction_factor
    limit = factor(len(parts.numbers.unique()), good_train.wanted_of(plan) / len(spreads), worth)
    _fill(network, parts, judge.bank)
    if parts.colours is not None:
        network.log_usual.copy_(usual_at(squares, USUAL).log())
        assert network.optional is not None
        assert network.leeway is not None
        network.leeway.fill_(parts.leeway)
        network.optional.learn(parts.colours, parts.numbers, parts.leeway)
    first = 2 - len(scale.centre)
    network.centre[first:2].copy_(torch.from_numpy(scale.centre))
    network.deviation[first:2].copy_(torch.from_numpy(scale.deviation))
    network.wholes.copy_(wholes[torch.arange(WHOLES) % count])
    # Of aligned parts each place says what is missing there.
    network.centre[2], network.deviation[2] = (
        _as_whole(wholes, parts.numbers) if parts.colours is None else (NEVER, 1.0)
    )
    network.limit.fill_(limit)
    state = network.state_dict()
    own = {name: one.contiguous().clone() for name, one in state.items() if not name.startswith(BACKBONE)}
    passing = patch_hidden.passing(parts, judge, scale, limit, lambda images: _seen(kind, network, images))
    called = Rate(int((scale.deviations > limit).sum()), count)
    farthest = series.farthest(parts.names, scale.deviations, limit)
    return good_train.Look(reference, own, limit, called, {}, (farthest,)), passing


def _usual(judge: LeftOut, count: int, farther: Numbers) -> list[int]:
    """Return the places of those of so many parts that are not strange, alone or as a group.

    Pictures of another part may be like each other, and each then hides the others; so groups are looked at first.
    """
    group = judge.group(_STRANGE, _FARTHER_TOGETHER)
    rest = [place for place in range(count) if place not in group]
    kept = good_train.typical(len(rest), lambda places: judge.largest([rest[one] for one in places]), _STRANGE, farther)
    return [rest[one] for one in kept]


def _as_whole(wholes: torch.Tensor, numbers: torch.Tensor) -> tuple[float, float]:
    """Return centre and deviation of the logarithms of how far pictures (n, deepest) of parts (n,) lie from others.

    In these units a limit for `WANTED` good parts by their patches is one for `_UNLIKE` as wholes. They do not depend
    on the limit: which picture deviates more is no matter of how many may be called.
    """
    squares = torch.cdist(wholes, wholes).square().masked_fill(numbers[:, None] == numbers, torch.inf)
    far = logarithms(squares.amin(dim=1)).double().numpy()
    scale, count = Scale.of(far[:, None], _SPREAD_AS_WHOLE, _WORTH_AS_WHOLE, extremes=True), len(numbers.unique())
    beyond = extreme_factor(count, _UNLIKE, _WORTH_AS_WHOLE) - extreme_factor(count, WANTED, _WORTH_ALONE)
    deviation = float(scale.deviation[0])
    return float(scale.centre[0]) + beyond * deviation, deviation


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
    again = torch.arange(ROWS) % len(bank.patches)
    network.bank.copy_((bank.values / bank.step).round().to(torch.int8)[again])
    network.places.copy_(parts.places()[bank.patches].to(torch.uint8)[again])
    network.shown_by.copy_(torch.tensor(where, dtype=torch.uint8)[again])
    network.step.fill_(bank.step)
    network.apart.fill_(parts.apart)
    for place, example in enumerate(examples.tolist()):
        pixels = parts.images[example].permute(1, 2, 0).contiguous().numpy()
        small = cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        network.examples[place].copy_(torch.from_numpy(small))


def _filled(kind: BackboneKind, network: PatchNetwork, parts: Parts) -> float:
    """Return about which share of their pictures parts fill: places unlike all that the pictures' edges show."""
    seen, grid = parts.seen, parts.seen.shape[1]
    # In little light hardly any place differs much.
    if (gain := _WHITE / max(1.0, float(np.percentile(parts.images[:, :, ::4, ::4], 99)))) > 1:
        seen = _seen(kind, network, (parts.images * gain).clamp_max(255).to(torch.uint8))
    # The channels of the first stage: deeper ones see a part from afar.
    seen = functional.normalize(seen[..., : kind.architecture.channels[kind.stages[0]]], dim=3)
    edge = torch.cat([seen[:, 0], seen[:, -1], seen[:, :, 0], seen[:, :, -1]], dim=1).flatten(0, 1)
    usual = edge[core_set(edge, 256)]
    far = torch.cdist(seen.flatten(0, 2), usual).amin(dim=1).view(-1, grid, grid)
    # No place differs much if the part fills its pictures.
    unlike = far > min(_OTHER, _OTHER_OF_MOST * float(far.amax(dim=(1, 2)).median()))
    # A place sees what lies around it, so a part seems larger than it is by so many places on each side.
    other = functional.max_pool2d((~unlike).float()[:, None], 2 * (grid // _SEES) + 1, 1, grid // _SEES)
    return float(1 - other[:, :, 1:-1, 1:-1].mean())
