"""Which variant each expert runs in, and which experts' doubtful findings are run again in full precision.

After HOBBIT (Tang et al., "A Mixed Precision Expert Offloading System for Fast MoE Inference"), which loads less
precise weights if that changes little. HOBBIT decides by the gate's score for each token; we decide by the agreement
that was measured for each expert, and run a finding again if it is nearly a tie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from coe import config, values
from coe.board.expected_use import first_experts, usage
from coe.board.graph import ExpertGraph
from coe.board.router import Router
from coe.board.rules import Rules
from coe.board.steps import Escalation
from coe.config import format_bytes
from coe.core import FULL, again_id
from coe.errors import ConfigError, did_you_mean
from coe.inspector.variant_knapsack import Costs, Offers, VariantOption, VariantPrices, expected_image_s, margin_below
from coe.scheduler.costs import CostTable
from coe.store.manifest import PreparedVariant

MODES = ("fp32", "half", "mixed")
_FINEST_FIRST = ("fp32", "bf16", "fp16", "q8", "int8", "delta")


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
            self, variants={**self.variants, **before.variants}, escalate_below={**below, **before.escalate_below}
        )


class LineCosts(CostTable):
    """The costs of a line's experts in their chosen variants, and in all variants that they might have run in.

    `by_variant` holds the costs in all variants, by device, expert and variant: with them another line makes the same
    choice without measuring.
    """

    def __init__(self, by_variant: Costs, choice: VariantChoice) -> None:
        table = {
            (device, expert): cost
            for (device, expert, variant), cost in by_variant.items()
            if choice.variants[expert] == variant
        }
        table |= {
            (device, again_id(expert)): cost
            for (device, expert, variant), cost in by_variant.items()
            if variant == FULL and expert in choice.escalate_below
        }
        super().__init__(table)
        self.by_variant = dict(by_variant)


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
    fp32 for `again_share` of its findings, if its variant has a threshold. Executors run while the
    disk reads, so the longer of the two sums counts. For a given weight of running against loading this is a
    multiple-choice knapsack (one choice per expert: absent, or resident in a variant), solved greedily in
    `coe.inspector.variant_knapsack`; the best of several weights is taken. Every pool holds the bodies of
    its experts whole.

    The same arguments give the same choice.
    """
    devices = sorted({device for device, _, _ in costs})
    experts = sorted(graph.experts)
    sharers = Counter((device, cost.body.id) for (device, _, _), cost in costs.items() if cost.body is not None)
    prices = VariantPrices(offers, graph, costs, devices, sharers)

    def expected_s(taken: Mapping[str, VariantOption]) -> float:
        return expected_image_s(taken, pools)

    def best(mode: str) -> tuple[int, dict[str, VariantOption]]:
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
        {expert: below for expert, variant in variants.items() if (below := margin_below(offers, expert, variant)) > 0},
        frozenset(expert for expert, option in taken.items() if option.bytes),
        expected_s(taken),
        _reason(mode, taken, tried[FULL][1], offers, floor, budget_bytes, pools),
    )


def apply_choice(board: Rules, choice: VariantChoice) -> Rules:
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


def _is_sound(offered: PreparedVariant | None, floor: float) -> bool:
    return offered is not None and offered.agreement is not None and offered.agreement.labels_equal >= floor


def _run_by(device: str) -> tuple[str, ...]:
    return ("fp32", "bf16", "q8", "int8", "delta") if device == "cpu" else ("fp32", "fp16", "q8", "delta")


def _reason(
    mode: str,
    taken: Mapping[str, VariantOption],
    full: Mapping[str, VariantOption],
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
        f"({in_full} in fp32), {1e3 * expected_image_s(taken, executors):.3g} ms an image expected "
        f"({1e3 * expected_image_s(full, executors):.3g} in fp32)"
    )
    wanted = {"fp32": (), "half": ("bf16", "fp16"), "mixed": _FINEST_FIRST[1:]}[mode]
    bare = sum(1 for offered in offers.values() if not offered.keys() & set(wanted)) if wanted else 0
    blobs = [[blob for variant, blob in offered.items() if variant in wanted] for offered in offers.values()]
    doubted = sum(1 for prepared in blobs if prepared and not any(_is_sound(blob, floor) for blob in prepared))
    if bare:
        sentence += f"; {bare} run in fp32 alone (coe-experts prepare makes more, or says why not)"
    if doubted:
        sentence += f"; {doubted} run in fp32 because no variant was measured to agree in {100 * floor:g} % of labels"
    return sentence
