"""The default strategy as timetables of small lines: order, depth, and boards that stop at NG."""

import random
from dataclasses import replace

import pytest
from cases import LINE, cases, watch
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import ENGINE, arrive, board, cost, inspect, line_of, log_of, plan_of, said, stopping
from thorough import THOROUGH

from coe import config
from coe.core import Verdict
from coe.errors import RulesError
from coe.inspector.precision import VariantChoice, apply_choice
from coe.lab.workloads.workload import with_counts
from coe.scheduler.pool import State
from coe.testing import Troubles, VirtualLine, pools_of, rules_from


def test_executors_of_a_device_share_what_is_resident_and_what_waits():
    line = line_of(board({"A": 3, "B": 2}), 24, executors=2, strategy="late-binding")
    assert log_of(line, (10.0, "AAAAAB"), after=10.0) == [
        (10.0, "cpu0 run a x1"),
        (10.0, "cpu1 run a x1"),
        (10.3, "cpu0 run a x3"),
        (10.3, "cpu1 run b x1"),
    ]


def test_what_is_needed_once_is_loaded_before_what_may_come_again():
    """Two wait for d and two for b, which more images are likely to need: b runs them all in one stay."""
    rules, slow = board({"A": 9, "B": 8, "C": 1, "D": 1}), {"a": cost(per_image_s=1.0)}
    line = line_of(rules, 24, strategy="late-binding", costs=slow)
    inspect(line, (10.0, "ACDDBB"))
    assert said(line, "load") == ["cpu load c", "cpu load d", "cpu load b"]
    assert said(line, "run b") == ["cpu0 run b x2"]


def test_one_image_that_has_waited_for_long_goes_before_two_that_have_just_come():
    """One waits for d while c is loaded; two come for b, which is as likely, when the disk is nearly free."""
    line = line_of(board({"A": 9, "B": 1, "C": 1, "D": 1}), 14, strategy="late-binding", costs={"c": cost(load_s=5.0)})
    inspect(line, (10.0, "CD"), (14.8, "BB"))
    assert said(line, "load") == ["cpu load c", "cpu load d", "cpu load b"]


@pytest.mark.parametrize(("every_s", "seed"), [(0.25, 5), (0.5, 6)])
def test_with_room_for_few_experts_the_longest_waits_are_no_longer_than_those_of_coserve(every_s, seed):
    """Twelve experts, room for three, a load takes as long as a second of images: by gain alone rare ones wait."""
    counts = {chr(ord("A") + number): 1 + number % 5 for number in range(12)}
    waits = {}
    for strategy in ENGINE:
        chance, now = random.Random(seed), 0.0
        costs = dict.fromkeys(map(str.lower, counts), cost(per_image_s=0.02, base_s=0.05, max_batch=8))
        line = line_of(board(counts), 38, strategy=strategy, costs=costs)
        while now < 120:
            now += chance.expovariate(1 / every_s)
            line.arrive(now, chance.choices([*counts], [*counts.values()])[0])
        line.run()
        waits[strategy] = sorted(result.latency_s for result in line.results.values())
    p99 = {name: each[int(0.99 * len(each))] for name, each in waits.items()}
    p50 = {name: each[len(each) // 2] for name, each in waits.items()}
    assert p99["late-binding"] <= p99["coserve"]
    assert p50["late-binding"] < p50["coserve"]


@pytest.mark.parametrize("load_s", [0.2, 0.05])
def test_an_expert_that_never_leaves_runs_although_others_make_room_all_the_time(load_s):
    """The executor is busy for 95 % of the time, and a load takes less than a batch: there is always one to come."""
    counts = {chr(ord("A") + number): round(24 / (number + 1) ** 0.5) for number in range(16)}
    chance, price = random.Random(0), cost(per_image_s=0.04, base_s=0.056, load_s=load_s, max_batch=16)
    line = line_of(
        board(counts), 56, strategy="late-binding", workspace=16, costs=dict.fromkeys(map(str.lower, counts), price)
    )
    for number in range(1200):
        line.arrive(20.0 + 0.046 * number, chance.choices([*counts], [*counts.values()])[0])
    line.run()
    assert max(result.latency_s for result in line.results.values()) < 15.0


def test_a_detector_stays_while_its_predecessors_have_stages_waiting():
    """All are as likely to be used; it is what b will send that keeps d here."""
    rules = board({"A": 2, "B": 2, "C": 1}, {"b": "d"})
    line = line_of(rules, 34, strategy="late-binding", costs={"b": cost(per_image_s=2.0)})
    inspect(line, (10.0, "BBC"))
    assert said(line, "evict") == ["cpu evict a"]
    assert said(line, "load") == ["cpu load c"]


def test_what_is_to_make_room_runs_first_so_that_the_disk_need_not_wait_also_for_the_load_after_it():
    """Three wait for a and one for b: the fuller batch would be a's, but b's place is the one for c."""
    line = line_of(board({"A": 9, "B": 2, "C": 1}), 24, strategy="late-binding", costs={"c": cost(load_s=5.0)})
    inspect(line, (10.0, "AAAB"), (10.1, "C"), (10.2, "AAA"))
    runs = [what for _, what in log_of(line, after=10.0) if "run" in what or "load" in what]
    assert runs[1] == "cpu0 run b x1"
    assert runs[2:4] == ["cpu0 run a x4", "cpu load c"]
    rules = board({"A": 9, "B": 5, "E": 4, "C": 1, "D": 1})
    line = line_of(rules, 34, strategy="late-binding", costs={"a": cost(per_image_s=0.3)})
    inspect(line, (10.0, "CDAAAAAAAABE"))
    runs = [(when, what) for when, what in log_of(line, after=10.0) if "run" in what or "load" in what]
    assert runs[:4] == [(10.0, "cpu0 run a x1"), (10.0, "cpu load c"), (10.5, "cpu0 run b x1"), (10.8, "cpu0 run a x4")]


def waits(max_wait_s):
    """When the one image of b is answered while there are always more of a, and memory for one of them."""
    line = line_of(board({"A": 9, "B": 1}), 14, strategy="late-binding", max_wait_s=max_wait_s)
    for tenth in range(100, 1000, 2):
        line.arrive(tenth / 10, "A")
        line.arrive(tenth / 10, "A")
    lonely = line.arrive(10.5, "B")
    line.run()
    return next(when for when, what in line.log if what.startswith(f"reply {lonely} "))


def test_no_stage_waits_longer_than_it_may_and_the_oldest_goes_first_once_all_are_urgent():
    assert waits(max_wait_s=10.0) < 20.5
    assert waits(max_wait_s=600.0) > 80.0
    line = line_of(board({"A": 3, "B": 2}), 24, strategy="late-binding", max_wait_s=0.2, costs={"a": cost(max_batch=1)})
    inspect(line, (10.0, "AB"), (10.05, "AA"))
    assert said(line) == ["cpu0 run a x1", "cpu0 run b x1", "cpu0 run a x1", "cpu0 run a x1"]


def test_usage_that_drifts_is_noticed(monkeypatch):
    """The rules call c rare; after many images of it alone it is what is kept."""
    monkeypatch.setattr(config, "USAGE_IMAGES", 2000)
    line = line_of(board({"A": 60, "B": 50, "C": 1, "D": 1}), 24, strategy="late-binding")
    for number in range(2000):
        line.arrive(10.0 + number, "C")
    inspect(line, (2100.0, "D"))
    controller = line.controller
    assert controller.demand.usage("c") > 0.5 > controller.demand.usage("a")
    assert [(one.expert, one.by > 0) for one in controller.demand.drift(2)] == [("c", True), ("a", False)]
    assert next(what for _, what in log_of(line, after=2100.0)) != "cpu evict c"


def test_batches_stay_full_while_all_images_are_overdue_if_who_is_to_come_has_room_beside_them():
    """Memory is set aside for one image; a, b and one of c and d leave room for three more."""
    small = cost(activation_bytes=2, load_s=2.0)
    large = replace(small, weights_bytes=15)
    costs, rules = {"a": small, "b": small, "c": large, "d": large}, board({"A": 2, "B": 2, "C": 1, "D": 1})
    line = line_of(rules, 42, workspace=2, strategy="late-binding", costs=costs, max_wait_s=0.2)
    inspect(line, *((10 + 0.1 * number, letter) for number, letter in enumerate("ABABCABABD" * 6)))
    assert sum(" run " in what for _, what in line.log) < 30
    assert max(result.latency_s for result in line.results.values()) < 12


BOARD = board({"A": 3, "B": 2, "C": 1})


def line_of_depth(capacity=34, strategy="late-binding", depth=2, **troubles):
    plan = pools_of(1, capacity, 4)
    plan = replace(plan, executors=tuple(replace(executor, depth=depth) for executor in plan.executors))
    costs = {expert: cost() for expert in BOARD.experts}
    return VirtualLine(BOARD, costs, plan, strategy=strategy, troubles=Troubles(**troubles))


def test_the_next_batch_is_given_out_while_one_runs_and_begins_when_that_ends():
    line = line_of_depth()
    assert log_of(line, (10.0, "AAAB"), (10.1, "C"), after=10.0, without="late") == [
        (10.0, "cpu0 run a x1"),
        (10.0, "cpu0 run a x1"),
        # No sooner: there is room for two. The second batch begins when the first ends.
        (10.3, "reply 0 OK"),
        (10.3, "cpu0 run a x1"),
        (10.6, "reply 1 OK"),
        (10.6, "cpu0 run b x1"),
        (10.9, "reply 2 OK"),
        (10.9, "cpu0 run c x1"),
        (11.2, "reply 3 OK"),
        (11.5, "reply 4 OK"),
    ]


@pytest.mark.parametrize("strategy", ENGINE)
def test_the_expert_of_a_batch_that_waits_for_its_turn_stays(strategy):
    line, pinned = line_of_depth(14, strategy), []
    check = line.controller.check

    def watched(*, idle=False):
        check(idle=idle)
        for executor in line.controller.executors.values():
            for flight in executor.flights:
                assert executor.pool.state(flight.batch.expert) is State.READY
                assert not executor.pool.evictable(flight.batch.expert)
            pinned.append(len(executor.flights))

    line.controller.check = watched
    inspect(line, (10.0, "AABBCCAA"), (10.5, "CBA"))
    assert max(pinned) <= 2
    assert {result.error for result in line.results.values()} == {None}


def test_two_batches_of_a_device_fail_apart_are_answered_together_when_it_is_lost_and_finished_at_a_stop():
    line = line_of_depth(bad_stages=frozenset({(0, "a")}))
    inspect(line, (10.0, "AB"))
    assert [line.results[number].error is None for number in (0, 1)] == [False, True]
    assert log_of(line, without="late", after=10.0) == [
        (10.0, "cpu0 run a x1"),
        (10.0, "cpu0 run b x1"),
        (10.3, "reply 0 error"),
        (10.6, "reply 1 OK"),
    ]
    line = line_of_depth()
    arrive(line, 10.0, "AB")
    line.lose(10.1, "cpu")
    line.run()
    assert sorted(line.results) == [0, 1]
    assert all("cpu was lost" in result.error for result in line.results.values())
    line = line_of_depth()
    arrive(line, 10.0, "ABC")
    line.stop(10.1)
    line.run()
    assert [line.results[number].error is None for number in range(3)] == [True, True, False]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("max_wait_s", "every_s", "image_bytes", "late_bytes"), [(0.5, 0.1, 4, 38), (5, 0.2, 4, 38), (0.5, 0.1, 8, 20)]
)
def test_an_image_that_is_overdue_does_not_wait_while_batches_follow_each_other(
    depth, max_wait_s, every_s, image_bytes, late_bytes
):
    """Its expert needs the places of two others, or of what their batches take beyond what is set aside.

    Images for both, themselves in no hurry, come without end.
    """
    of_image = cost(activation_bytes=image_bytes)
    costs = {"a": replace(of_image, weights_bytes=1), "c": replace(of_image, weights_bytes=late_bytes)}
    plan = pools_of(1, 49, 11)
    plan = replace(plan, executors=tuple(replace(executor, depth=depth) for executor in plan.executors))
    line = VirtualLine(
        board({"A": 3}, {"a": "[b, c]"}), costs | {"b": of_image}, plan, strategy="late-binding", max_wait_s=max_wait_s
    )
    for number in range(200):
        line.arrive(number * every_s, "A")
    line.run()
    assert line.results[0].latency_s < 10


def fan():
    """Component A: expert a, and after it both x and y must pass; x stays resident, y must be loaded."""
    return board({"A": 3, "X": 2}, {"a": "[x, y]"})


def test_a_stage_of_an_ng_image_is_withdrawn_before_it_runs():
    begin = [(10.0, "cpu0 run a x1"), (10.3, "cpu0 run x x1"), (10.3, "cpu0 evict a"), (10.3, "cpu0 load y")]
    for rules, ends in (
        (fan(), [(11.3, "cpu0 run y x1"), (11.6, "reply 0 NG")]),
        (stopping(fan()), [(10.6, "reply 0 NG")]),
    ):
        line = line_of(rules, 24, findings={(0, "x"): "bad"})
        assert log_of(line, (10.0, "A"), without="-", after=10.0) == [*begin, *ends]


def test_at_ng_stages_are_withdrawn_also_hurried_ones_those_that_run_awaited_and_others_go_to_the_end():
    line = line_of(stopping(fan()), 44)
    inspect(line, (10.0, "AA"))
    assert all([finding.expert for finding in result.findings] == ["a", "x", "y"] for result in line.results.values())
    line = line_of(stopping(fan()), 24, strategy="late-binding", findings={(0, "x"): "bad"}, max_wait_s=0.1)
    inspect(line, (10.0, "A"))
    assert line.results[0].verdict is Verdict.NG
    assert not said(line, "run y")
    line = line_of(stopping(fan()), 34, executors=2, strategy="samba-parallel", findings={(0, "x"): "bad"})
    inspect(line, (10.0, "A"))
    result = line.results[0]
    assert result.verdict is Verdict.NG
    assert len(line.results) == 1
    assert {finding.expert for finding in result.findings} >= {"a", "x"}


@pytest.mark.parametrize("first", ["x", "y"])
def test_ng_counts_whichever_branch_came_first_even_if_the_other_branch_failed(first):
    other = {"x": "y", "y": "x"}[first]
    line = line_of(stopping(fan()), 44, findings={(0, first): "bad"}, bad_stages=frozenset({(0, other)}))
    inspect(line, (10.0, "A"))
    assert (line.results[0].verdict, line.results[0].error) == (Verdict.NG, None)


def test_a_stage_that_a_lost_device_gave_back_is_not_queued_again_for_an_ng_image():
    rules = stopping(fan())
    costs = {expert: cost() for expert in rules.experts} | {"x": cost(per_image_s=5.0), "y": cost(per_image_s=3.0)}
    line = VirtualLine(rules, costs, plan_of(("cpu", "gpu"), 44), strategy="samba-parallel", findings={(0, "y"): "bad"})
    line.arrive(10.0, "A")
    line.lose(13.0, "gpu")
    line.run()
    assert said(line, " run ") == ["cpu0 run a x1", "cpu0 run y x1", "gpu0 run x x1"]
    assert line.results[0].verdict is Verdict.NG


def test_the_key_is_a_word_of_the_rules_and_survives_what_is_made_of_them():
    text = "board: b\nstop_at_ng: true\nexperts:\n  a: {kind: k, labels: [ok, bad], input: 8, reject: [bad]}\n"
    rules = rules_from(text + "components:\n  A: {inspect: a}\n")
    assert rules.components["A"].stop_at_ng
    assert apply_choice(rules, VariantChoice({"a": "q8"}, {"a": 0.5})).components["A"].stop_at_ng
    assert with_counts(rules, {"A": 3}).components["A"].stop_at_ng
    assert not board({"A": 1}).components["A"].stop_at_ng
    with pytest.raises(RulesError, match="stop_at_ng"):
        rules_from(text.replace("true", "sometimes") + "components:\n  A: {inspect: a}\n")


@given(cases(), LINE, st.data())
@settings(max_examples=9 * THOROUGH)
def test_verdicts_are_those_of_a_board_that_goes_on(case, chosen, data):
    going_on = case.line(*chosen)
    going_on.run()
    bad_stages = frozenset[tuple[int, str]]()
    if data.draw(st.booleans()):
        stages = st.tuples(st.integers(0, len(case.arrivals) - 1), st.sampled_from(sorted(case.rules.experts)))
        bad_stages = data.draw(st.frozensets(stages, max_size=4))
    stopped = replace(case, rules=stopping(case.rules))
    line = watch(stopped.line(*chosen, bad_stages=bad_stages))
    line.run()
    assert sorted(line.results) == sorted(going_on.results)
    for number, result in line.results.items():
        if result.error is None:
            assert result.verdict is going_on.results[number].verdict
            assert set(result.findings) <= set(going_on.results[number].findings)
            assert result.verdict is Verdict.NG or result.findings == going_on.results[number].findings
