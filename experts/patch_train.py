"""Learning the kind `patch` from a folder of good parts: a bank of patches, and the limit for a wanted false-call rate.

Each part is judged by a bank of others (cross-validation in five folds), so that the limit is not that of parts
that were learned. The scale is that of kind `good`; see `experts.good_train`. The next good part exceeds the limit with
the wanted chance (a prediction limit): `good`'s, of a confidence of 95 %, let most defects pass beside odd good parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np
import torch

from coe.comparing import left_out
from coe.comparing.alternates import best_of
from coe.core import Expert
from coe.errors import ConfigError
from coe.rates import Rate, prediction_factor
from coe.store.kind_data import BACKBONE
from coe.store.kinds import ExpertInput, Image, Progress, Trained, TrainingPlan
from experts import good_parts, good_train
from experts.backbone import load_backbone
from experts.classifier_train import computing
from experts.core_set import core_set
from experts.good_network import of_pixels
from experts.good_train import ADVISED, FEW, PIXEL_FLOOR, Numbers, Scale
from experts.patch import Patch, window
from experts.patch_network import EXAMPLES, ROWS, SIDE, PatchNetwork, picture_logarithm
from experts.taken import TakenPictures

MOST = 64
"""The most pictures that are learned from: a bank has no room for what more of them show."""
_FOLDS = 5
_STEPS = 127
_REACH = 0.7
"""In aligned parts, the steps of the grid to where a neighbour lies as far off as parts usually differ at a place."""
_STRANGE = 0.01
"""A part is left out that an expert which may call such a share of good parts calls: what is left out, no row shows."""
_FARTHER = 0.25
"""... if the logarithm of its distance is larger by so much than that of any other part."""
_SMALL = 0.08
"""A part that fills less of its pictures than this share is small."""
_BATCH = 8


@dataclass(frozen=True, slots=True)
class Bank:
    """Rows of a bank: `values` (m, channels) float32 as 8 bits hold them, and which patches they are, (m,)."""

    values: torch.Tensor
    patches: torch.Tensor
    step: float


@dataclass(frozen=True, slots=True)
class Parts:
    """Good parts: their names, inputs (n, 3, S, S) uint8, and patches (n, G, G, channels).

    `pixels` (n, 3, PIXELS, PIXELS) are there for aligned parts; `apart` is 0 for others.
    """

    names: list[str]
    images: torch.Tensor
    seen: torch.Tensor
    pixels: torch.Tensor | None
    apart: float = 0.0

    def of(self, places: list[int]) -> Parts:
        """Return some of the parts."""
        pixels = None if self.pixels is None else self.pixels[places]
        return Parts([self.names[i] for i in places], self.images[places], self.seen[places], pixels, self.apart)

    def places(self) -> torch.Tensor:
        """Return column and row of each patch in its grid, (n G G, 2) float32."""
        grid = self.seen.shape[1]
        axis = torch.arange(grid, dtype=torch.float32)
        one = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=2).reshape(-1, 2)
        return one.repeat(len(self.seen), 1)


def train(kind: Patch, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
    """Learn from the pictures in the folder of the plan; `plan.init` gives the backbone.

    Raises ConfigError without a backbone, for frozen parts, for too few good parts, and if most do not fit.
    """
    if plan.freeze:
        raise ConfigError(f"expert '{expert.id}': nothing but the bank of this kind learns; leave 'freeze' out")
    with computing(plan.threads), torch.no_grad():
        network = kind.skeleton(expert)
        assert isinstance(network, PatchNetwork)
        load_backbone(network, kind, expert, plan.init)
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        taken = TakenPictures(plan.data)
        groups, unfit, remarks = _pictures(kind, expert, plan, taken)
        looks = [_look(kind, network, plan, id, inputs) for id, inputs in groups.items()]
        trained = good_train.together(expert, good_train.wanted_of(plan), looks, unfit)
        progress(plan.epochs, plan.epochs, trained.metrics)
        state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()} | trained.state
        remarks = [*trained.remarks, *remarks, *taken.identical()]
        trained = replace(trained, state=state, in_frame=bool(plan.references), preprocessing=expert.preprocessing)
        return replace(trained, remarks=tuple(remarks), took=taken.sentence(), learned=taken.learned)


def _pictures(
    kind: Patch, expert: Expert, plan: TrainingPlan, taken: TakenPictures
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
            raise ConfigError(
                f"{plan.data}: {len(inputs)} pictures of good parts{of}{same} are too few; give at least {FEW}, of as "
                f"many parts, and better {ADVISED}"
            )
    return groups, without, remarks


def _look(
    kind: Patch, network: PatchNetwork, plan: TrainingPlan, reference: str, inputs: dict[str, Image]
) -> good_train.Look:
    """Learn how the good parts of one reference look; the network is used as that of this one alone."""
    images = torch.from_numpy(np.stack(list(inputs.values())))
    groups = images.split(_BATCH)
    seen = torch.cat([kind.features(network, group) for group in groups])
    pixels = torch.cat([network.pixels(group) for group in groups]) if plan.references else None
    parts = Parts(list(inputs), images, seen, pixels)
    if pixels is not None:
        parts = replace(parts, apart=_apart(parts))
    kept = good_train.typical(len(parts.names), _LeftOut(parts).largest, _STRANGE, _FARTHER)
    odd = [name for place, name in enumerate(parts.names) if place not in kept]
    strange = dict.fromkeys(odd, "it looks unlike the other good parts")
    parts = parts.of(kept)
    remarks = []
    if (share := _filled(parts)) < _SMALL:
        remarks.append(
            f"the part fills about {share:.0%} of its pictures, so that a defect is a few pixels of the input; crop "
            "the pictures closer to the part"
        )
    scale = Scale.of(_cross_validated(parts))
    beyond = prediction_factor(len(kept), good_train.wanted_of(plan)) * scale.deviations.std(ddof=1)
    limit = float(scale.deviations.mean() + beyond)
    _fill(network, parts)
    if parts.pixels is not None:
        statistics = good_train.statistics(parts.pixels, PIXEL_FLOOR**2)
        network.pixel_mean.copy_(statistics.mean)
        network.pixel_log_spread.copy_(statistics.spread.log())
    first = 2 - len(scale.centre)
    network.centre[first:].copy_(torch.from_numpy(scale.centre))
    network.deviation[first:].copy_(torch.from_numpy(scale.deviation))
    network.limit.fill_(limit)
    state = network.state_dict()
    own = {name: one.contiguous().clone() for name, one in state.items() if not name.startswith(BACKBONE)}
    called = Rate(int((scale.deviations > limit).sum()), len(kept))
    return good_train.Look(reference, own, limit, called, strange, tuple(remarks))


class _LeftOut:
    """How far parts lie from others, by a bank of all of them in which rows of the part itself do not count."""

    def __init__(self, parts: Parts) -> None:
        bank, count = _bank(parts), len(parts.names)
        grid = parts.seen.shape[1]
        owner = bank.patches // grid**2
        self._squares = torch.full((count, grid**2, count), torch.inf)
        for place in range(count):
            found = _squares(parts.of([place]), bank, parts)
            self._squares[place] = torch.full((grid**2, count), torch.inf).scatter_reduce(
                1, owner.expand(grid**2, -1), found, "amin"
            )
        self._parts = parts

    def largest(self, places: list[int]) -> Numbers:
        """Return the largest deviations (n, 1 or 2) of the parts at these places from each other."""
        squares = self._squares[places][:, :, places]
        own = torch.arange(len(places))
        squares[own, :, own] = torch.inf
        least = squares.amin(dim=2)
        # A part whose rows alone are in the bank is as far from the others as from nothing.
        least = least.clamp_max(4.0)[:, None]
        return _with_pixels(self._parts.of(places), picture_logarithm(least).numpy())


def _with_pixels(parts: Parts, of_patches: Numbers) -> Numbers:
    if parts.pixels is None:
        return of_patches[:, None].astype(np.float64)
    return np.stack([good_train.each_without(parts.pixels, of_pixels, PIXEL_FLOOR**2), of_patches], axis=1)


def _cross_validated(parts: Parts) -> Numbers:
    """Return the largest deviations (n, 1 or 2) of each part from a bank, and from pixels, of others."""
    count = len(parts.names)
    of_patches = np.zeros(count)
    for fold in range(min(_FOLDS, count)):
        judged = list(range(fold, count, _FOLDS))
        others = parts.of([place for place in range(count) if place not in judged])
        bank = _bank(others)
        for place in judged:
            least = _squares(parts.of([place]), bank, others).amin(dim=1)
            of_patches[place] = float(picture_logarithm(least.clamp_min(0.0)[None])[0])
    return _with_pixels(parts, of_patches)


def _bank(parts: Parts) -> Bank:
    """Return the core set of all patches of parts."""
    rows, places = parts.seen.flatten(0, 2), parts.places()
    chosen = core_set(rows, ROWS, places * parts.apart**0.5 if parts.apart else None)
    step = float(rows[chosen].abs().max()) / _STEPS
    return Bank((rows[chosen] / step).round() * step, chosen, step)


def _squares(part: Parts, bank: Bank, of: Parts) -> torch.Tensor:
    """Return squared distances (G G, m) of one part's patches to the rows of a bank of the parts `of`."""
    rows = part.seen.flatten(0, 2)
    squares = torch.cdist(rows, bank.values).square()
    if of.apart:
        squares += of.apart * torch.cdist(part.places(), of.places()[bank.patches]).square()
    return squares


def _apart(parts: Parts) -> float:
    """Return what a step between places adds to a squared distance of aligned parts: see `_REACH`."""
    squares = [
        (parts.seen[place] - parts.seen[other]).square().sum(dim=2)
        for place in range(len(parts.names))
        for other in [(place + 1) % len(parts.names)]
    ]
    return float(torch.stack(squares).median()) / _REACH**2


def _fill(network: PatchNetwork, parts: Parts) -> None:
    """Write the bank of parts into a network, with what shows its rows."""
    bank, grid = _bank(parts), parts.seen.shape[1]
    owners = bank.patches // grid**2
    counts = torch.bincount(owners, minlength=len(parts.names))
    examples = counts.argsort(descending=True, stable=True)[:EXAMPLES]
    shown = bank.patches.clone()
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


def _filled(parts: Parts) -> float:
    """Return about which share of their pictures parts fill: places unlike all that the pictures' edges show."""
    seen = parts.seen
    edge = torch.cat([seen[:, 0], seen[:, -1], seen[:, :, 0], seen[:, :, -1]], dim=1).flatten(0, 1)
    usual = edge[core_set(edge, 256)]
    inside = seen[:, 1:-1, 1:-1].flatten(0, 2)
    # Edges differ from each other by as much as what is no part differs from them.
    return float((torch.cdist(inside, usual).amin(dim=1) > 0.5).float().mean())
