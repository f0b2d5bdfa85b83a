"""What the engine did on the machine, a fresh controller does again, command by command."""

from __future__ import annotations

import pytest

from apps.paper.prescheduled import repeating
from coe import Inspector
from coe.scheduler.controller import Controller
from coe.scheduler.events import single_events
from coe.scheduler.pace import FollowingCosts
from coe.scheduler.strategies import strategy


@pytest.mark.parametrize("name", ["coserve", "line"])
def test_a_recorded_run_replays_to_the_same_commands(tiny, pictures, name):
    board, store = tiny
    options = {"memory": "46MB", "executors": "cpu=2", "keep_trace": True}
    with Inspector(board, store=store, strategy=name, **options) as line:
        results = list(line.stream(pictures))
    assert len(results) == len(pictures)
    recorded = line._engine.controller
    fresh = Controller(
        router=line.rules.router,
        graph=line.rules.graph,
        costs=FollowingCosts(line.costs),
        plan=line.plan,
        strategy=strategy(name),
    )
    assert sum(len(single_events(event)) for _, event, _ in line.trace[1:]) > len(pictures)
    for now, event, commands in line.trace:
        again = fresh.start(now) if event is None else fresh.handle(event, now)
        assert again == commands
        fresh.check()
    fresh.check(idle=True)
    recorded.check(idle=True)


def test_a_recorded_run_is_repeated_without_scheduling(tiny, pictures):
    board, store = tiny
    options = {"store": store, "memory": "46MB", "executors": "cpu=2", "keep_trace": True}
    with Inspector(board, **options) as line:
        results = {result.request.id: result for result in line.stream(pictures)}
    with Inspector(board, costs=line.costs, make_decider=repeating(line.trace), **options) as again:
        repeated = {result.request.id: result for result in again.stream(pictures)}
        seen = again.metrics()
    assert (seen.switches, seen.batches) == (line.metrics().switches, line.metrics().batches)
    assert seen.peak_reserved_bytes <= 150e6
    assert set(repeated) == set(results)
    for id, result in results.items():
        assert (repeated[id].request, repeated[id].error) == (result.request, None)
        assert repeated[id].verdict == result.verdict
        assert [f.label for f in repeated[id].findings] == [f.label for f in result.findings]
    again._engine.controller.check(idle=True)
