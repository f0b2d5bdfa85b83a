"""`stop_at_ng: true`: an image that is NG already is looked at no further, and gets its one result as before."""

from dataclasses import replace

import pytest
from cases import LINE, cases, watch
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import board, cost, inspect, line_of, log_of, stopping
from thorough import THOROUGH

from coe.core import Verdict
from coe.errors import RulesError
from coe.inspector.precision import VariantChoice, apply_choice
from coe.lab.workloads.workload import with_counts
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec
from coe.testing import VirtualLine, rules_from


def fan():
    """Component A: expert a, and after it both x and y must pass; x stays resident, y must be loaded."""
    return board({"A": 3, "X": 2}, {"a": "[x, y]"})


def test_a_stage_of_an_ng_image_is_withdrawn_before_it_runs():
    timetables = {}
    for word, rules in {"goes on": fan(), "stops": stopping(fan())}.items():
        line = line_of(rules, 24, findings={(0, "x"): "bad"})
        inspect(line, (10.0, "A"))
        timetables[word] = log_of(line, without="-", after=10.0)
    begin = [(10.0, "cpu0 run a x1"), (10.3, "cpu0 run x x1")]
    assert timetables == {
        "goes on": [
            *begin,
            (10.3, "cpu0 evict a"),
            (10.3, "cpu0 load y"),
            (11.3, "cpu0 run y x1"),
            (11.6, "reply 0 NG"),
        ],
        "stops": [*begin, (10.3, "cpu0 evict a"), (10.3, "cpu0 load y"), (10.6, "reply 0 NG")],
    }


def test_a_stage_that_runs_is_awaited_and_its_finding_is_in_the_result():
    line = line_of(stopping(fan()), 34, executors=2, strategy="samba-parallel", findings={(0, "x"): "bad"})
    inspect(line, (10.0, "A"))
    result = line.results[0]
    assert result.verdict is Verdict.NG
    assert len(line.results) == 1
    assert {finding.expert for finding in result.findings} >= {"a", "x"}


def test_images_that_are_not_ng_are_looked_at_to_the_end():
    line = line_of(stopping(fan()), 44)
    inspect(line, (10.0, "AA"))
    assert [[finding.expert for finding in result.findings] for result in line.results.values()] == [
        ["a", "x", "y"]
    ] * 2


@pytest.mark.parametrize("first", ["x", "y"])
def test_ng_counts_whichever_branch_came_first_even_if_the_other_branch_failed(first):
    other = {"x": "y", "y": "x"}[first]
    line = line_of(stopping(fan()), 44, findings={(0, first): "bad"}, bad_stages=frozenset({(0, other)}))
    inspect(line, (10.0, "A"))
    assert (line.results[0].verdict, line.results[0].error) == (Verdict.NG, None)


def test_a_stage_in_a_hurry_is_withdrawn_too():
    line = line_of(stopping(fan()), 24, strategy="late-binding", findings={(0, "x"): "bad"}, max_wait_s=0.1)
    inspect(line, (10.0, "A"))
    assert line.results[0].verdict is Verdict.NG
    assert "cpu0 run y x1" not in [what for _, what in line.log]


def test_a_stage_that_a_lost_device_gave_back_is_not_queued_again_for_an_ng_image():
    rules = stopping(fan())
    costs = {expert: cost() for expert in rules.experts} | {"x": cost(per_image_s=5.0), "y": cost(per_image_s=3.0)}
    plan = Plan(
        tuple(PoolSpec(f"{device}0", device, 44, 4) for device in ("cpu", "gpu")),
        tuple(ExecutorSpec(f"{device}0", device, f"{device}0") for device in ("cpu", "gpu")),
    )
    line = VirtualLine(rules, costs, plan, strategy="samba-parallel", findings={(0, "y"): "bad"})
    line.arrive(10.0, "A")
    line.lose(13.0, "gpu")
    line.run()
    assert [what for _, what in line.log if " run " in what or "reply" in what] == [
        "cpu0 run a x1",
        "cpu0 run y x1",
        "gpu0 run x x1",
        "reply 0 NG",
    ]


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
@settings(max_examples=14 * THOROUGH)
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
