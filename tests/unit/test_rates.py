"""Bounds of rates, tolerance and prediction limits, against published values."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coe.helpers.rates import (
    Rate,
    extreme_deviation,
    extreme_factor,
    prediction_factor,
    tolerance_factor,
    trials_needed,
)


@pytest.mark.parametrize(
    ("events", "trials", "lower", "upper"),
    [
        (0, 10, 0.0, 0.2589),
        (1, 10, 0.0051, 0.3942),
        (5, 10, 0.2224, 0.7776),
        (10, 10, 0.7411, 1.0),
        (3, 400, 0.0020, 0.0193),
    ],
)
def test_the_bounds_of_clopper_and_pearson(events, trials, lower, upper):
    assert Rate(events, trials).lower() == pytest.approx(lower, abs=1e-4)
    assert [Rate(events, trials).is_above(share) for share in (0.05, 0.1, 0.5)] == [
        Rate(events, trials).lower() > share for share in (0.05, 0.1, 0.5)
    ]
    assert Rate(events, trials).upper() == pytest.approx(upper, abs=1e-4)
    assert str(Rate(events, trials)).startswith(f"{events} of {trials}, at most ")


@settings(max_examples=30)
@given(st.integers(1, 60), st.data())
def test_a_bound_lies_on_its_side_of_the_share_and_grows_with_the_events(trials, data):
    events = data.draw(st.integers(0, trials - 1))
    rate, more = Rate(events, trials), Rate(events + 1, trials)
    assert rate.lower() <= rate.share <= rate.upper() <= more.upper()
    assert rate.upper(0.9) <= rate.upper(0.99)


@given(st.floats(0.001, 0.5), st.floats(0.5, 0.999))
def test_so_many_trials_without_an_event_prove_a_rate_and_fewer_do_not(rate, confidence):
    number = trials_needed(rate, confidence)
    assert Rate(0, number).upper(confidence) <= rate * (1 + 1e-9)
    assert number == 1 or Rate(0, number - 1).upper(confidence) > rate * (1 - 1e-9)


@pytest.mark.parametrize(
    ("count", "share", "factor"),
    [(3, 0.05, 7.656), (10, 0.05, 2.911), (10, 0.01, 3.981), (50, 0.05, 2.065), (100, 0.01, 2.684)],
)
def test_tolerance_factors_of_the_tables(count, share, factor):
    assert tolerance_factor(count, share) == pytest.approx(factor, abs=6e-4)


@pytest.mark.parametrize(
    ("count", "more", "factor"), [(3, 0, 3.372), (10, 0, 1.923), (20, 0, 1.772), (10, 10, 1.729 * 1.1**0.5)]
)
def test_prediction_factors_are_quantiles_of_t_widened_by_the_mean(count, more, factor):
    """A deviation that is known from `more` values needs a smaller factor."""
    assert prediction_factor(count, 0.05, more) == pytest.approx(factor, abs=6e-4)


@pytest.mark.parametrize(("count", "more", "factor"), [(10, 0, 2.266), (20, 0, 2.050), (20, 5, 1.991), (400, 0, 1.866)])
def test_extremes_need_a_larger_factor(count, more, factor):
    # From 200,000 and 60,000 samples of further values; the last from the quantile, (0.5772 + log(-log 0.95)) / 1.2825.
    assert extreme_factor(count, 0.05, more) == pytest.approx(factor, abs=0.02)
    assert extreme_factor(1, 0.05, 5) > extreme_factor(2, 0.05, 5), "one value, whose deviation is known from others"


def test_one_odd_value_widens_the_deviation_of_extremes_less_than_that_of_the_values():
    usual = -np.log(-np.log((np.arange(1000) + 0.5) / 1000))
    assert extreme_deviation(usual) == pytest.approx(math.pi / 6**0.5, rel=0.01)
    few = usual[25::50]
    odd = np.append(few, 12.0)
    assert extreme_deviation(odd) / extreme_deviation(few) < 0.8 * odd.std(ddof=1) / few.std(ddof=1)


@given(st.integers(1, 10_000_000), st.sampled_from([0.9, 0.95, 0.975, 0.99]))
def test_bounds_are_those_of_the_formula_where_it_has_one(trials, confidence):
    # No event: (1 - p)^n = 1 - confidence. All events but one: 1 - p^n = 1 - confidence.
    assert Rate(0, trials).upper(confidence) == pytest.approx(-math.expm1(math.log1p(-confidence) / trials), rel=1e-9)
    assert Rate(trials - 1, trials).upper(confidence) == pytest.approx(confidence ** (1 / trials), rel=1e-9)
