"""What holds on any board, on any line, whatever fails (DESIGN section 7)."""

from collections import Counter

from cases import LINE, answers, cases, watch
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import THOROUGH

from coe.scheduler.events import Evict, Load, Run, Why

FLOOD = 100
TIMES = st.sampled_from([0.0, 0.75, 3.0, 10.5])


@given(cases(), st.lists(LINE, min_size=2, max_size=3))
@settings(max_examples=14 * THOROUGH)
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
@settings(max_examples=14 * THOROUGH)
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
@settings(max_examples=10 * THOROUGH)
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
@settings(max_examples=10 * THOROUGH)
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
@settings(max_examples=10 * THOROUGH)
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
@settings(max_examples=10 * THOROUGH)
def test_devices_that_are_lost_change_no_verdict_while_one_is_left(case, chosen, lost, data):
    strategy, _, spare, evict_s = chosen
    good, line = case.line(*chosen), watch(case.line(strategy, lost + 1, spare, evict_s, apart=True))
    good.run()
    for number in range(lost):
        line.lose(data.draw(TIMES), f"cpu{number}")
    line.run()
    assert answers(line) == answers(good)


@given(cases(), LINE, st.data())
@settings(max_examples=8 * THOROUGH)
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
