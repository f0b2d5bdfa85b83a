"""Boards come and go at any time: every image has one result, the same as on a line of its board alone."""

from hypothesis import given, settings
from hypothesis import strategies as st
from lines import ENGINE, joined
from plots import BOARDS, SHARED, Plot, alone, line_of, plots
from thorough import THOROUGH


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
