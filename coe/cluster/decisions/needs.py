"""What the experts of boards need of a box: the numbers that `coe.cluster.decisions.place_experts` works with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from coe.board.router import Component, usage
from coe.board.rules import Rules
from coe.cluster.decisions.expert_placement import BoxBudget, ExpertNeeds
from coe.cluster.decisions.forecast import stage_prices
from coe.core import added
from coe.scheduler.costs import CostTable
from coe.scheduler.plan import Plan


def needs_of(
    board: Rules,
    boards: Mapping[str, Collection[str]],
    costs: CostTable,
    plan: Plan,
    speeds: Mapping[str, float] | None = None,
) -> list[ExpertNeeds]:
    """Return what each expert of joined boards needs of a box with a plan.

    `boards` holds, by key, the rules (`Request.rule`) of each board; `speeds` as in
    `coe.cluster.decisions.forecast.stage_prices`.
    """
    prices = stage_prices(costs, plan, board.experts, speeds)
    devices = dict.fromkeys(executor.device for executor in plan.executors)
    followers = board.router.followers()
    by_board = {key: _usage([board.components[rule] for rule in rules], board) for key, rules in boards.items()}
    return [
        ExpertNeeds(
            expert,
            max(costs(device, expert).whole_bytes for device in devices),
            {key: shares[expert] for key, shares in by_board.items() if shares.get(expert)},
            prices[expert].run_s,
            prices[expert].load_s,
            followers.get(expert, {}),
        )
        for expert in board.experts
    ]


def budget_of(box: str, plan: Plan) -> BoxBudget:
    """Return the bytes that the pools of a box have for experts."""
    return BoxBudget(box, sum(pool.capacity_bytes - pool.workspace_bytes for pool in plan.pools))


def _usage(components: Sequence[Component], board: Rules) -> dict[str, float]:
    """Return how often an image of the whole line needs each expert for some components."""
    part = added(component.count for component in components)
    total = added(component.count for component in board.components.values())
    return {
        expert: share * part / total for expert, share in usage(components, board.router.escalations).items() if share
    }
