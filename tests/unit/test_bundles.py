"""Strategies cannot lie: a bundle of policies that cannot work is refused where it is made, and any other works."""

import math
import re
from dataclasses import replace
from functools import cached_property

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lines import board, cost, inspect, line_of, log_of
from thorough import THOROUGH

from coe.errors import ConfigError
from coe.scheduler import policies
from coe.scheduler.events import Evict, Load, Run, Why
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec
from coe.scheduler.policies.base import Eviction, Need, Select
from coe.scheduler.policies.coserve import COSERVE
from coe.scheduler.policies.late_binding import Ready
from coe.scheduler.policies.next_use import NextUse
from coe.scheduler.strategies import LATE_BINDING, Strategy
from coe.testing import VirtualLine, pools_of


@pytest.mark.parametrize(
    ("base", "changes", "policy", "helpers"),
    [
        (COSERVE, {"eviction": "next-use"}, "next-use", {"shared", "ready"}),
        (LATE_BINDING, {"select": "head", "arrange": "group"}, "next-use", {"ready"}),
        (COSERVE, {"prefetch": "gain"}, "gain", {"shared"}),
        (COSERVE, {"select": "ready"}, "ready", {"shared", "gain"}),
        (LATE_BINDING, {"prefetch": "next-group"}, "ready", {"gain"}),
        (LATE_BINDING, {"prefetch": "none"}, "ready", {"gain"}),
        (COSERVE, {"arrange": "group-by-expert"}, "group-by-expert", {"ready", "slack"}),
    ],
    ids=lambda part: "+".join(part.values()) if isinstance(part, dict) else "",
)
def test_a_bundle_that_cannot_work_is_refused(base, changes, policy, helpers):
    """The refusal names the strategy, the policy that lacks something, and the policies that would help."""
    with pytest.raises(ConfigError) as caught:
        replace(base, name="mine", **changes)
    assert re.findall(r"'([a-z-]+)'", str(caught.value))[:2] == ["mine", policy]
    assert set(re.findall(r"'([a-z-]+)'", str(caught.value))[2:]) == helpers


def test_an_expert_that_came_on_demand_runs_before_another_takes_its_place():
    """Both images are old, and the least slack is always that of the expert that is absent."""
    costs = dict.fromkeys("ab", cost(load_s=1.5, base_s=0.1))
    line = line_of(board({"A": 1, "B": 1}), 14, strategy="emoe", max_wait_s=2.0, costs=costs)
    assert log_of(line, (0.0, "A"), (0.1, "B")) == [
        (0.0, "cpu0 load a"),
        (1.5, "cpu0 evict a"),
        (1.5, "cpu0 load b"),
        (3.0, "cpu0 run b x1"),
        (3.2, "cpu0 evict b"),
        (3.2, "cpu0 load a"),
        (4.7, "cpu0 run a x1"),
    ]


@pytest.mark.parametrize(
    ("policy", "base", "changes"),
    [
        # b is the head after a's first batch and needs a's place; a stays, for a stage waits for it behind the head.
        (NextUse, COSERVE, {"eviction": "next-use"}),
        # Only what is resident is taken, and nothing is loaded ahead.
        (Ready, LATE_BINDING, {"prefetch": "none"}),
    ],
    ids=["next-use behind a head", "ready and no loads"],
)
def test_policies_that_wait_for_each_other_go_on_by_the_last_resort(monkeypatch, policy, base, changes):
    with pytest.raises(ConfigError):
        replace(base, **changes)
    monkeypatch.setattr(policy, "needs", frozenset())
    line = line_of(board({"A": 3, "B": 2}), 14, strategy=replace(base, **changes))
    assert log_of(line, (10.0, "ABA"), after=10.0) == [
        (10.0, "cpu0 run a x1"),
        (10.3, "cpu0 run a x1"),
        (10.6, f"{line.loads[-1].pool} evict a"),
        (10.6, f"{line.loads[-1].pool} load b"),
        (11.6, "cpu0 run b x1"),
    ]


class Silent(Select):
    def rank(self, executor, world, now):
        yield from ()


class Keeping(Eviction):
    def rank(self, pool, world, now):
        return pool.by_arrival()

    def stays(self, expert, newcomer, why):
        return True


@pytest.mark.parametrize(
    "changes", [{"select": Silent}, {"eviction": Keeping}, {"select": Silent, "eviction": Keeping}]
)
def test_policies_of_yours_that_stand_still_go_on_by_the_last_resort(changes):
    strategy = replace(COSERVE, name="mine", **changes)
    line = line_of(board({"A": 3, "B": 2, "C": 1}), 24, strategy=strategy, executors=2)
    inspect(line, (10.0, "ABCABCC"))
    assert [result.error for result in line.results.values()] == [None] * 7


TWO_DEVICES = Plan(
    (PoolSpec("cpu0", "cpu", 30, 4), PoolSpec("gpu0", "gpu", 30, 4)),
    (ExecutorSpec("cpu0", "cpu", "cpu0"), ExecutorSpec("gpu0", "gpu", "gpu0")),
)


class Checked(VirtualLine):
    """Proves that an expert that came on demand runs before it leaves, as long as stages wait for it."""

    def observe(self, event, commands, now, control_s=0.0):
        super().observe(event, commands, now, control_s)
        assert len(self.history) < 5000, "experts come and go without end"
        for command in commands:
            if isinstance(command, Evict):
                why, ran = self.came.pop((command.pool, command.expert), (Why.INITIAL, True))
                backlogs = self.controller.world.backlogs(command.pool)
                is_wanted = any(backlog.waiting(command.expert) for backlog in backlogs)
                assert ran or why is not Why.DEMAND or not is_wanted, command
            if isinstance(command, Load):
                self.came[command.pool, command.expert] = command.why, False
            if isinstance(command, Run):
                pool = next(spec.pool for spec in self.controller.plan.executors if spec.id == command.executor)
                self.came[pool, command.batch.expert] = Why.DEMAND, True

    @cached_property
    def came(self):
        """By pool and expert: why it was loaded, and whether it has run since."""
        return {}


ANY_BUNDLE = st.fixed_dictionaries({family: st.sampled_from(policies.names(family)) for family in policies.FAMILIES})
ANY_IMAGES = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.1, 1.0, 4.0]),
        st.sampled_from("ABCDE"),
        st.sampled_from(["", "S", "T"]),
        st.sampled_from([math.inf, 1.0, 5.0]),
    ),
    min_size=1,
    max_size=25,
)
"""By image: how long after the image before it comes, its component and serial, and when it is due."""
ANY_PLAN = st.sampled_from([*(pools_of(*sizes, 4) for sizes in ((1, 14), (1, 24), (2, 14), (2, 30))), TWO_DEVICES])
ANY_WAIT, ANY_LOAD = st.sampled_from([2.0, 8.0, 600.0]), st.sampled_from([0.1, 1.0, 3.0])


def answer_all(strategy, images, plan, max_wait_s, load_s):
    rules = board({"A": 8, "B": 5, "C": 4, "D": 3, "E": 1}, {"a": "y", "c": "z", "d": "[y, z]"})
    costs = {name: cost(load_s=load_s) for name in rules.experts}
    line = Checked(
        rules, costs, plan, strategy=strategy, evict_s=0.1, max_wait_s=max_wait_s if strategy.hurries else None
    )
    now = 0.5
    for gap_s, component, serial, within_s in images:
        now += gap_s
        line.arrive(now, component, serial=serial, due_s=now + within_s)
    line.run()
    assert [result.error for result in line.results.values()] == [None] * len(images)


@given(ANY_BUNDLE, ANY_IMAGES, ANY_PLAN, ANY_WAIT, ANY_LOAD)
@settings(max_examples=16 * THOROUGH, deadline=None)
def test_no_bundle_that_is_accepted_stands_still_whatever_is_due(names, images, plan, max_wait_s, load_s):
    try:
        strategy = Strategy("tried", **names)
    except ConfigError:
        assume(False)
    answer_all(strategy, images, plan, max_wait_s, load_s)


@given(ANY_BUNDLE, ANY_IMAGES, ANY_PLAN, ANY_WAIT, ANY_LOAD)
@settings(max_examples=12 * THOROUGH, deadline=None)
def test_nor_does_one_whose_policies_do_not_state_their_needs(names, images, plan, max_wait_s, load_s):
    """As with policies of a user's own. One backlog is made all the same where a policy cannot be made without."""
    with pytest.MonkeyPatch.context() as patch:
        for family, name in names.items():
            policy = policies.class_of(family, name)
            patch.setattr(policy, "needs", policy.needs & {Need.SHARED_BACKLOG})
            if Need.SHARED_BACKLOG in policy.needs:
                names = {**names, "assign": "shared"}
        answer_all(Strategy("tried", **names), images, plan, max_wait_s, load_s)


def test_a_strategy_says_what_it_does_by_its_policies():
    assert [(one.shared, one.hurries, one.foresees) for one in (COSERVE, LATE_BINDING)] == [(False,) * 3, (True,) * 3]
    late_but_in_order = replace(LATE_BINDING, arrange="group", select="head", eviction="lru")
    assert (late_but_in_order.shared, late_but_in_order.hurries) == (True, False)
