"""Statistics: values computed by hand, and what must hold for any counts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serve_rows import NOON, accepted, decided, decision, ng

from coe.helpers.rates import Rate
from coe.serve import statistics
from coe.serve.clock import HOUR_US
from coe.serve.database import board_rows, hourly, verifications
from coe.serve.database.call_rows import of_board
from coe.serve.database.hourly import BoardCount, CallCount, Window
from coe.serve.database.tables import NewVerification
from coe.serve.enums import Outcome
from coe.serve.statistics import By, Subgroup, Unit, figure, pareto

CONFIRMED, FALSE, ACCEPTED = Outcome.CONFIRMED, Outcome.FALSE_CALL, Outcome.ACCEPTED


def boards(boards, clean, *, verified=0, good=0, hour=0, late=0, recipe=1):
    return BoardCount(hour * HOUR_US, recipe, boards, clean, late, verified, good)


def calls(number, outcome=None, component="R0402", label="cracked", *, hour=0):
    return CallCount(hour * HOUR_US, 1, component, "body", label, outcome, number)


def test_a_shift_that_was_counted_by_hand():
    # 80 boards of 50 opportunities and 20 of 100: 6,000. Of 31 calls, 3 are open: 25 false, 2 confirmed, 1 accepted.
    decided = [boards(80, 74, verified=78, good=77), boards(20, 16, verified=20, good=19, recipe=2)]
    answered = [calls(25, FALSE), calls(2, CONFIRMED), calls(1, ACCEPTED), calls(3)]
    found = {one.name: one for one in statistics.figures(decided, answered, 1, {1: 50, 2: 100}, {})}
    assert found["raw_fpy"].value == pytest.approx(90.0)
    assert found["final_fpy"].value == pytest.approx(100 * 96 / 98)
    assert found["false_call_ppm"].value == pytest.approx(25e6 / 6000)
    assert (found["false_call_ppm"].asked, found["false_call_ppm"].open, found["final_fpy"].open) == (31, 3, 2)
    assert found["dpmo"].value == pytest.approx(2e6 / 6000)
    assert found["escape_rate"].value == pytest.approx(100 / 3)
    assert all(one.definition for one in found.values())


def test_bounds_of_a_table():
    # Clopper and Pearson, 95 %: 0 of 10 is 0 to 0.30850; 5 of 10 is 0.18709 to 0.81291.
    none = figure("x", "X", Unit.PERCENT, "", 0, 10, "")
    half = figure("x", "X", Unit.PERCENT, "", 5, 10, "")
    assert (none.lower, none.upper) == (pytest.approx(0), pytest.approx(30.850, abs=1e-3))
    assert (half.lower, half.upper) == (pytest.approx(18.709, abs=1e-3), pytest.approx(81.291, abs=1e-3))


def test_bounds_of_many_trials_are_those_of_the_normal_approximation():
    events, trials = 40_000, 50_000_000
    rate = Rate(events, trials)
    away = 1.644854 * math.sqrt(events) / trials
    assert rate.upper() - rate.share == pytest.approx(away, rel=0.02)
    assert rate.share - rate.lower() == pytest.approx(away, rel=0.02)


def test_without_reports_there_is_no_escape_rate_and_never_a_zero():
    answered = [calls(5, CONFIRMED)]
    assert statistics.escape_rate(answered, 0).value is None
    assert statistics.escape_rate(answered, 0).missing == "no escapes reported"
    assert statistics.escape_rate(answered, 1).value == pytest.approx(100 / 6)


def test_calls_that_nobody_has_answered_are_no_zero():
    waiting = [calls(3)]
    for found in (statistics.false_calls(waiting, 100), statistics.defects(waiting, 100)):
        assert (found.value, found.missing) == (None, "no calls answered")
    assert statistics.false_calls([], 100).value == 0
    assert statistics.false_calls([calls(1), calls(9, CONFIRMED)], 100).value == 0


def test_a_shift_whose_calls_are_open_is_no_good_shift():
    # One clean board is verified at once; 121 wait for answers, of which one came.
    decided = [boards(122, 1, verified=2, good=2)]
    answered = [calls(1, FALSE), calls(120)]
    found = {one.name: one for one in statistics.figures(decided, answered, 0, {1: 100}, {})}
    for name in ("final_fpy", "false_call_ppm", "dpmo"):
        assert found[name].value is None
        assert found[name].missing.startswith("open: ")
    assert found["final_fpy"].lower < 2
    assert found["final_fpy"].upper > 99
    assert found["dpmo"].upper > 1e6 * 120 / 12_200


@given(st.lists(st.sampled_from([*Outcome, None]), min_size=1, max_size=30), st.data())
def test_bounds_hold_whatever_the_open_calls_will_be(outcomes, data):
    later = [data.draw(st.sampled_from(Outcome)) if outcome is None else outcome for outcome in outcomes]

    def seen(said):
        counted = [calls(1, outcome) for outcome in said]
        verified = sum(outcome is not None for outcome in said)
        good = sum(outcome in (FALSE, ACCEPTED) for outcome in said)
        of_boards = [boards(len(said), 0, verified=verified, good=good)]
        return [statistics.final_fpy(of_boards), statistics.false_calls(counted, 100), statistics.defects(counted, 100)]

    for now, then in zip(seen(outcomes), seen(later), strict=True):
        if now.lower is not None and now.upper is not None and then.value is not None:
            assert now.lower <= then.value + 1e-9
            assert then.value <= now.upper + 1e-9


def test_more_calls_than_opportunities_have_no_bounds():
    found = statistics.false_calls([calls(5, FALSE)], 4)
    assert (found.value, found.lower, found.upper) == (1.25e6, None, None)


def test_a_pareto_by_hand():
    rows = [calls(6, FALSE), calls(2, CONFIRMED), calls(1, None, component="U1"), calls(1, ACCEPTED, component="C1")]
    first, *others = pareto(rows, By.COMPONENT)
    assert (first.name, first.calls, first.false_calls, first.confirmed, first.cumulative) == ("R0402", 8, 6, 2, 0.8)
    assert [(one.name, one.open, one.accepted, one.cumulative) for one in others] == [
        ("C1", 0, 1, 0.9),
        ("U1", 1, 0, 1),
    ]


def test_laneys_chart_by_hand():
    # Nine hours of 100 opportunities: mean 0.1, deviation sqrt(0.1 / 100) = 0.0316; z is -3.162 and 3.953 in turn.
    samples = [Subgroup(hour, 0 if hour % 2 == 0 else 22.5, 100) for hour in range(9)]
    chart = statistics.u_chart(samples)
    assert chart.mean == pytest.approx(0.1)
    assert chart.sigma_z == pytest.approx(0.225 / math.sqrt(0.001) / 1.128)
    assert chart.points[0].upper == pytest.approx(0.1 + 3 * math.sqrt(0.001) * chart.sigma_z)
    assert chart.points[0].lower == 0
    assert not any(point.signals for point in chart.points)


def test_an_hour_of_many_calls_signals():
    amounts = [10, 12, 9, 11, 10, 8, 12, 10, 11, 9, 10, 12, 60, 11]
    chart = statistics.u_chart([Subgroup(hour, amount, 1000) for hour, amount in enumerate(amounts)])
    assert [point.at_us for point in chart.points if point.signals] == [12]


def test_rates_that_never_vary_are_in_control():
    chart = statistics.u_chart([Subgroup(hour, 7 * hour, 90 * hour) for hour in range(1, 20)])
    assert not any(point.signals for point in chart.points)


def test_few_hours_give_no_limits():
    chart = statistics.u_chart([Subgroup(0, 1, 10)] * 7)
    assert (chart.points, chart.missing) == ((), "7 hours with boards; limits need 8")


COUNTS = st.integers(0, 300)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from([None, *Outcome]), st.integers(1, 99))))
def test_a_pareto_loses_no_call_and_never_rises(rows):
    bars = pareto([calls(number, outcome, component=name) for name, outcome, number in rows], By.COMPONENT)
    assert sum(bar.calls for bar in bars) == sum(number for _, _, number in rows)
    assert [bar.calls for bar in bars] == sorted((bar.calls for bar in bars), reverse=True)
    assert all(bar.confirmed + bar.false_calls + bar.accepted + bar.open == bar.calls for bar in bars)
    assert not bars or bars[-1].cumulative == 1


@given(COUNTS, COUNTS, st.integers(1, 5))
def test_a_rate_lies_between_its_bounds(some, more, factor):
    one = figure("x", "X", Unit.PPM, "", some, some + more, "none")
    if some + more == 0:
        assert (one.value, one.missing) == (None, "none")
        return
    assert one.upper is not None
    assert 0 <= one.lower <= one.value + 1e-6
    assert one.value <= one.upper + 1e-6 <= 1e6 + 1
    surer = figure("x", "X", Unit.PPM, "", some * factor, (some + more) * factor, "none")
    assert surer.upper <= one.upper + 1e-3


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1000)), max_size=40))
def test_a_chart_has_a_point_for_each_hour_with_boards_and_its_mean_is_inside(rows):
    samples = [Subgroup(hour, min(amount, size), size) for hour, (amount, size) in enumerate(rows)]
    chart = statistics.u_chart(samples)
    used = [one for one in samples if one.size]
    assert [point.at_us for point in chart.points] == ([one.at_us for one in used] if len(used) >= 8 else [])
    assert all(point.lower <= chart.mean + 1e-12 and chart.mean <= point.upper + 1e-12 for point in chart.points)


def answer(database, board_id, *outcomes, label=""):
    with database.writing() as connection:
        for call, outcome in zip(of_board(connection, board_id), outcomes, strict=False):
            word = NewVerification(outcome, NOON + 5, "ann", label)
            verifications.record_verification(connection, call, word)


WHOLE = Window(NOON - HOUR_US, NOON + HOUR_US)


def test_the_database_counts_as_the_words_say(database):
    with database.writing() as connection:
        decided(connection, "clean")
        confirmed = decided(connection, "confirmed", ng("R1"), ng("R2"))
        false = decided(connection, "false", ng())
        decided(connection, "open", ng())
        accepted(connection, "undecided")
    answer(database, confirmed.id, CONFIRMED, CONFIRMED)
    answer(database, false.id, FALSE)
    with database.reading() as connection:
        (count,) = hourly.board_counts(connection, WHOLE)
        found = hourly.call_counts(connection, WHOLE)
        nothing = hourly.board_counts(connection, Window(NOON + HOUR_US, NOON + 2 * HOUR_US))
        other = hourly.board_counts(connection, Window(NOON - HOUR_US, NOON + HOUR_US, "other"))
    assert (count.boards, count.clean, count.verified, count.good) == (4, 1, 3, 2)
    assert statistics.number(found, CONFIRMED) == 2
    assert statistics.number(found, FALSE) == 1
    assert statistics.number(found) == 4
    assert nothing == other == []


def test_second_passes_and_second_thoughts_count_rightly(database):
    with database.writing() as connection:
        for key in ("first", "second"):
            board = accepted(connection, key, serial="SN1")
            board_rows.decide(connection, decision(board, ng()))
    answer(database, 1, FALSE)
    answer(database, 1, CONFIRMED, label="chipped")
    with database.reading() as connection:
        (count,) = hourly.board_counts(connection, WHOLE)
        (found,) = hourly.call_counts(connection, WHOLE)
    assert (count.boards, count.good) == (1, 0)
    assert (found.outcome, found.label, found.calls) == (CONFIRMED, "chipped", 1)
