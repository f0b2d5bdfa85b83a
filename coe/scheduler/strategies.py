"""Strategies: bundles of policies, found by the name of an entry point or by a dotted path, as kinds of experts are.

A bundle that cannot work is refused when it is made: each policy states what it needs from the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coe.board.parts_list import PlacedPart
from coe.errors import ConfigError
from coe.helpers import plugins, values
from coe.scheduler import policies
from coe.scheduler.plan import Plan, joined
from coe.scheduler.policies.base import Arrange, Assign, Eviction, Need, Policy, Prefetch, Select
from coe.scheduler.policies.late_binding import Gain, GroupByExpert, Ready, Shared
from coe.scheduler.policies.next_use import NextUse

GROUP = "coe.strategies"
"""The group of entry points by whose names strategies are found."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One policy of each family: the name of an entry point, a dotted path, or a class; CoServe's unless you say so.

    With `single` only the first executor works, with the whole budget. With `cached` host memory that is separate from
    the device's runs no experts: it is a cache between disk and device. Raises ConfigError for an
    unknown policy, for a class that is no policy, and for a policy whose needs the others do not meet.

    Example:
        >>> Strategy("patient", assign="shared", select="ready", eviction="lru", prefetch="gain").shared
        True
    """

    name: str
    assign: str | type[Assign] = "makespan"
    arrange: str | type[Arrange] = "group"
    select: str | type[Select] = "head"
    eviction: str | type[Eviction] = "dependency"
    prefetch: str | type[Prefetch] = "next-group"
    single: bool = False
    cached: bool = False

    def __post_init__(self) -> None:
        for family in policies.FAMILIES:
            policy: str | type[Policy] = getattr(self, family)
            needs = policies.class_of(family, policy).needs
            if missing := [need for need in Need if need in needs and not self._has(need)]:
                name = policies.name_of(family, policy)
                wanted = ", and ".join(f"{need}, as with {_givers(need)}" for need in missing)
                raise ConfigError(f"strategy '{self.name}' cannot work: {family} policy '{name}' needs {wanted}")

    @property
    def shared(self) -> bool:
        """Whether all executors take from one backlog, and the executors of a device share one pool."""
        return self._has(Need.SHARED_BACKLOG)

    @property
    def hurries(self) -> bool:
        """Whether stages that have waited for long, or are due, go first."""
        return self._has(Need.DUE_FIRST)

    @property
    def foresees(self) -> bool:
        """Whether experts are loaded before their images come, by a parts list or the boards before."""
        return self._has(Need.FORESIGHT)

    def pooled(self, plan: Plan) -> Plan:
        """Return the plan with the pools that this strategy needs: one pool for each device if it is `shared`."""
        return joined(plan) if self.shared else plan

    def _has(self, need: Need) -> bool:
        return any(need in policies.class_of(family, getattr(self, family)).gives for family in policies.FAMILIES)


def _givers(need: Need) -> str:
    return " or ".join(
        f"{family} policy '{name}'"
        for family in policies.FAMILIES
        for name in policies.names(family)
        if need in policies.class_of(family, name).gives
    )


LATE_BINDING = Strategy("late-binding", Shared, GroupByExpert, Ready, NextUse, Gain)


def names() -> list[str]:
    """Return the names of the strategies that installed packages offer."""
    return plugins.names(GROUP)


def strategy(name: str | Strategy) -> Strategy:
    """Return a strategy by the name of an entry point or by a dotted path, or a strategy as it is; raises ConfigError.

    `strategy("my_package.module:FAST")` imports any package: who names it wants its code to run. Its name is the one
    under which it was found, so that files which name it find it again.
    """
    if isinstance(name, Strategy):
        return name
    name = values.text("strategy", name)
    found = plugins.load(name, None, group=GROUP, noun="strategy")
    if not isinstance(found, Strategy):
        raise ConfigError(f"strategy '{name}' is {values.shown(found)}, not a {Strategy.__module__}.Strategy")
    return found if found.name == name else replace(found, name=name)


def check_hurry(chosen: Strategy, *, max_wait_s: float | None = None, within_s: float | None = None) -> None:
    """Raise ConfigError for a bound that is not a time, or that the strategy would ignore; None means no bound."""
    for name, bound_s, words in (
        ("max_wait_s", max_wait_s, "an image can wait at most"),
        ("within_s", within_s, "a result can be there within"),
    ):
        if bound_s is None:
            continue
        values.seconds(name, bound_s, meaning=words)
        if not chosen.hurries:
            raise ConfigError(
                f"strategy '{chosen.name}' uses neither ages nor due times, so {bound_s:g} s has no effect; leave it "
                f"out, or use {LATE_BINDING.name}"
            )


def check_parts(chosen: Strategy, parts: Mapping[str, Sequence[PlacedPart]]) -> None:
    """Raise ConfigError for parts lists, by board, that the strategy would ignore."""
    if any(parts.values()) and not chosen.foresees:
        raise ConfigError(
            f"strategy '{chosen.name}' does not look ahead, so a parts list has no effect; leave it out, or use "
            f"{LATE_BINDING.name}"
        )
