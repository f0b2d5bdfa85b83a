"""The rules of several boards as one `Rules`: one router, one graph, one memory for the experts that they share.

Nothing of one board changes a verdict of another. Components keep apart by the key of their board, experts by
their ids; results show the names that the board files use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coe.board.graph import ExpertCircle, ExpertGraph
from coe.board.router import Router
from coe.board.rules import Rules
from coe.board.steps import Component, Step
from coe.core import Expert, rule_of
from coe.errors import BoardsClash
from coe.helpers import strict_yaml


@dataclass(frozen=True, slots=True)
class Member:
    """A board of a union, known under `key` (`Request.board_key`).

    `experts` holds, by the name in its file, each expert as the union knows it: boards that name one id share that
    expert. `mix` is how many of these boards pass in the time of others; 0 says that no more images of it come.
    """

    key: str
    rules: Rules
    experts: Mapping[str, Expert]
    mix: float = 1.0


def union(members: Sequence[Member]) -> Rules:
    """Join the rules of boards; raises BoardsClash if experts that they share follow each other in a circle.

    The count of a component is its count on its board times the mix of the board, so that usage probabilities are those
    of an image of the whole line. The keys of the members differ.
    """
    experts = {expert.id: expert for member in members for expert in member.experts.values()}
    components = {rule: component for member in members for rule, component in _components(member).items()}
    try:
        graph = ExpertGraph.of(experts.values(), components.values())
    except ExpertCircle as error:
        boards = " and ".join(f"'{member.rules.board}'" for member in members)
        raise BoardsClash(
            f"boards {boards} share experts, and in both together {error}; "
            "give these experts another name in one of the board files"
        ) from None
    names = {expert.id: name for member in members for name, expert in member.experts.items() if expert.id != name}
    return Rules(
        " + ".join(member.rules.board for member in members),
        members[0].rules.path,
        strict_yaml.digest_of_all([member.rules.digest for member in members]),
        experts,
        Router(components, names=names),
        graph,
        {member.experts[name].id: text for member in members for name, text in member.rules.unsaid.items()},
        {rule_of(member.key, name): place for member in members for name, place in member.rules.places.items()},
    )


def _components(member: Member) -> dict[str, Component]:
    """Return a board's components by their rule, with the union's ids, counted for the whole line."""
    own = {name for expert in member.experts.values() for name in expert.stops if name}
    done: dict[Step, Step] = {}
    return {
        rule_of(member.key, name): replace(
            component,
            count=component.count * member.mix,
            root=_with_ids(component.root, member.experts, name, {} if name in own else done),
        )
        for name, component in member.rules.components.items()
    }


def _with_ids(root: Step, experts: Mapping[str, Expert], component: str, done: dict[Step, Step]) -> Step:
    """Return a step with the union's ids, and all that may follow it; steps that paths share stay shared."""
    for step in reversed(list(root.walk())):
        if step not in done:
            outcomes = {
                label: tuple(done[following] for following in outcome) if isinstance(outcome, tuple) else outcome
                for label, outcome in step.outcomes.items()
            }
            expert = experts[step.expert]
            stops = expert.stops.get(component, expert.stops.get("", {}))
            done[step] = replace(step, expert=expert.id, outcomes=outcomes, stops=stops)
    return done[root]
