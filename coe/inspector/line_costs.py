"""The costs of a board's experts in the variants that were chosen for them, second looks included."""

from __future__ import annotations

from coe.core import FULL, again_id
from coe.inspector.precision import Costs, VariantChoice
from coe.scheduler.costs import CostTable


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
