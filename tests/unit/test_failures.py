"""What goes wrong and what is made of it: each image still gets one reply, and the others go on."""

from contextlib import suppress
from dataclasses import replace
from inspect import getmembers, isfunction

import pytest
from lines import ENGINE, arrive, board, cost, inspect, line_of, log_of, plan_of, stopping

from coe import config
from coe.core import Finding
from coe.scheduler import policies
from coe.scheduler.events import Finished, Reply
from coe.scheduler.strategies import strategy
from coe.testing import VirtualLine


def failures_of(line):
    """The kinds of the failures, in the order of the images; "" for an answer."""
    return [result.failure.kind.value if result.failure else "" for _, result in sorted(line.results.items())]


def line_of_ab(capacity, **options):
    return line_of(board({"A": 2, "B": 1}), capacity, **options)


def test_a_load_that_fails_once_is_tried_again_and_one_of_the_start_when_it_is_needed():
    line = line_of_ab(14, bad_loads={"b": 1})
    assert log_of(line, (10.0, "BB"), after=10.0, without="cpu0 evict") == [
        (10.0, "cpu0 load b"),
        (11.0, "cpu0 load b"),
        (12.0, "cpu0 run b x2"),
        (12.4, "reply 0 OK"),
        (12.4, "reply 1 OK"),
    ]
    line = line_of_ab(24, bad_loads={"b": 1})
    inspect(line, (10.0, "B"))
    assert line.log == [
        (0.0, "cpu0 load a"),
        (1.0, "cpu0 load b"),
        (10.0, "cpu0 load b"),
        (11.0, "cpu0 run b x1"),
        (11.3, "reply 0 OK"),
    ]


def test_an_expert_that_cannot_be_loaded_is_named_and_left_alone_for_a_while_and_then_tried_again():
    line = line_of_ab(14, bad_loads={"b": 3})
    assert log_of(
        line, (10.0, "BBA"), (11.999 + config.RETRY_BROKEN_S, "B"), (12.001 + config.RETRY_BROKEN_S, "B"), after=10.0
    ) == [
        (10.0, "cpu0 evict a"),
        (10.0, "cpu0 load b"),
        (11.0, "cpu0 load b"),
        (12.0, "cpu0 load a"),
        (13.0, "cpu0 run a x1"),
        (72.001, "cpu0 evict a"),
        (72.001, "cpu0 load b"),  # the bound has passed: two new attempts, and the second is good
        (73.001, "cpu0 load b"),
        (74.001, "cpu0 run b x1"),
    ]
    assert failures_of(line) == ["load", "load", "", "load", ""]
    assert "'b'" in line.results[0].error
    assert line.results[3].latency_s == 0.0


def test_what_cannot_be_loaded_into_one_pool_still_runs_where_it_is_resident():
    line = line_of_ab(14, executors=2, costs={"a": cost(per_image_s=3.0)})
    line.run()
    line.bad_loads["a"] = 9
    arrive(line, 10.0, "AAA")  # the second is assigned to the other executor
    arrive(line, 13.0, "A")
    line.run(start=False)
    assert failures_of(line) == [""] * 4
    assert log_of(line, after=10.0) == [
        (10.0, "cpu0 run a x1"),
        (10.0, "cpu1 evict b"),
        (10.0, "cpu1 load a"),
        (11.0, "cpu1 load a"),
        (13.2, "cpu0 run a x3"),
    ]


def test_a_poisoned_stage_fails_alone():
    line = line_of_ab(24, bad_stages=frozenset({(3, "a")}))
    assert log_of(line, (10.0, "BAAAA"), after=10.0, without="cpu0 load") == [
        (10.0, "cpu0 run b x1"),
        (10.3, "reply 0 OK"),
        (10.3, "cpu0 run a x4"),
        (10.9, "cpu0 run a x1"),
        (11.2, "reply 1 OK"),
        (11.2, "cpu0 run a x1"),
        (11.5, "reply 2 OK"),
        (11.5, "cpu0 run a x1"),
        (11.8, "reply 3 error"),
        (11.8, "cpu0 run a x1"),
        (12.1, "reply 4 OK"),
    ]
    assert failures_of(line) == ["", "", "", "run", ""]
    assert "'a'" in line.results[3].error


def test_an_image_that_cannot_be_decoded_is_answered_at_once():
    line = line_of(board({"A": 1}), 14)
    line.reject(10.0, "A", "x.png: truncated")
    line.reject(10.0, "Z", "")
    line.run()
    assert log_of(line, after=10.0, without="cpu") == [(10.0, "reply 0 error"), (10.0, "reply 1 error")]
    assert [result.error for result in line.results.values()] == ["x.png: truncated", ""]


def test_a_label_that_no_rule_covers_or_a_branch_that_fails_keeps_what_was_found_under_its_experts_name():
    odd = Finding("x", "fp32", "smudge", 0.9)
    line = line_of(board({"A": 1}, {"a": "[x, y]"}), 44, findings={(0, "x"): odd})
    inspect(line, (10.0, "AA"))
    assert failures_of(line) == ["rules", ""]
    assert all(word in line.results[0].error for word in ("'x'", "'smudge'"))
    said = [(finding.expert, finding.label) for finding in line.results[0].findings]
    assert said == [("a", "ok"), ("x", "smudge"), ("y", "ok")]
    line = line_of(board({"A": 1}), 14, findings={(0, "a"): Finding("alias", "fp32", "bad", 1.0)})
    inspect(line, (10.0, "A"))
    assert line.results[0].verdict == "NG"
    line = line_of(board({"A": 1}, {"a": "[x, y]", "y": "z"}), 54, bad_stages=frozenset({(0, "x")}))
    inspect(line, (10.0, "A"))
    assert failures_of(line) == ["run"]
    assert [finding.expert for finding in line.results[0].findings] == ["a", "y", "z"]


def test_a_kind_that_says_too_few_or_too_many_findings_fails_its_own_images_alone():
    line = line_of_ab(24)
    arrive(line, 10.0, "BAAAB")
    handle = line.controller.handle

    def shortened(event, now):
        if isinstance(event, Finished) and event.findings[0].expert == "a":
            event = replace(event, findings=event.findings[1:])
        return handle(event, now)

    line.controller.handle = shortened
    line.run()
    assert failures_of(line) == ["", "run", "run", "run", ""]
    assert "0 findings" in line.results[1].error


def test_an_expert_that_two_branches_need_runs_once_even_if_it_fails():
    line = line_of(board({"A": 1}, {"a": "[x, y]", "x": "z", "y": "z"}), 54, bad_stages=frozenset({(1, "z")}))
    assert log_of(line, (10.0, "A"), (30.0, "A"), after=10.0, without="cpu0 load") == [
        (10.0, "cpu0 run a x1"),
        (10.3, "cpu0 run x x1"),
        (10.6, "cpu0 run y x1"),
        (10.9, "cpu0 run z x1"),
        (11.2, "reply 0 OK"),
        (30.0, "cpu0 run a x1"),
        (30.3, "cpu0 run x x1"),
        (30.6, "cpu0 run y x1"),
        (30.9, "cpu0 run z x1"),
        (31.2, "reply 1 error"),
    ]


@pytest.mark.parametrize("when", [10.1, 10.31, 10.95])
def test_when_the_user_stops_what_runs_is_finished_and_the_rest_is_answered(when):
    line = line_of(board({"A": 2, "B": 1}, {"a": "x"}), 14, bad_stages=frozenset({(2, "a")}))
    arrive(line, 10.0, "AAAB")
    line.stop(when)
    line.arrive(when + 1, "A")
    line.run()
    assert sorted(line.results) == [0, 1, 2, 3, 4]
    assert all(result.verdict is None for result in line.results.values())
    assert {line.results[number].error for number in (3, 4)} == {config.STOPPED}
    assert not [what for moment, what in line.log if moment > when and " run " in what]


def test_a_failure_says_of_which_kind_it_is():
    unsaid = Finding("a", "fp32", "martian", 1.0)
    line = line_of_ab(14, bad_loads={"b": 9}, bad_stages=frozenset({(3, "a")}), findings={(4, "a"): unsaid})
    line.reject(10.0, "A", "x.png: truncated")
    arrive(line, 10.0, "ZBAA")
    line.lose(40.0, "cpu")
    inspect(line, (50.0, "A"))
    assert failures_of(line) == ["image", "rules", "load", "run", "rules", "device"]


def test_a_batch_that_was_running_runs_again_elsewhere():
    rules = board({"A": 3, "B": 2, "C": 1}, {"a": "c"})
    line = VirtualLine(rules, dict.fromkeys("abc", cost()), plan_of(("cuda", "cpu"), 24))
    arrive(line, 10.0, "BB")
    line.lose(10.1, "cpu")
    line.run()
    assert log_of(line, after=10.0) == [(10.0, "cpu0 run b x1"), (10.1, "cuda0 load b"), (11.1, "cuda0 run b x2")]
    assert [result.latency_s for result in line.results.values()] == [pytest.approx(1.5)] * 2


STOPPING = stopping(board({"A": 3, "B": 1}, {"a": "[c, d]", "c": "e"}))


def failing(policy, calls):
    """Return a policy as the given one, whose methods raise after a number of calls."""
    left = iter(range(calls))

    def counted(method):
        def call(*arguments):
            if next(left, None) is None:
                raise ZeroDivisionError
            return method(*arguments)

        return call

    methods = {name: counted(method) for name, method in getmembers(policy, isfunction) if not name.startswith("_")}
    return type(policy.__name__, (policy,), methods)


def replies_of_each_step(chosen):
    """Return what the line has answered after each event, until it has inspected all images or a policy fails."""
    replies, steps = dict[int, object](), list[dict[int, object]]()
    with suppress(ZeroDivisionError):
        line = line_of(STOPPING, 44, executors=2, strategy=chosen, findings={(3, "a"): "bad", (4, "c"): "bad"})
        arrive(line, 0.5, "ABAAABAX")
        arrive(line, 8.0, "BAAAA")
        with suppress(ZeroDivisionError):
            line.run()
        for _, _, commands in line.history:
            replies |= {part.result.request.id: part.result.verdict for part in commands if isinstance(part, Reply)}
            steps.append(dict(replies))
    return steps


@pytest.mark.parametrize("family", policies.FAMILIES)
@pytest.mark.parametrize("name", ENGINE)
def test_a_policy_that_fails_costs_no_reply_that_is_decided(name, family):
    """Whichever of its methods fails, at whichever call."""
    known = strategy(name)
    good, calls, steps = replies_of_each_step(known), 0, list[dict[int, object]]()
    assert len(good[-1]) == 13
    while steps != good:
        broken = failing(policies.class_of(family, getattr(known, family)), calls)
        steps, calls = replies_of_each_step(replace(known, **{family: broken})), calls + 1  # type: ignore[arg-type]
        # An image that is NG already may be answered before its other branch has ended.
        assert not steps or good[len(steps) - 1].items() <= steps[-1].items() <= good[-1].items()
    assert calls > 5
