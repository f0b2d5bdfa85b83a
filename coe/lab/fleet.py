"""Boards of a simulated cluster: several boards on one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coe.board import rules
from coe.board.rules import Rules
from coe.board.union import Member, union
from coe.core import rule_of
from coe.errors import ConfigError


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
