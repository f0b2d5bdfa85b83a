"""What holds on any board, on any line, whatever fails (DESIGN section 7)."""

import random
from collections import Counter

import pytest
from cases import LINE, answers, cases, watch
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import ENGINE, board, line_of
from thorough import THOROUGH

from coe.core import Failure, FailureKind, Finding, Request
from coe.scheduler import events
from coe.scheduler.events import Arrived, EventBatch, Evict, Evicted, Finished, Load, Loaded, Reply, Run, Why

FLOOD = 100
TIMES = st.sampled_from([0.0, 0.75, 3.0, 10.5])


@given(cases(), st.lists(LINE, min_size=2, max_size=3))
@settings(max_examples=9 * THOROUGH)
def test_verdicts_and_findings_are_the_same_on_every_line(case, lines):
    expected = None
    for chosen in lines:
        line = watch(case.line(*chosen))
        line.run()
        assert sorted(line.results) == list(range(len(case.arrivals)))
        assert all(result.verdict is not None for result in line.results.values())
        assert expected is None or answers(line) == expected
        expected = answers(line)


@given(cases(), LINE, st.data())
@settings(max_examples=9 * THOROUGH)
def test_each_image_gets_one_reply_whatever_fails(case, chosen, data):
    experts = sorted(case.rules.experts)
    stages = st.tuples(st.integers(0, len(case.arrivals) - 1), st.sampled_from(experts))
    bad_loads = data.draw(st.dictionaries(st.sampled_from(experts), st.sampled_from([1, 2, 3, 10**9]), max_size=4))
    bad_stages = data.draw(st.frozensets(stages, max_size=8))
    apart = data.draw(st.booleans())
    line = watch(case.line(*chosen, bad_loads=bad_loads, bad_stages=bad_stages, apart=apart))
    if data.draw(st.booleans()):
        line.stop(data.draw(TIMES))
    devices = sorted({pool.device for pool in line.controller.pools.values()})
    for device, at_s in data.draw(st.dictionaries(st.sampled_from(devices), TIMES)).items():
        line.lose(at_s, device)
    rejected = line.reject(0.5, "C0", "not an image")
    line.run()
    assert sorted(line.results) == [*range(len(case.arrivals)), rejected]
    for result in line.results.values():
        assert (result.verdict is None) == (result.error is not None)
    assert line.results[rejected].error == "not an image"


@given(cases(), LINE, st.data())
@settings(max_examples=6 * THOROUGH)
def test_a_poisoned_stage_spoils_its_own_image_alone(case, chosen, data):
    stages = st.tuples(st.integers(0, len(case.arrivals) - 1), st.sampled_from(sorted(case.rules.experts)))
    bad_stages = data.draw(st.frozensets(stages, min_size=1, max_size=8))
    good, bad = case.line(*chosen), watch(case.line(*chosen, bad_stages=bad_stages))
    good.run()
    bad.run()
    for number, result in good.results.items():
        met = {(number, finding.expert) for finding in result.findings} & bad_stages
        assert (bad.results[number].error is not None) == bool(met)
        assert met or answers(bad)[number] == answers(good)[number]


@given(cases(), LINE)
@settings(max_examples=6 * THOROUGH)
def test_an_expert_runs_once_for_an_image_and_is_used_before_it_leaves(case, chosen):
    line = case.line(*chosen)
    line.run()
    turns = Counter()
    fresh = set()
    for _, _, commands in line.history:
        for command in commands:
            match command:
                case Load() if command.why in (Why.DEMAND, Why.PREFETCH):  # a guess may be wrong
                    fresh.add((command.pool, command.expert))
                case Run():
                    turns.update(command.batch.stages)
                    pool = line.controller.executors[command.executor].pool.id
                    fresh.discard((pool, command.batch.expert))
                case Evict():
                    assert (command.pool, command.expert) not in fresh, "evicted before it was used"
    assert set(turns.values()) == {1}
    assert not fresh


@given(cases(), LINE, st.data())
@settings(max_examples=6 * THOROUGH)
def test_the_same_events_give_a_fresh_controller_the_same_ideas(case, chosen, data):
    bad_loads = data.draw(st.dictionaries(st.sampled_from(sorted(case.rules.experts)), st.integers(1, 3), max_size=2))
    line, fresh = case.line(*chosen, bad_loads=bad_loads), case.line(*chosen).controller
    line.run()
    started = fresh.start(0.0)
    assert line.loads[: len(started)] == started
    for now, event, commands in line.history:
        assert fresh.handle(event, now) == commands
    fresh.check(idle=True)


@given(cases(), LINE, st.integers(1, 2), st.data())
@settings(max_examples=6 * THOROUGH)
def test_devices_that_are_lost_change_no_verdict_while_one_is_left(case, chosen, lost, data):
    strategy, _, spare, evict_s = chosen
    good, line = case.line(*chosen), watch(case.line(strategy, lost + 1, spare, evict_s, apart=True))
    good.run()
    for number in range(lost):
        line.lose(data.draw(TIMES), f"cpu{number}")
    line.run()
    assert answers(line) == answers(good)


@given(cases(), LINE, st.data())
@settings(max_examples=5 * THOROUGH)
def test_no_image_waits_for_ever_while_others_pass(case, chosen, data):
    """The images of a case come at the beginning of a flood of images of one component."""
    line, flooding = case.line("late-binding", *chosen[1:]), data.draw(st.sampled_from(sorted(case.rules.components)))
    # So quick that batches of one do not keep up: then the flood's first expert always has images that wait.
    first = case.costs[case.rules.router.first(flooding).expert]
    every_s = max(0.1, data.draw(st.sampled_from([0.3, 0.7])) * first.batch_s(1))
    came = [at_s for at_s, _ in case.arrivals] + [number * every_s for number in range(FLOOD)]
    for at_s in came[len(case.arrivals) :]:
        line.arrive(at_s, flooding)
    line.run()
    replied = [at_s + line.results[number].latency_s for number, at_s in enumerate(came)]
    worst_s = sum(cost.load_s + chosen[3] + cost.batch_s(1) for cost in case.costs.values())
    for number, at_s in enumerate(came):
        due_s = at_s + case.max_wait_s
        # As if all experts were loaded for each image alone that is there by then, and for what is under way.
        waiting = sum(one_s <= due_s <= end_s for one_s, end_s in zip(came, replied, strict=True))
        assert replied[number] <= due_s + worst_s * (waiting + 4)


BOARD = board({"A": 5, "B": 3, "C": 1}, {"a": "d", "b": "d"})


def line(strategy):
    return line_of(BOARD, 34, strategy=strategy).controller


def answers_together(command):
    match command:
        case Load():
            return Loaded(command.pool, command.expert)
        case Evict():
            return Evicted(command.pool, command.expert)
        case Run():
            expert = command.batch.expert
            return Finished(command.executor, (Finding(expert, "fp32", "ok", 0.9, margin=0.9),) * len(command.batch))
    return None


def run(controller, came, chance, most):
    pending, replies, now = list(came), [], 0.0
    commands = controller.start(now)
    while True:
        pending += [event for command in commands if (event := answers_together(command)) is not None]
        replies += [command.result for command in commands if isinstance(command, Reply)]
        if not pending:
            break
        number, now = min(chance.randint(1, most), len(pending)), now + 0.1
        here, pending = pending[:number], pending[number:]
        commands = controller.handle(here[0] if number == 1 else EventBatch(tuple(here)), now)
        controller.check()
    controller.check(idle=True)
    return replies


@pytest.mark.parametrize("strategy", ["coserve", "late-binding"])
def test_images_that_come_together_run_together(strategy):
    arrived = tuple(Arrived(Request(number, "A")) for number in range(3))
    sizes = []
    for came in (arrived, (EventBatch(arrived),)):
        controller = line(strategy)
        pending = controller.start(0.0)
        while pending:
            load = pending.pop(0)
            pending += controller.handle(Loaded(load.pool, load.expert), 0.0)
        commands = [command for event in came for command in controller.handle(event, 1.0)]
        sizes.append([len(command.batch) for command in commands if isinstance(command, Run)])
    assert sizes == [[1], [3]]


@given(st.sampled_from(ENGINE), st.text("ABCX", max_size=20), st.integers(0, 99), st.integers(1, 9))
def test_every_image_gets_the_same_one_reply_however_events_come(strategy, components, seed, most):
    refused = Failure(FailureKind.IMAGE, "no picture")
    came = [
        events.Rejected(Request(number, name), refused) if name == "X" else Arrived(Request(number, name))
        for number, name in enumerate(components)
    ]
    replies = run(line(strategy), came, random.Random(seed), most)
    said = {result.request.id: (result.verdict, result.failure, len(result.findings)) for result in replies}
    assert len(replies) == len(said) == len(components)
    alone = run(line(strategy), came, random.Random(seed), 1)
    assert said == {result.request.id: (result.verdict, result.failure, len(result.findings)) for result in alone}


def test_whoever_watches_sees_each_event_and_all_commands_with_the_last():
    first, second = Loaded("cpu0", "a"), Evicted("cpu0", "b")
    commands = [Load("cpu0", "b", why=None)]
    assert list(events.single_steps(EventBatch((first, second)), commands)) == [(first, []), (second, commands)]
    for event in (first, None):
        assert list(events.single_steps(event, commands)) == [(event, commands)]


def test_findings_that_came_with_an_event_at_which_a_policy_fails_still_decide():
    controller = line_of(board({"A": 1, "B": 1}), 24, executors=2).controller
    pending = controller.start(0.0)
    for command in pending:
        pending += controller.handle(answers_together(command), 0.0)  # type: ignore[arg-type]
    arrived = [Arrived(Request(number, name)) for number, name in enumerate("AB")]
    runs = [command for event in arrived for command in controller.handle(event, 1.0)]
    assert [type(command) for command in runs] == [Run, Run]
    unknown = Loaded("cpu0", "martian")  # whatever raises while an event is taken in
    *replies, last = controller.handle(EventBatch((unknown, *map(answers_together, runs))), 2.0)  # type: ignore[arg-type]
    assert [reply.result.verdict for reply in replies if isinstance(reply, Reply)] == ["OK", "OK"]
    assert isinstance(last, events.GiveUp)
