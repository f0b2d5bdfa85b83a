"""Which variant each expert runs in, and which experts' doubtful findings are run again in full precision.

After HOBBIT (Tang et al., "A Mixed Precision Expert Offloading System for Fast MoE Inference"), which loads less
precise weights if that changes little. HOBBIT decides by the gate's score for each token; we decide by the agreement
that was measured for each expert, and run a finding again if it is nearly a tie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from coe import config
from coe.board.graph import ExpertGraph, first_experts, usage
from coe.board.router import Router
from coe.board.rules import Rules
from coe.board.steps import Escalation
from coe.config import format_bytes
from coe.core import FULL, again_id
from coe.errors import ConfigError, did_you_mean
from coe.helpers import values
from coe.scheduler.costs import Cost, CostTable
from coe.store.manifest import PreparedVariant

MODES = ("fp32", "mixed")
_SMALLEST_FIRST = ("int8", "q8", "fp16")

Offers = Mapping[str, "Mapping[str, PreparedVariant]"]
"""Prepared variants, by expert and then by variant. Experts whose kind has no variants are left out."""
Costs = Mapping[tuple[str, str, str], Cost]
"""Costs by device, expert and variant; they always include fp32."""


@dataclass(frozen=True, slots=True)
class VariantChoice:
    """The variant of each expert, and the margins under which experts run again in fp32, for those that do.

    `reason` is a sentence for people.
    """

    variants: Mapping[str, str]
    escalate_below: Mapping[str, float]
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
        self.by_variant, self.choice = dict(by_variant), choice


def check_precision(name: str, mode: object) -> str:
    """Return a precision; raises ConfigError for a word that is none."""
    if (word := values.text(name, mode)) not in MODES:
        raise ConfigError(f"'{word}' is not a precision{did_you_mean(word, MODES)}")
    return word


def allowed(mode: str, offered: Mapping[str, PreparedVariant], devices: Collection[str], floor: float) -> str:
    """Return the variant that an expert runs in: "mixed" takes the smallest whose measured agreement holds.

    All devices must run it, its labels must agree with fp32 in a share of at least `floor`, and at most half of the
    real pictures that it was prepared with may have needed a second look; else it is fp32.
    """
    for variant in _SMALLEST_FIRST if mode != FULL else ():
        if all(variant in _run_by(device) for device in devices) and is_sound(offered.get(variant), floor):
            return variant
    return FULL


def choose(mode: str, offers: Offers, variants: Mapping[str, str], costs: Costs, floor: float) -> VariantChoice:
    """Return the choice of these `variants`, by expert, with a sentence on what it brings.

    `offers` and `costs` are those of all experts in their variants and in fp32.
    """
    below = {
        expert: offers[expert][variant].escalate_below
        for expert, variant in variants.items()
        if variant != FULL and offers[expert][variant].escalate_below > 0
    }
    return VariantChoice(variants, below, _reason(mode, variants, offers, costs, floor))


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


def is_sound(offered: PreparedVariant | None, floor: float = config.LABEL_FLOOR) -> bool:
    """Tell whether the measured agreement of a variant holds, so that "mixed" takes it."""
    if offered is None or (agreement := offered.agreement) is None:
        return False
    # What generated pictures leave in doubt says nothing of real ones.
    looks_twice = agreement.again if offered.escalate_below > 0 and not agreement.generated else 0.0
    return agreement.labels_equal >= floor and looks_twice <= config.AGAIN_AT_MOST


def _run_by(device: str) -> tuple[str, ...]:
    return ("q8", "fp16") if config.is_gpu(device) else ("int8",)


def _reason(mode: str, variants: Mapping[str, str], offers: Offers, costs: Costs, floor: float) -> str:
    counts = Counter(variants.values())
    words = ", ".join(f"{counts[variant]} in {variant}" for variant in (FULL, *_SMALLEST_FIRST) if counts[variant])
    taken, full = _bytes(variants, costs), _bytes(dict.fromkeys(variants, FULL), costs)
    sentence = f"precision {mode}: {words}; experts take {format_bytes(taken)} ({format_bytes(full)} in fp32)"
    lesser = [[blob for name, blob in offered.items() if name != FULL] for offered in offers.values()]
    if bare := sum(not blobs for blobs in lesser):
        sentence += f"; {bare} run in fp32 alone (coe-experts prepare makes more, or says why not)"
    if doubted := sum(bool(blobs) and not any(is_sound(blob, floor) for blob in blobs) for blobs in lesser):
        sentence += (
            f"; {doubted} run in fp32 because no variant was measured to agree in {100 * floor:g} % of labels, at most "
            "half of them at a second look"
        )
    return sentence


def _bytes(variants: Mapping[str, str], costs: Costs) -> int:
    """Return the bytes of all experts, each as on the device on which it takes most."""
    sizes = dict.fromkeys(variants.items(), 0)
    for (_, expert, variant), cost in costs.items():
        if (expert, variant) in sizes:
            sizes[expert, variant] = max(sizes[expert, variant], cost.weights_bytes)
    return sum(sizes.values())
