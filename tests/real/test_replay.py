"""What the engine did on the machine, a fresh controller does again, command by command."""

from __future__ import annotations

from coe.controller import Controller
from coe.inspector import Inspector
from coe.policies.strategies import strategy


def test_a_recorded_run_replays_to_the_same_commands(tiny, pictures):
    board, store = tiny
    with Inspector(board, store=store, memory="150MB", executors="cpu=2", keep_trace=True) as line:
        results = list(line.stream(pictures))
    assert len(results) == len(pictures)
    recorded = line._engine.controller
    fresh = Controller(
        router=line.rules.router,
        graph=line.rules.graph,
        costs=recorded.costs,
        plan=line.plan,
        strategy=strategy("coserve"),
    )
    assert len(line.trace) > len(pictures)
    for now, event, commands in line.trace:
        again = fresh.start(now) if event is None else fresh.handle(event, now)
        assert again == commands
        fresh.check()
    fresh.check(idle=True)
    recorded.check(idle=True)
