"""Which variant each expert runs in, and which experts' doubtful findings are run again in full precision.

After HOBBIT (Tang et al., "A Mixed Precision Expert Offloading System for Fast MoE Inference"), which loads less
precise weights if that changes little. HOBBIT decides by the gate's score for each token; we decide by the agreement
that was measured for each expert, and run a finding again if it is nearly a tie.

The file is long because the seconds and bytes of each variant stand beside the choice that compares them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from statistics import fmean

from coe import config, values
from coe.board.graph import ExpertGraph
from coe.board.router import Escalation, Router, first_experts, usage
from coe.board.rules import Rules
from coe.config import format_bytes
from coe.core import FULL, added, again_id
from coe.errors import ConfigError, did_you_mean
from coe.scheduler.costs import Cost
from coe.store.manifest import PreparedVariant

MODES = ("fp32", "half", "mixed")
_WEIGHTS = tuple(part / 8 for part in (4, 5, 3, 6, 2, 7, 1, 8, 0))
"""Weights of running against loading, the even weight first: among equally good choices the first is taken."""
_BODIES_TRIED = 16
"""So many bodies, those with the most experts, are tried one by one."""
_FINEST_FIRST = ("fp32", "bf16", "fp16", "q8", "int8", "delta")

Offers = Mapping[str, "Mapping[str, PreparedVariant]"]
"""Prepared variants, by expert and then by variant. Experts whose kind has no variants are left out."""
Costs = Mapping[tuple[str, str, str], Cost]
"""Costs by device, expert and variant; they always include fp32."""


@dataclass(frozen=True, slots=True)
class VariantChoice:
    """The variant of each expert, and the margins under which experts run again in fp32, for those that do.

    `expected_s` is the time of an image in the model of `choose`, with the experts in `resident` always in memory;
    `reason` is a sentence for people.
    """

    variants: Mapping[str, str]
    escalate_below: Mapping[str, float]
    resident: frozenset[str] = frozenset()
    expected_s: float = 0.0
    reason: str = ""

    def after(self, before: VariantChoice) -> VariantChoice:
        """Return this choice for the experts that an earlier choice did not know; the others keep their variants.

        So an expert that stays on a line is not loaded again, and says the same.
        """
        below = {id: margin for id, margin in self.escalate_below.items() if id not in before.variants}
        return replace(
            self,
            variants={**self.variants, **before.variants},
            escalate_below={**below, **before.escalate_below},
        )


def check_precision(mode: str, floor: float) -> None:
    """Raise ConfigError for an unknown mode, or for a floor outside 0 to 1."""
    if values.text("precision", mode) not in MODES:
        raise ConfigError(f"'{mode}' is not a precision{did_you_mean(mode, MODES)}")
    try:
        values.real("label_floor", floor, least=0, most=1)
    except ConfigError:
        shown = values.shown(floor)
        raise ConfigError(f"a label floor of {shown} is no share; give a number from 0 to 1, such as 0.999") from None


def allowed(
    mode: str, offered: Mapping[str, PreparedVariant], devices: Collection[str], floor: float
) -> tuple[str, ...]:
    """Return the variants that an expert may run in, the finest first.

    These are fp32, and the variants that all devices run and whose labels were measured to agree with fp32 in a share
    of at least `floor`. "half" allows only the 16-bit variant, if it is among them.
    """
    sound = [variant for variant in _FINEST_FIRST if _is_sound(offered.get(variant), floor)]
    usable = [variant for variant in sound if variant != FULL and all(variant in _run_by(device) for device in devices)]
    if mode == "half":
        return tuple(variant for variant in usable if variant in ("bf16", "fp16"))[:1] or (FULL,)
    return (FULL, *usable) if mode == "mixed" else (FULL,)


def choose(
    mode: str,
    offers: Offers,
    graph: ExpertGraph,
    costs: Costs,
    budget_bytes: int,
    floor: float = config.LABEL_FLOOR,
    *,
    pools: int = 1,
    fixed_bytes: Callable[[Collection[tuple[str, str]]], int] = lambda pairs: 0,
) -> VariantChoice:
    """Choose the variants of all experts of a board, of which `budget_bytes` may be in memory at a time.

    The budget is in `pools` equal parts. `fixed_bytes` returns how much of it executors hold for given (expert,
    variant) pairs.

    "fp32" and "half" use one variant for every expert that has it. "mixed" chooses each expert's variant, and the
    experts in memory, to minimise the expected time of an image. An expert that an image needs with probability p takes
    p times a batch of one from the executors; p times a load from the disk if it is not resident; and both again in
    fp32 for the share `config.ESCALATED_SHARE` of its findings, if its variant has a threshold. Executors run while the
    disk reads, so the longer of the two sums counts (`_expected_s`). For a given weight of running against loading this
    is a multiple-choice knapsack (one choice per expert: absent, or resident in a variant), which `_fill` solves
    greedily; the best of several weights is taken. Every pool holds the bodies of its experts whole.

    The same arguments give the same choice.
    """
    devices = sorted({device for device, _, _ in costs})
    experts = sorted(graph.experts)
    sharers = Counter((device, cost.body.id) for (device, _, _), cost in costs.items() if cost.body is not None)
    prices = _Prices(offers, graph, costs, devices, sharers)

    def expected_s(taken: Mapping[str, _Option]) -> float:
        return _expected_s(taken, pools)

    def best(mode: str) -> tuple[int, dict[str, _Option]]:
        variants = {expert: allowed(mode, offers.get(expert, {}), devices, floor) for expert in experts}
        fixed = fixed_bytes([(expert, variant) for expert, usable in variants.items() for variant in usable])
        largest = max(prices.whole_bytes(expert, variant) for expert, usable in variants.items() for variant in usable)
        fits = not fixed or fixed + pools * largest <= budget_bytes
        return 0 if fits else fixed, prices.filling(variants, budget_bytes - fixed, pools)

    # The greedy is not exact: "mixed" may end worse than "half" or "fp32", so the best of the three is taken. If the
    # fixed bytes of no mode leave room for the largest expert, one with the fewest is taken: they are an upper bound.
    tried = {name: best(name) for name in (MODES if mode == "mixed" else dict.fromkeys((mode, FULL)))}
    least = min(lacking for lacking, _ in tried.values())
    fitting = [filling for lacking, filling in tried.values() if lacking == least] if mode == "mixed" else []
    taken = min(fitting or [tried[mode][1]], key=expected_s)
    variants = {expert: option.variant for expert, option in taken.items()}
    return VariantChoice(
        variants,
        {expert: below for expert, variant in variants.items() if (below := _below(offers, expert, variant)) > 0},
        frozenset(expert for expert, option in taken.items() if option.bytes),
        expected_s(taken),
        _reason(mode, taken, tried[FULL][1], offers, floor, budget_bytes, pools),
    )


def applied(board: Rules, choice: VariantChoice) -> Rules:
    """Return a board whose experts run in their chosen variants.

    Each expert with a threshold gets a successor, `again_id` of its id: an expert with the same weights in fp32, as
    likely as findings are in doubt, and with the same successors.
    """
    experts = {id: replace(expert, variant=choice.variants[id]) for id, expert in board.experts.items()}
    doubted = {id: below for id, below in choice.escalate_below.items() if id in experts}
    escalations = {id: Escalation(below, config.ESCALATED_SHARE) for id, below in doubted.items()}
    edges = list(board.graph.digraph.edges)
    for id in escalations:
        experts[again_id(id)] = replace(board.experts[id], id=again_id(id), variant=FULL)
        edges += [(id, again_id(id)), *((again_id(id), after) for after in board.graph.successors(id))]
    components = board.router.components
    probability = usage(components.values(), escalations)
    graph = ExpertGraph(experts.values(), edges, probability, first_experts(components.values()))
    router = Router(components, escalations, board.router.names)
    return replace(board, experts=experts, router=router, graph=graph)


@dataclass(frozen=True, slots=True)
class _Option:
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
class _Prices:
    """What the options of each expert cost, in bytes and in expected seconds per image."""

    offers: Offers
    graph: ExpertGraph
    costs: Costs
    devices: list[str]
    sharers: Mapping[tuple[str, str], int]
    """How many experts have a body, by device and body."""

    def filling(self, variants: Mapping[str, Iterable[str]], budget_bytes: int, pools: int) -> dict[str, _Option]:
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
        def options(paid: frozenset[str]) -> dict[str, list[_Option]]:
            return {expert: self._options(expert, usable, paid) for expert, usable in variants.items()}

        def filled(run: float, paid: frozenset[str]) -> dict[str, _Option]:
            return _fill(options(paid), left_bytes(paid), run / pools, 1 - run)

        def better(tried: Iterable[tuple[float, frozenset[str]]]) -> tuple[float, float, frozenset[str]]:
            fitting = [(run, paid) for run, paid in tried if not paid or left_bytes(paid) >= 0]
            found = [(_expected_s(filled(run, paid), pools), run, paid) for run, paid in fitting]
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

    def _options(self, expert: str, variants: Iterable[str], paid: frozenset[str] | None = None) -> list[_Option]:
        """Return all options for an expert: absent before resident, finer variants before coarser.

        With `paid`, only these bodies are in memory, and they are paid for; another comes with each load.
        """
        absent, resident = [], []
        needed = self.graph.probability(expert)
        for variant in variants:
            costs = [self.costs[device, expert, variant] for device in self.devices]
            full = [self.costs[device, expert, FULL] for device in self.devices]
            again = config.ESCALATED_SHARE if _below(self.offers, expert, variant) > 0 else 0.0
            run_s = fmean(cost.batch_s(1) for cost in costs) + again * fmean(cost.batch_s(1) for cost in full)
            again_s = again * fmean(cost.load_s for cost in full)
            load_s = fmean(cost.load_s for cost in costs) + again_s
            brought = {cost.body.id: cost.body.load_s for cost in costs if cost.body is not None}
            bodies = frozenset(brought)
            missing_s = sum(bodies_s for body, bodies_s in brought.items() if paid is not None and body not in paid)
            absent.append(_Option(variant, 0, needed * run_s, needed * (load_s + missing_s)))
            if paid is None or bodies <= paid:
                size = max(map(self._bytes, self.devices, costs) if paid is None else (c.weights_bytes for c in costs))
                resident.append(_Option(variant, size, needed * run_s, needed * again_s, bodies))
        return absent + resident

    def whole_bytes(self, expert: str, variant: str) -> int:
        """Return the bytes of an expert that is alone in a pool, with its body."""
        return max(self.costs[device, expert, variant].whole_bytes for device in self.devices)

    def _bytes(self, device: str, cost: Cost) -> int:
        """Return the bytes of a resident expert: its own, and an equal part of those of its body."""
        body = cost.body
        return cost.weights_bytes + (-(-body.bytes // self.sharers[device, body.id]) if body is not None else 0)


def _fill(options: Mapping[str, list[_Option]], budget_bytes: int, run: float, load: float) -> dict[str, _Option]:
    """Choose an option for each expert such that all fit and `run` times `run_s` plus `load` times `load_s` is low.

    Greedy by incremental efficiency: every expert begins with its option without bytes. Then the steps to the next
    larger option on each expert's lower convex hull are taken, over all experts, by falling seconds saved per byte, as
    far as they fit. The same steps solve the linear relaxation exactly (Sinha and Zoltners, "The Multiple-Choice
    Knapsack Problem", Operations Research 27, 1979), so the loss is at most the saving of the first step that does not
    fit.
    """

    def seconds(option: _Option) -> float:
        return run * option.run_s + load * option.load_s

    def efficiency(before: _Option, after: _Option) -> float:
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
    choices: Iterable[_Option], seconds: Callable[[_Option], float], efficiency: Callable[[_Option, _Option], float]
) -> list[_Option]:
    """Return the options on the lower convex hull by rising bytes and falling seconds: no mixture of two beats them."""
    hull: list[_Option] = []
    for option in sorted(choices, key=lambda option: (option.bytes, seconds(option))):
        if hull and seconds(option) >= seconds(hull[-1]):
            continue
        while len(hull) > 1 and efficiency(hull[-1], option) > efficiency(hull[-2], hull[-1]):
            hull.pop()
        hull.append(option)
    return hull


def _expected_s(taken: Mapping[str, _Option], executors: int) -> float:
    """Return how long an image keeps the executors together, or the disk, busy: the longer time."""
    run_s, load_s = added(option.run_s for option in taken.values()), added(option.load_s for option in taken.values())
    return max(run_s / executors, load_s)


def _is_sound(offered: PreparedVariant | None, floor: float) -> bool:
    return offered is not None and offered.agreement is not None and offered.agreement.labels_equal >= floor


def _run_by(device: str) -> tuple[str, ...]:
    return ("fp32", "bf16", "q8", "int8", "delta") if device == "cpu" else ("fp32", "fp16", "q8", "delta")


def _below(offers: Offers, expert: str, variant: str) -> float:
    """Return the margin under which an expert's findings in a variant are run again in fp32; 0 means never."""
    offered = offers.get(expert, {}).get(variant)
    return offered.escalate_below if offered is not None and variant != FULL else 0.0


def _reason(
    mode: str,
    taken: Mapping[str, _Option],
    full: Mapping[str, _Option],
    offers: Offers,
    floor: float,
    budget_bytes: int,
    executors: int,
) -> str:
    counts = Counter(option.variant for option in taken.values())
    words = ", ".join(f"{counts[variant]} in {variant}" for variant in _FINEST_FIRST if counts[variant])
    here, in_full = (sum(option.bytes > 0 for option in options.values()) for options in (taken, full))
    sentence = (
        f"precision {mode}: {words}; {here} of {len(taken)} experts fit into {format_bytes(budget_bytes)} "
        f"({in_full} in fp32), {1e3 * _expected_s(taken, executors):.3g} ms an image expected "
        f"({1e3 * _expected_s(full, executors):.3g} in fp32)"
    )
    wanted = {"fp32": (), "half": ("bf16", "fp16"), "mixed": _FINEST_FIRST[1:]}[mode]
    bare = sum(1 for offered in offers.values() if not offered.keys() & set(wanted)) if wanted else 0
    blobs = [[blob for variant, blob in offered.items() if variant in wanted] for offered in offers.values()]
    doubted = sum(1 for prepared in blobs if prepared and not any(_is_sound(blob, floor) for blob in prepared))
    if bare:
        sentence += f"; {bare} run in fp32 because they are not prepared (coe-experts prepare)"
    if doubted:
        sentence += f"; {doubted} run in fp32 because no variant was measured to agree in {100 * floor:g} % of labels"
    return sentence
