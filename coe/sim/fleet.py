"""Boards of a cluster: several boards on one line, and what each of their experts needs of a box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coe.board import rules
from coe.board.router import Component, usage
from coe.board.rules import Rules
from coe.board.union import Member, union
from coe.core import added, rule_of
from coe.errors import ConfigError
from coe.scheduler.costs import CostTable
from coe.scheduler.forecast import stage_prices
from coe.scheduler.homes import Needs
from coe.scheduler.plan import Plan


@dataclass(frozen=True, slots=True)
class Fleet:
    """Boards that pass equally often, joined; `boards` holds the rules (`Request.rule`) of each."""

    rules: Rules
    boards: Mapping[str, tuple[str, ...]]


def fleet(names: Sequence[str]) -> Fleet:
    """Join boards, by name or path; no two of them share an expert. Raises ConfigError for a board named twice."""
    members = [Member(f"board{number}", loaded, {}) for number, loaded in enumerate(rules.load(name) for name in names)]
    if len(set(names)) < len(names):
        raise ConfigError(f"--boards names a board twice: {', '.join(names)}; name each once")
    if len(members) == 1:
        return Fleet(members[0].rules, {members[0].rules.board: tuple(members[0].rules.components)})
    members = [
        replace(
            member,
            experts={name: replace(expert, id=f"{member.key}/{name}") for name, expert in member.rules.experts.items()},
        )
        for member in members
    ]
    return Fleet(
        union(members),
        {member.key: tuple(rule_of(member.key, name) for name in member.rules.components) for member in members},
    )


def needs_of(fleet: Fleet, costs: CostTable, plan: Plan, speeds: Mapping[str, float]) -> list[Needs]:
    """Return what each expert needs of a box with a plan; `speeds` as in `coe.scheduler.forecast.stage_prices`."""
    board = fleet.rules
    prices = stage_prices(costs, plan, board.experts, speeds)
    devices = dict.fromkeys(executor.device for executor in plan.executors)
    followers = board.router.followers()
    by_board = {key: _usage([board.components[rule] for rule in rules], board) for key, rules in fleet.boards.items()}
    return [
        Needs(
            expert,
            max(costs(device, expert).whole_bytes for device in devices),
            {key: shares[expert] for key, shares in by_board.items() if shares.get(expert)},
            prices[expert].run_s,
            prices[expert].load_s,
            followers.get(expert, {}),
        )
        for expert in board.experts
    ]


def _usage(components: Sequence[Component], board: Rules) -> dict[str, float]:
    """Return how often an image of the whole line needs each expert for some components."""
    part = added(component.count for component in components)
    total = added(component.count for component in board.components.values())
    return {
        expert: share * part / total for expert, share in usage(components, board.router.escalations).items() if share
    }
