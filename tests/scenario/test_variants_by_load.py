"""The variant of an expert chosen at each load: timetables, and what holds on any line."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from cases import LINE, Chosen
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import arrive, board, cost, inspect, log_of
from thorough import THOROUGH
from variants import Upgraded

from coe.board.rules import Rules
from coe.core import Finding, Verdict
from coe.inspector.memory_split import workspace_bytes
from coe.inspector.precision import VariantChoice, apply_choice
from coe.lab.strategies.by_load import ByLoad, OnMiss, Urgent
from coe.scheduler.costs import CostTable, Tier
from coe.scheduler.events import Command, Event, Load, Why
from coe.scheduler.plan import CacheSpec, ExecutorSpec, Plan, PoolSpec
from coe.scheduler.strategies import strategy
from coe.testing import VirtualLine, pools_of

FINE, COARSE = "fp32", "q8"
CHOICE = {FINE: cost(), COARSE: cost(weights_bytes=4, load_s=0.25)}


def line_of(rules: Rules, plan: Plan, residency: type[ByLoad], base: str = "coserve", **options: object) -> VirtualLine:
    """A line whose experts all have a choice, but for second looks."""
    doubting = apply_choice(
        rules, VariantChoice(dict.fromkeys(rules.experts, COARSE), dict.fromkeys(rules.experts, 0.5))
    )
    costs = {id: CHOICE if id in rules.experts else cost() for id in doubting.experts}
    chosen = replace(strategy(base), name="chosen", residency=residency)
    return VirtualLine(doubting, costs, plan, strategy=chosen, **options)


def variants(line: VirtualLine) -> list[tuple[str, str, str]]:
    return [(load.expert, load.why.value, load.variant) for load in line.loads]


def test_the_first_experts_are_fine_and_a_miss_is_read_in_few_bytes() -> None:
    line = line_of(board({"A": 3, "B": 2, "C": 1}), pools_of(1, 28, 4), OnMiss)
    assert log_of(line, (10.0, "C"), without="-") == [
        (0.0, "cpu0 load a"),
        (1.0, "cpu0 load b"),
        (10.0, "cpu0 load c"),
        (10.25, "cpu0 run c x1"),
        (10.55, "reply 0 OK"),
    ]
    assert variants(line) == [("a", "initial", FINE), ("b", "initial", FINE), ("c", "demand", COARSE)]


def test_only_a_coarse_finding_is_looked_at_again() -> None:
    doubtful = {(0, "a"): Finding("a", FINE, "ok", 1.0, margin=0.0), (1, "c"): Finding("c", COARSE, "ok", 1.0)}
    line = line_of(board({"A": 3, "B": 2, "C": 1}), pools_of(1, 28, 4), OnMiss, findings=doubtful)
    inspect(line, (10.0, "AC"))
    assert [[finding.expert for finding in result.findings] for result in line.results.values()] == [
        ["a"],
        ["c", "c@fp32"],
    ]


def test_a_load_is_urgent_while_another_absent_expert_is_waited_for() -> None:
    line = line_of(board({"A": 5, "B": 4, "C": 3, "D": 2, "E": 1}), pools_of(1, 28, 4), Urgent)
    inspect(line, (10.0, "CDE"))
    # c when it was the only expert that was waited for, then d while e waits too, then e alone.
    assert [load for load in variants(line) if load[1] in ("demand", "prefetch")] == [
        ("c", "demand", FINE),
        ("d", "prefetch", COARSE),
        ("e", "prefetch", FINE),
    ]


def test_a_load_is_urgent_while_a_stage_is_in_a_hurry() -> None:
    for due_s, variant in ((12.0, COARSE), (math.inf, FINE)):
        line = line_of(board({"A": 4, "B": 3, "C": 2, "D": 1}), pools_of(1, 28, 4), Urgent, "late-binding")
        line.arrive(10.0, "C")
        line.arrive(10.0, "D", due_s=due_s)
        line.run()
        assert next(chosen for expert, _, chosen in variants(line) if expert == "d") == variant


def test_an_idle_disk_replaces_a_coarse_expert_where_there_is_room() -> None:
    line = line_of(board({"A": 3, "B": 2, "C": 1, "D": 0.5}), pools_of(1, 36, 4), Upgraded, evict_s=0.1)
    assert log_of(line, (10.0, "D"), after=10.0) == [
        (10.0, "cpu0 evict c"),
        (10.1, "cpu0 load d"),
        (10.35, "cpu0 run d x1"),
        (10.65, "cpu0 evict d"),
        (10.75, "cpu0 load d"),
    ]
    assert variants(line)[-2:] == [("d", "demand", COARSE), ("d", "upgrade", FINE)]
    assert line.controller.pools["cpu0"].variant("d") == FINE


def idle_with_two_coarse_experts(*devices: str) -> VirtualLine:
    """A line on which b and c, coarse, have the room of a at 11.3 s; more than two events a second wake it."""
    rules = board({"A": 9, "B": 2, "C": 1})
    doubting = apply_choice(
        rules, VariantChoice(dict.fromkeys(rules.experts, COARSE), dict.fromkeys(rules.experts, 0.5))
    )
    costs = {id: CHOICE if id in rules.experts else cost() for id in doubting.experts}
    costs["a"] = {FINE: cost(weights_bytes=36), COARSE: cost(weights_bytes=30)}
    plan = Plan(
        tuple(PoolSpec(device, device, 42, 4) for device in devices),
        tuple(ExecutorSpec(device, device, device) for device in devices),
    )
    chosen = replace(strategy("samba"), name="chosen", residency=Upgraded)
    line = VirtualLine(doubting, costs, plan, strategy=chosen, evict_s=0.5)
    arrive(line, 10.0, "BC")
    for event in range(12):
        line.reject(11.0 + 0.4 * event, "A", "it is no picture")
    return line


def test_the_next_expert_leaves_for_its_upgrade_once_the_last_is_back() -> None:
    line = idle_with_two_coarse_experts("cpu")
    line.run()
    assert log_of(line, after=11.3)[1:] == [
        (11.3, "cpu evict b"),
        (11.8, "cpu load b"),
        (12.8, "cpu evict c"),
        (13.3, "cpu load c"),
    ]
    assert [line.controller.pools["cpu"].variant(expert) for expert in "bc"] == [FINE, FINE]


def test_a_line_that_is_stopped_while_an_expert_leaves_for_its_upgrade_ends() -> None:
    line = idle_with_two_coarse_experts("cpu")
    line.stop(11.5)
    line.run()
    assert len(line.controller.pools["cpu"]) == 1


@pytest.mark.parametrize("lost_s", [10.9, 11.2, 11.35, 11.85])
def test_coarse_experts_of_a_lost_device_are_not_upgraded(lost_s: float) -> None:
    line = idle_with_two_coarse_experts("cpu", "gpu")
    line.lose(lost_s, "cpu")
    late = arrive(line, 17.0, "BC")
    line.run()
    assert not [what for when_s, what in line.log if when_s > lost_s and what.startswith("cpu load")]
    assert [line.results[number].verdict for number in (0, 1, *late)] == [Verdict.OK] * 4


def test_an_image_that_comes_during_an_upgrade_waits_for_its_end() -> None:
    line = line_of(board({"A": 3, "B": 2, "C": 1, "D": 0.5}), pools_of(1, 36, 4), Upgraded)
    assert log_of(line, (10.0, "D"), (11.0, "D"), after=10.6) == [(11.55, "cpu0 run d x1")]


def test_a_copy_in_host_memory_is_loaded_as_it_is() -> None:
    plan = Plan((PoolSpec("gpu0", "gpu", 24, 4),), (replace(pools_of(1, 1).executors[0], device="gpu", pool="gpu0"),))
    plan = replace(plan, cache=CacheSpec(100, demotes=True))
    rules = board({"A": 4, "B": 3, "C": 2})
    doubting = apply_choice(rules, VariantChoice(dict.fromkeys(rules.experts, COARSE), {}))
    choice = {name: replace(each, copy_s=0.05) for name, each in CHOICE.items()}
    chosen = replace(strategy("late-binding"), residency=Upgraded)
    line = VirtualLine(doubting, dict.fromkeys(rules.experts, choice), plan, strategy=chosen)
    line.arrive(10.0, "C")
    line.run()
    # While the disk was idle c was read in the coarse variant, and that is what the device gets.
    # A finer variant comes from the disk, and its copy replaces the coarse copy.
    assert [(load.expert, load.why, load.source, load.variant) for load in line.loads[-2:]] == [
        ("c", Why.DEMAND, Tier.HOST, COARSE),
        ("c", Why.UPGRADE, Tier.DISK, FINE),
    ]
    assert line.controller.cache.variant("c") == FINE


def test_the_workspace_holds_a_batch_in_any_variant() -> None:
    choices = {FINE: cost(activation_bytes=7), COARSE: cost(weights_bytes=4)}
    table = CostTable({("cpu", "a"): choices[COARSE]}, {("cpu", "a", name): each for name, each in choices.items()})
    assert workspace_bytes("cpu", 100, ["a"], table) == 25
    assert workspace_bytes("cpu", 17, ["a"], table) == 7


def test_costs_in_a_variant_follow_the_pace_of_a_machine() -> None:
    table = CostTable({("cpu", "a"): CHOICE[COARSE]}, {("cpu", "a", FINE): CHOICE[FINE]}).following()
    while table.ran("cpu", "a", 1, 0.9) is None:
        pass
    assert table.of("cpu", "a", FINE).base_s == pytest.approx(0.6)
    assert table.variants("a") == (FINE,)
    assert table.of("cpu", "a", "never").weights_bytes == 4


def test_a_strategy_says_whether_loads_vary() -> None:
    assert not strategy("late-binding").varies
    assert replace(strategy("late-binding"), residency=Urgent).varies


@given(
    LINE,
    st.sampled_from([OnMiss, Urgent, Upgraded]),
    st.lists(st.tuples(st.sampled_from("ABCDE"), st.sampled_from([0.0, 0.1, 3.0])), min_size=1, max_size=25),
    st.frozensets(st.integers(0, 24), max_size=6),
    st.integers(1, 3),
)
@settings(max_examples=14 * THOROUGH)
def test_every_image_has_its_verdict_and_a_coarse_finding_in_doubt_is_never_the_last(
    chosen: Chosen, residency: type[ByLoad], images: list[tuple[str, float]], doubtful: frozenset[int], fits: int
) -> None:
    base, executors, _, evict_s = chosen
    rules = board({"A": 8, "B": 5, "C": 4, "D": 3, "E": 1}, {"a": "y", "c": "z", "d": "[y, z]"})
    line = line_of(rules, pools_of(executors, 10 * fits + 4, 4), residency, base, evict_s=evict_s)
    at_s = 0.0
    for letter, wait_s in images:
        at_s += wait_s
        line.arrive(at_s, letter)
    find = line._simulator.oracle.find
    line._simulator.oracle.find = lambda request, expert, variant=None: replace(
        find(request, expert, variant), margin=0.0 if request.id in doubtful else 1.0
    )
    line.run()
    assert [result.verdict for result in line.results.values()] == [Verdict.OK] * len(images)
    for number, result in line.results.items():
        looked = {finding.expert: finding.variant for finding in result.findings}
        for expert, variant in looked.items():
            if expert in rules.experts:
                again = f"{expert}@fp32" in looked
                assert again == (variant == COARSE and number in doubtful)


class Told(VirtualLine):
    """Proves that a load from host memory finds a copy in its own variant there."""

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        super().observe(event, commands, now, control_s)
        cache = self.controller.cache
        assert cache is not None
        for load in (command for command in commands if isinstance(command, Load)):
            self.from_host += load.source is Tier.HOST
            assert load.source is Tier.DISK or cache.variant(load.expert) == load.variant, load

    from_host = 0


def told(residency: type[ByLoad], base: str, images: list[tuple[str, float]], *, copies: int, evict_s: float) -> Told:
    """Run images on two GPUs behind one host memory."""
    devices = ("gpu0", "gpu1")
    plan = Plan(
        tuple(PoolSpec(device, device, 18, 4) for device in devices),
        tuple(ExecutorSpec(device, device, device) for device in devices),
        CacheSpec(copies, frozenset(devices)),
    )
    rules = board({"A": 8, "B": 5, "C": 4, "D": 3, "E": 1}, {"a": "y", "c": "z"})
    choice = {variant: replace(one, copy_s=0.1) for variant, one in CHOICE.items()}
    chosen = replace(strategy(base), name="chosen", residency=residency)
    line = Told(rules, dict.fromkeys(rules.experts, choice), plan, strategy=chosen, evict_s=evict_s)
    at_s = 0.0
    for letter, wait_s in images:
        at_s += wait_s
        line.arrive(at_s, letter)
    line.run()
    return line


@given(
    st.sampled_from([OnMiss, Upgraded, Urgent]),
    st.sampled_from(["late-binding", "coserve", "emoe"]),
    st.lists(st.tuples(st.sampled_from("ABCDE"), st.sampled_from([0.0, 0.1, 0.6, 4.0])), min_size=1, max_size=25),
    st.sampled_from([10, 14, 30]),
    st.sampled_from([0.0, 0.5, 2.0]),
)
@settings(max_examples=20 * THOROUGH, deadline=None)
def test_a_load_planned_in_one_variant_never_takes_the_copy_of_another(
    residency: type[ByLoad], base: str, images: list[tuple[str, float]], copies: int, evict_s: float
) -> None:
    line = told(residency, base, images, copies=copies, evict_s=evict_s)
    assert [result.error for result in line.results.values()] == [None] * len(images)


@pytest.mark.parametrize("residency", [OnMiss, Urgent])
def test_only_urgent_upgrades(residency: type[ByLoad]) -> None:
    line = line_of(board({"A": 8, "B": 5, "C": 4, "D": 3, "E": 2, "F": 1}), pools_of(1, 36, 4), residency)
    inspect(line, (10.0, "DEF"))
    upgrades = [expert for expert, why, _ in variants(line) if why == "upgrade"]
    assert bool(upgrades) == (residency is Urgent)


def test_an_upgrade_never_has_another_expert_leave() -> None:
    line = line_of(board({"A": 8, "B": 5, "C": 4, "D": 3, "E": 1}), pools_of(1, 34, 4), Upgraded)
    for index, letter in enumerate("ABCDEEDCBAEDDCBA"):
        line.arrive(10.0 * index, letter)
    line.run()
    commands = [command for _, _, answer in line.history for command in answer]
    upgrades = [command for command in commands if isinstance(command, Load) and command.why is Why.UPGRADE]
    assert upgrades
    for before, after in pairwise(commands):
        if isinstance(after, Load) and after.why is Why.UPGRADE:
            assert before.expert == after.expert
