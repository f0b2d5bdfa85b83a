"""Boards come and go at any time: every image has one result, the same as on a line of its board alone."""

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from lines import ENGINE, joined
from plots import BOARDS, COSTS, SHARED, ChangingLine, Plot, alone, line_of, plots
from thorough import THOROUGH

from coe.lab.strategies.by_load import ByLoad, OnMiss, Urgent
from coe.scheduler.plan import CacheSpec, ExecutorSpec, Plan, PoolSpec
from coe.scheduler.strategies import strategy


@given(plots(), st.sampled_from(ENGINE), st.sampled_from([20, 30, 60]), st.integers(1, 2))
@settings(max_examples=30 * THOROUGH, deadline=None)
def test_boards_may_come_and_go_at_any_time(plot: Plot, strategy: str, capacity: int, executors: int) -> None:
    line = line_of(plot, strategy, capacity, executors)
    line.begin(plot)
    line.run()  # its books are checked after each event, budgets too
    expected = dict(alone(plot))
    assert line.results.keys() == expected.keys()
    for id, result in line.results.items():
        assert (result.verdict, result.error) == (expected[id].verdict, None)
        assert result.findings == expected[id].findings
    known = joined({key: BOARDS[key] for key in line.boards}, SHARED).experts
    resident = {expert for pool in line.controller.pools.values() for expert in pool.by_arrival()}
    assert resident <= set(known)


LESSER = {
    id: {"fp32": replace(one, copy_s=0.05), "q8": replace(one, weights_bytes=4, load_s=0.3, copy_s=0.05)}
    for id, one in COSTS.items()
}


@given(
    plots(),
    st.sampled_from([OnMiss, Urgent]),
    st.sampled_from(ENGINE),
    st.integers(1, 2),
    st.sampled_from([0, 10, 30]),
    st.sampled_from([0.5, 2.0, 9.0, math.inf]),
)
@settings(max_examples=30 * THOROUGH, deadline=None)
def test_boards_may_go_while_their_experts_come_in_any_variant(
    plot: Plot, residency: type[ByLoad], base: str, devices: int, copies: int, stop_s: float
) -> None:
    """A stop answers images whose experts are on their way; so their boards leave first."""
    names = [f"gpu{number}" for number in range(devices)]
    plan = Plan(
        tuple(PoolSpec(name, name, 20, 4) for name in names),
        tuple(ExecutorSpec(name, name, name) for name in names),
        CacheSpec(copies) if copies else None,
    )
    costs = {id: LESSER[id[-1]] for id in joined(BOARDS, SHARED).experts}
    rules = joined({key: BOARDS[key] for key in plot.first}, SHARED)
    chosen = replace(strategy(base), residency=residency)
    line = ChangingLine(rules, costs, plan, strategy=chosen, evict_s=0.4)
    line.begin(plot)
    if stop_s < math.inf:
        line.stop(stop_s)
    line.run()
    assert len(line.results) == len(plot.images)
    assert stop_s < math.inf or all(result.error is None for result in line.results.values())
