"""What the engine did on the machine, a fresh controller does again, command by command."""

from __future__ import annotations

import pytest

from coe import Inspector
from coe.scheduler.controller import Controller
from coe.scheduler.events import single_events
from coe.scheduler.strategies import strategy


@pytest.mark.parametrize("name", ["coserve", "late-binding"])
def test_a_recorded_run_replays_to_the_same_commands(tiny, pictures, name):
    board, store = tiny
    options = {"memory": "18MB", "executors": "cpu=2", "keep_trace": True}
    with Inspector(board, store=store, strategy=name, **options) as line:
        results = list(line.stream(pictures))
    assert len(results) == len(pictures)
    recorded = line._engine.controller
    fresh = Controller(
        router=line.rules.router,
        graph=line.rules.graph,
        costs=line.costs.following(),
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
