"""Which experts lie on which box. A pure function: the same experts and boxes give the same placement.

The objective, in seconds for each image of the cluster:

    J =  sum over p, s   f(p, s) * move_s * apart(p, s)
       + sum over k, b   (C(k, b)^2 + L(k, b)^2) / (2 * T(k))

    f(p, s)   images that go from predecessor p to successor s; apart is the share of the boxes of p that lack s
    C(k, b)   processor seconds of box b for images of board k: the sum of u(e, k) * stage_s(e) / n(e) / speed(b)
              over its experts e
    L(k, b)   seconds of loads of box b for board k: the sum of l(e) * u(e, k) / u(e) / n(e) over its experts e that
              are not worth holding; and, for all boards together, w for each byte that it lacks to hold the others
    w         the seconds of loads that a byte of the least worthy of the experts worth holding spares, for an image
    l(e)      load_s(e) * (1 - exp(-u(e) * W)) / W: of W images that wait together, those for e share a load
    u(e, k)   stages of e for an image of the cluster that belong to board k; u(e) is their sum
    n(e)      the number of boxes of e
    T(k)      the mean of C(k, b) + L(k, b) over the boxes, so that both sums are seconds

subject to the bytes of the experts that a box holds being at most its budget. Experts that occur together on a board
are needed at the same time, so each board's work is spread over the boxes as evenly as that of all boards together,
which counts as one more board k. Squares balance (the least sum of squares is that of equal boxes), and the first sum
keeps successors with their predecessors.

How J is made small, with the sources:

1. As if all memory were one, experts are held by the loads that they spare for each byte (Dantzig's greedy knapsack,
   1957).
2. Experts that lead to each other are joined to affinity groups (`coe.cluster.decisions.affinity_groups`).
3. Group after group, the heaviest first (Graham's LPT rule, 1969), goes to the box where J rises least, counting
   successors and predecessors that lie there (Fennel: Tsourakakis et al., WSDM 2014).
4. An expert gets another box as long as J falls by it (marginal allocation: Fox, 1966), and by more than load_s(e) / W
   for its load there: an expert that keeps more than one box busy, or a successor of experts on several boxes.
5. Each expert with a single box gets a standby: a second box that may load it, when the one box is busy or lost. The
   standbys of a box's experts are spread evenly over all others.

With the placement from `before`, an expert keeps its boxes (after Karger's monotone hashing, 1997): it moves only
from a box that is gone, then to its standby, or to a box that is new, as long as J falls by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from coe.board.graph import usage
from coe.board.rules import Rules
from coe.board.steps import Component
from coe.cluster.decisions.expert_placement import DEFAULT_TRAFFIC, BoxBudget, ExpertNeeds, ExpertPlacement, Traffic
from coe.cluster.decisions.placement_solver import PlacementSolver
from coe.cluster.decisions.routing import stage_prices
from coe.errors import ConfigError
from coe.helpers.arithmetic import added
from coe.scheduler.costs import CostTable
from coe.scheduler.plan import Plan


def place_experts(
    experts: Iterable[ExpertNeeds],
    boxes: Sequence[BoxBudget],
    traffic: Traffic = DEFAULT_TRAFFIC,
    before: ExpertPlacement | None = None,
) -> ExpertPlacement:
    """Place experts; see the module for the objective.

    `before` is the placement that holds now: few experts move then. Boxes count by their order, and not by their names.
    Raises ConfigError without a box, and for two boxes or two experts of one name.
    """
    experts = list(experts)
    needs = {need.expert: need for need in experts}
    if not boxes:
        raise ConfigError("experts cannot be placed without a box; name at least one")
    if len(needs) < len(experts) or len({box.id for box in boxes}) < len(boxes):
        raise ConfigError("two experts, or two boxes, have the same name; give each its own")
    most_bytes = max(box.bytes for box in boxes)
    fitting = {name: needs[name] for name in sorted(needs) if needs[name].bytes <= most_bytes}
    solver = PlacementSolver(fitting, boxes, traffic)
    if before is not None:
        solver.keep(before)
    solver.place_rest()
    if before is not None:
        solver.fill({number for number, box in enumerate(boxes) if box.id not in before.held})
    solver.replicate()
    return solver.placement(solver.standbys(before))


def needs_of(
    board: Rules,
    boards: Mapping[str, Collection[str]],
    costs: CostTable,
    plan: Plan,
    speeds: Mapping[str, float] | None = None,
) -> list[ExpertNeeds]:
    """Return what each expert of joined boards needs of a box with a plan.

    `boards` holds, by key, the rules (`Request.rule`) of each board; `speeds` as in
    `stage_prices`.
    """
    prices = stage_prices(costs, plan, board.experts, speeds)
    devices = dict.fromkeys(executor.device for executor in plan.executors)
    followers = board.router.followers()
    by_board = {key: _usage([board.components[rule] for rule in rules], board) for key, rules in boards.items()}
    return [
        ExpertNeeds(
            expert,
            max(costs(device, expert).weights_bytes for device in devices),
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
