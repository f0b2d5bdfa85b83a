"""Strategies cannot lie: a bundle of policies that cannot work is refused where it is made, and any other works."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest
from lines import arrive, board, cost, line_of, log_of

from coe.errors import ConfigError
from coe.scheduler import policies
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec, joined
from coe.scheduler.policies.base import Policy
from coe.scheduler.policies.eviction.next_use import NextUse
from coe.scheduler.policies.select.ready import Ready
from coe.scheduler.strategies import STRATEGIES, Strategy
from coe.testing import VirtualLine, pools_of

LINE = STRATEGIES["line"]
SHARED = "one backlog that all executors share, as with assign policy 'shared'"
RESIDENT = "stages of resident experts to run before an executor waits for a load, as with select policy 'ready'"


@pytest.mark.parametrize(
    ("base", "changes", "sentence"),
    [
        (
            STRATEGIES["coserve"],
            {"eviction": "next-use"},
            f"eviction policy 'next-use' needs {SHARED}, and {RESIDENT}",
        ),
        (
            LINE,
            {"select": "head", "arrange": "group"},
            f"eviction policy 'next-use' needs {RESIDENT}",
        ),
        (STRATEGIES["coserve"], {"prefetch": "gain"}, f"prefetch policy 'gain' needs {SHARED}"),
        (STRATEGIES["coserve"], {"select": "ready"}, f"select policy 'ready' needs {SHARED}"),
        (
            LINE,
            {"prefetch": "none"},
            "select policy 'ready' needs experts to be loaded before an executor takes their stages, as with "
            + " or ".join(f"prefetch policy '{name}'" for name in policies.names("prefetch") if name != "none"),
        ),
        (
            STRATEGIES["coserve"],
            {"arrange": "together"},
            "arrange policy 'together' needs stages that have waited for long to run before others, as with select "
            "policy 'ready' or select policy 'slack'",
        ),
    ],
    ids=lambda part: "+".join(part.values()) if isinstance(part, dict) else "",
)
def test_a_bundle_that_cannot_work_is_refused(base: Strategy, changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(base, name="mine", **changes)  # type: ignore[arg-type]
    assert str(caught.value) == f"strategy 'mine' cannot work: {sentence}"


def test_a_policy_that_does_not_exist_is_refused_where_it_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^there is no eviction policy 'lrv'; did you mean 'lru'\?"):
        Strategy("mine", eviction="lrv")


def without_needs(monkeypatch: pytest.MonkeyPatch, policy: type[Policy], base: Strategy, **changes: str) -> VirtualLine:
    """A line of one executor whose strategy would be refused; its pool holds one expert, at first a."""
    with pytest.raises(ConfigError):
        replace(base, **changes)  # type: ignore[arg-type]
    monkeypatch.setattr(policy, "needs", frozenset())
    strategy = replace(base, **changes)  # type: ignore[arg-type]
    return line_of(board({"A": 3, "B": 2}), 14, strategy=strategy)


def test_next_use_behind_a_head_that_waits_for_its_load_would_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a's first batch b is the head and needs a's place; a stays, for a stage waits for it behind the head."""
    line = without_needs(monkeypatch, NextUse, STRATEGIES["coserve"], eviction="next-use")
    arrive(line, 10.0, "ABA")
    with pytest.raises(AssertionError, match="2 open stages"):
        line.run()
    assert log_of(line, after=10.0) == [(10.0, "cpu0 run a x1")]


def test_taking_only_what_is_resident_would_wait_for_ever_where_nothing_is_loaded_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = without_needs(monkeypatch, Ready, LINE, prefetch="none")
    arrive(line, 10.0, "ABA")
    with pytest.raises(AssertionError, match="1 open stages"):
        line.run()
    assert log_of(line, after=10.0) == [(10.0, "cpu0 run a x1"), (10.3, "cpu0 run a x1")]


def test_the_same_images_in_a_bundle_that_is_not_refused() -> None:
    line = line_of(board({"A": 3, "B": 2}), 14, strategy=replace(LINE, prefetch="next-group"))
    arrive(line, 10.0, "ABA")
    line.run()
    assert log_of(line, after=10.0) == [
        (10.0, "cpu0 run a x1"),
        (10.3, "cpu0 run a x1"),
        (10.6, "cpu evict a"),
        (10.6, "cpu load b"),
        (11.6, "cpu0 run b x1"),
    ]


TWO_DEVICES = Plan(
    (PoolSpec("cpu0", "cpu", 30, 4), PoolSpec("gpu0", "gpu", 30, 4)),
    (ExecutorSpec("cpu0", "cpu", "cpu0"), ExecutorSpec("gpu0", "gpu", "gpu0")),
)


BUNDLES = [30, pytest.param(90, marks=pytest.mark.slow)]
"""How many of the bundles are tried with each assign policy and plan: all of them would take minutes."""


@pytest.mark.parametrize("bundles", BUNDLES)
@pytest.mark.parametrize("plan", [pools_of(2, 30, 4), TWO_DEVICES], ids=["one device", "two devices"])
@pytest.mark.parametrize("assign", policies.names("assign"))
def test_any_bundle_is_refused_or_answers_every_image(assign: str, plan: Plan, bundles: int) -> None:
    rules = board({"A": 8, "B": 5, "C": 4, "D": 3, "E": 1}, {"a": "y", "c": "z", "d": "[y, z]"})
    tried = 0
    # These experts have one variant each, so no precision policy is ever asked.
    others = {family: policies.names(family) for family in policies.FAMILIES if family not in ("assign", "precision")}
    named = list(product(*others.values()))
    for names in random.Random(assign).sample(named, bundles):
        try:
            strategy = Strategy("tried", assign, **dict(zip(others, names, strict=True)))  # type: ignore[arg-type]
        except ConfigError:
            continue
        line = VirtualLine(rules, {name: cost() for name in rules.experts}, plan, strategy=strategy, evict_s=0.1)
        dice = random.Random(1)
        for index in range(40):
            line.arrive(10.0 + 0.1 * index, dice.choice("ABCDE"))
        line.run()
        assert [result.error for result in line.results.values()] == [None] * 40, strategy
        tried += 1
    assert tried >= 12 * bundles / 90


# Pools


def test_the_controller_has_the_pools_that_its_strategy_works_with() -> None:
    given = pools_of(2, 24, 4)
    for strategy, plan in (("coserve", given), ("line", joined(given))):
        line = VirtualLine(board({"A": 1}), {"a": cost()}, given, strategy=strategy)
        assert line.controller.plan == plan
        assert list(line.controller.pools) == [pool.id for pool in plan.pools]


def test_pools_that_are_joined_already_stay_as_they_are() -> None:
    line = VirtualLine(board({"A": 1}), {"a": cost()}, joined(pools_of(2, 24, 4)), strategy="line")
    assert line.controller.plan == joined(pools_of(2, 24, 4))


def test_a_strategy_says_what_it_does_by_its_policies() -> None:
    assert [(name, one.shared, one.hurries) for name, one in STRATEGIES.items() if one.shared or one.hurries] == [
        ("line", True, True),
        ("emoe", False, True),
    ]
    late_but_in_order = replace(LINE, arrange="group", select="head", eviction="lru")
    assert (late_but_in_order.shared, late_but_in_order.hurries) == (True, False)
