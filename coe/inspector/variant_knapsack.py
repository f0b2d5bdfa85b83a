"""Which variants of which experts are worth their memory: a multiple-choice knapsack, solved greedily."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import fmean

from coe import config
from coe.board.graph import ExpertGraph
from coe.core import FULL, added
from coe.scheduler.costs import Cost
from coe.store.manifest import PreparedVariant

_WEIGHTS = tuple(part / 8 for part in (4, 5, 3, 6, 2, 7, 1, 8, 0))
"""Weights of running against loading, the even weight first: among equally good choices the first is taken."""
_BODIES_TRIED = 16
"""So many bodies, those with the most experts, are tried one by one."""

Offers = Mapping[str, "Mapping[str, PreparedVariant]"]
"""Prepared variants, by expert and then by variant. Experts whose kind has no variants are left out."""
Costs = Mapping[tuple[str, str, str], Cost]
"""Costs by device, expert and variant; they always include fp32."""


@dataclass(frozen=True, slots=True)
class VariantOption:
    """One option for an expert: resident in a variant (`bytes` above 0), or loaded whenever it is needed.

    An image is expected to take `run_s` of an executor and `load_s` of the disk for this expert. `bodies` are what it
    needs in memory beside its own `bytes`.
    """

    variant: str
    bytes: int
    run_s: float
    load_s: float
    bodies: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class VariantPrices:
    """What the options of each expert cost, in bytes and in expected seconds per image."""

    offers: Offers
    graph: ExpertGraph
    costs: Costs
    devices: list[str]
    sharers: Mapping[tuple[str, str], int]
    """How many experts have a body, by device and body."""

    def filling(self, variants: Mapping[str, Iterable[str]], budget_bytes: int, pools: int) -> dict[str, VariantOption]:
        """Return the best choice found of what is resident: it fits with every body whole in each pool.

        First each expert pays an equal part of its body, as if all experts of the body were taken. The bodies that are
        wanted then, or none, are paid for whole. From the better of these one body at a time is paid for, or left out,
        as long as that helps. The experts of bodies that are not paid for are not resident.
        """
        shared = {expert: self._options(expert, usable) for expert, usable in variants.items()}
        common = Counter(body for options in shared.values() for option in options for body in option.bodies)
        of_body: dict[str, int] = {}
        for cost in self.costs.values():
            if (body := cost.body) is not None:
                of_body[body.id] = max(body.bytes, of_body.get(body.id, 0))
        none = frozenset[str]()

        def left_bytes(paid: frozenset[str]) -> int:
            return budget_bytes - pools * sum(of_body[body] for body in paid)

        @cache
        def options(paid: frozenset[str]) -> dict[str, list[VariantOption]]:
            return {expert: self._options(expert, usable, paid) for expert, usable in variants.items()}

        def filled(run: float, paid: frozenset[str]) -> dict[str, VariantOption]:
            return _fill(options(paid), left_bytes(paid), run / pools, 1 - run)

        def better(tried: Iterable[tuple[float, frozenset[str]]]) -> tuple[float, float, frozenset[str]]:
            fitting = [(run, paid) for run, paid in tried if not paid or left_bytes(paid) >= 0]
            found = [(expected_image_s(filled(run, paid), pools), run, paid) for run, paid in fitting]
            return min(found, key=lambda choice: choice[0], default=(math.inf, 0.0, none))

        starts: list[tuple[float, frozenset[str]]] = []
        for run in _WEIGHTS:
            taken = _fill(shared, budget_bytes, run / pools, 1 - run)
            starts += [(run, none.union(*(option.bodies for option in taken.values()))), (run, none)]
        least_s, run, paid = better(starts)
        while common:
            one_s, _, one = better((run, paid ^ {id}) for id, _ in common.most_common(_BODIES_TRIED))
            if one_s >= least_s:
                break
            least_s, paid = one_s, one
        _, run, paid = better((weight, paid) for weight in (run, *_WEIGHTS))
        return filled(run, paid)

    def _options(self, expert: str, variants: Iterable[str], paid: frozenset[str] | None = None) -> list[VariantOption]:
        """Return all options for an expert: absent before resident, finer variants before coarser."""
        # With `paid`, only these bodies are in memory, and they are paid for; another comes with each load.
        absent, resident = [], []
        needed = self.graph.probability(expert)
        for variant in variants:
            costs = [self.costs[device, expert, variant] for device in self.devices]
            full = [self.costs[device, expert, FULL] for device in self.devices]
            again = again_share(self.offers.get(expert, {}).get(variant)) if variant != FULL else 0.0
            run_s = fmean(cost.batch_s(1) for cost in costs) + again * fmean(cost.batch_s(1) for cost in full)
            again_s = again * fmean(cost.load_s for cost in full)
            load_s = fmean(cost.load_s for cost in costs) + again_s
            brought = {cost.body.id: cost.body.load_s for cost in costs if cost.body is not None}
            bodies = frozenset(brought)
            missing_s = sum(bodies_s for body, bodies_s in brought.items() if paid is not None and body not in paid)
            absent.append(VariantOption(variant, 0, needed * run_s, needed * (load_s + missing_s)))
            if paid is None or bodies <= paid:
                size = max(map(self._bytes, self.devices, costs) if paid is None else (c.weights_bytes for c in costs))
                resident.append(VariantOption(variant, size, needed * run_s, needed * again_s, bodies))
        return absent + resident

    def whole_bytes(self, expert: str, variant: str) -> int:
        """Return the bytes of an expert that is alone in a pool, with its body."""
        return max(self.costs[device, expert, variant].whole_bytes for device in self.devices)

    def _bytes(self, device: str, cost: Cost) -> int:
        """Return the bytes of a resident expert: its own, and an equal part of those of its body."""
        body = cost.body
        return cost.weights_bytes + (-(-body.bytes // self.sharers[device, body.id]) if body is not None else 0)


def _fill(
    options: Mapping[str, list[VariantOption]], budget_bytes: int, run: float, load: float
) -> dict[str, VariantOption]:
    """Choose an option for each expert such that all fit and `run` times `run_s` plus `load` times `load_s` is low."""
    # Greedy by incremental efficiency: every expert begins with its option without bytes. Then the steps to the next
    # larger option on each expert's lower convex hull are taken, over all experts, by falling seconds saved per byte,
    # as far as they fit. The same steps solve the linear relaxation exactly (Sinha and Zoltners, "The Multiple-Choice
    # Knapsack Problem", Operations Research 27, 1979), so the loss is at most the saving of the first step that does
    # not fit.

    def seconds(option: VariantOption) -> float:
        return run * option.run_s + load * option.load_s

    def efficiency(before: VariantOption, after: VariantOption) -> float:
        return (seconds(before) - seconds(after)) / (after.bytes - before.bytes)

    hulls = {expert: _hull(choices, seconds, efficiency) for expert, choices in options.items()}
    taken = {expert: hull[0] for expert, hull in hulls.items()}
    steps = [
        (-efficiency(before, after), expert, place, after)
        for expert, hull in hulls.items()
        for place, (before, after) in enumerate(pairwise(hull))
    ]
    left = budget_bytes
    for _, expert, _, after in sorted(steps, key=lambda step: step[:3]):
        more = after.bytes - taken[expert].bytes
        if more <= left:
            taken[expert] = after
            left -= more
    return taken


def _hull(
    choices: Iterable[VariantOption],
    seconds: Callable[[VariantOption], float],
    efficiency: Callable[[VariantOption, VariantOption], float],
) -> list[VariantOption]:
    """Return the options on the lower convex hull by rising bytes and falling seconds: no mixture of two beats them."""
    hull: list[VariantOption] = []
    for option in sorted(choices, key=lambda option: (option.bytes, seconds(option))):
        if hull and seconds(option) >= seconds(hull[-1]):
            continue
        while len(hull) > 1 and efficiency(hull[-1], option) > efficiency(hull[-2], hull[-1]):
            hull.pop()
        hull.append(option)
    return hull


def expected_image_s(taken: Mapping[str, VariantOption], executors: int) -> float:
    """Return how long an image keeps the executors together, or the disk, busy: the longer time."""
    run_s, load_s = added(option.run_s for option in taken.values()), added(option.load_s for option in taken.values())
    return max(run_s / executors, load_s)


def again_share(offered: PreparedVariant | None) -> float:
    """Return the share of a variant's findings that are expected to be run again in fp32.

    More are than `config.ESCALATED_SHARE` if more were of the real pictures with which the variant was measured.
    """
    if offered is None or not offered.escalate_below:
        return 0.0
    seen = offered.agreement
    return max(config.ESCALATED_SHARE, seen.again if seen is not None and not seen.generated else 0.0)


def margin_below(offers: Offers, expert: str, variant: str) -> float:
    """Return the margin under which an expert's findings in a variant are run again in fp32; 0 means never."""
    offered = offers.get(expert, {}).get(variant)
    return offered.escalate_below if offered is not None and variant != FULL else 0.0
