"""The searches on made-up curves: what is sampled, what is chosen, and that they end whatever they are told."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.errors import ConfigError
from coe.profiler.search import GAIN, WINDOW, search_executors, search_memory, windows

Curve = Callable[[int], float | None]


def tent(peak, rise=1.0, fall=1.0, base=10.0):
    return lambda n: max(0.0, base + rise * n if n <= peak else base + rise * peak - fall * (n - peak))


def tried(search):
    return [point.upper for point in search.points]


def bounds(most):
    """How many samples a search may take: each window, the end, and the gaps on both sides of the best halved."""
    return len([bound for bound in windows() if bound < most]) + 2 + 2 * most.bit_length()


# Windows and line


# The paper's search


def test_the_faithful_search_stops_where_the_paper_did_and_draws_from_that_window():
    numbers = {search_memory(tent(peak=35), 60, faithful=Random(seed)).chosen for seed in range(60)}
    assert numbers == set(range(28, 40))
    search = search_memory(tent(peak=35), 60, faithful=Random(1))
    assert "16.3%" in search.reason
    assert "window 28 to 39" in search.reason
    assert search.chosen in tried(search)
    assert 39 not in tried(search_memory(tent(peak=5), 60, faithful=Random(0)))
    for seed in range(30):
        search = search_memory(lambda n: 1.0 * n if n <= 16 else None, 60, faithful=Random(seed))
        assert search.chosen in (15, 16)
        assert search.chosen in tried(search)


@pytest.mark.parametrize(("share", "goes_on"), [(0.951, True), (0.949, False)])
def test_a_shortfall_within_the_margin_does_not_stop_it(share, goes_on):
    def curve(n):
        return 10.0 + n if n < 39 else (10.0 + n) * share if n < 48 else 1.0

    numbers = tried(search_memory(curve, 60, faithful=Random(0)))
    assert numbers[:3] == [15, 28, 39]
    assert (48 in numbers) is goes_on


# Ours


def up_to(most):
    return lambda n: 5.0 + n if n <= most else None


@pytest.mark.parametrize(
    ("curve", "most", "chosen", "reason"),
    [
        (tent(peak=35), 60, 35, "35 experts gave the highest throughput"),
        # It goes on while throughput rises, though it falls short of the line.
        (lambda n: 100.0 * n / (n + 20) if n <= 60 else 0.0, 200, 60, ""),
        # If all fit and nothing drops, all are taken, also beyond the reach of the windows.
        (up_to(20), 20, 20, "all 20 experts fit"),
        (up_to(352), 352, 352, ""),
        # Few experts are one window.
        (lambda n: 5.0, 3, 3, ""),
        (lambda n: 5.0, 1, 1, ""),
        # The largest number that fits.
        (up_to(33), 60, 33, "39 experts leave no memory for a batch"),
        (up_to(2), 60, 2, ""),
        ({1: 0.0, 2: None}.__getitem__, 2, 1, ""),
    ],
)
def test_the_best_number_is_chosen(curve, most, chosen, reason):
    search = search_memory(curve, most)
    assert search.chosen == chosen
    assert reason in search.reason


def test_only_beside_the_peak_is_more_tried_and_the_windows_are_the_papers():
    assert all(28 < number < 48 for number in tried(search_memory(tent(peak=35), 60))[4:])
    assert tried(search_memory(up_to(20), 20)) == [15, 20, 17]
    assert search_memory(lambda n: 5.0, 3).points[0].lower == 0
    assert max(tried(search_memory(up_to(352), 352, faithful=Random(0)))) < 100
    falls_short = search_memory(lambda n: 100.0 * n / (n + 20) if n <= 60 else 0.0, 200, faithful=Random(0))
    assert falls_short.chosen <= 39
    bounds = list(windows())
    assert bounds[:6] == [15, 28, 39, 48, 56, 62]
    assert bounds == sorted(set(bounds))
    assert bounds[-1] <= 100
    search = search_memory(tent(peak=35), 60, faithful=Random(0))
    assert [(point.lower, point.upper, point.images_per_s) for point in search.points[:3]] == [
        (0, 15, 25.0), (15, 28, 38.0), (28, 39, 41.0)
    ]  # fmt: skip
    assert [point.line for point in search.points[:3]] == pytest.approx([25.0, 38.0, 49.0])


@pytest.mark.parametrize("faithful", [None, Random(0)])
def test_if_nothing_fits_it_says_what_to_do(faithful):
    with pytest.raises(ConfigError, match="not even one expert fits"):
        search_memory(lambda n: None, 60, faithful=faithful)


# Whatever the curve

SIZES = st.integers(1, 400)


@given(SIZES, st.integers(1, 400), st.floats(0, 5), st.floats(0.01, 5), st.floats(0, 50))
def test_one_peak_is_found_within_one_percent(most, peak, rise, fall, base):
    # High enough never to lie flat on the floor, where nothing says on which side the peak is.
    curve = tent(peak, rise, fall, base + fall * most)
    search = search_memory(curve, most)
    highest = max(curve(n) or 0.0 for n in range(1, most + 1))
    assert (curve(search.chosen) or 0.0) >= highest * (1 - GAIN) / (1 + GAIN) - 1e-9


@given(st.lists(st.floats(0.01, 3), min_size=1, max_size=150), st.data())
def test_so_it_is_on_any_curve_without_a_bend_upwards(steps, data):
    turn = data.draw(st.integers(0, len(steps)))
    slopes = sorted(steps[:turn], reverse=True) + sorted((-step for step in steps[turn:]), reverse=True)
    heights = [0.0]
    for slope in slopes:
        heights.append(heights[-1] + slope)
    lift = max(0.0, 1.0 - min(heights[1:]))
    # Through zero experts, zero images; from there on it never bends upwards.
    curve = [0.0, *(height + lift for height in heights[1:])]
    search = search_memory(lambda n: curve[n], len(steps))
    assert curve[search.chosen] >= max(curve[1:]) * (1 - GAIN) / (1 + GAIN) - 1e-9


@given(SIZES, st.integers(1, 400), st.booleans())
def test_a_curve_that_rises_takes_all_that_fit(most, fit, steep):
    def curve(n):
        return None if n > fit else float(n) ** (2 if steep else 0.5)

    chosen = search_memory(curve, most).chosen
    best = curve(min(most, fit)) or 0.0
    assert chosen <= min(most, fit)
    assert (curve(chosen) or 0.0) >= best * (1 - GAIN) / (1 + GAIN)


@given(st.lists(st.none() | st.floats(0, 100), min_size=1, max_size=300), st.none() | st.integers(0, 9))
def test_whatever_it_is_told_it_ends_asks_once_and_chooses_what_it_saw(curve, seed):
    asked = Counter[int]()

    def throughput(n):
        asked[n] += 1
        return curve[n - 1]

    try:
        search = search_memory(throughput, len(curve), faithful=None if seed is None else Random(seed))
    except ConfigError:
        assert all(curve[n - 1] is None for n in asked)
        return
    assert set(asked.values()) == {1}
    assert search.chosen in tried(search)
    assert set(tried(search)) == {n for n in asked if curve[n - 1] is not None}
    # Drawing again from a window can only shrink it.
    assert len(asked) <= bounds(len(curve)) + (0 if seed is None else WINDOW)


# Executors


def speeds(table, seen):
    def throughput(numbers):
        name = "+".join(f"{number}{device}" for device, number in numbers.items())
        seen.append(name)
        return table[name]

    return throughput


def test_devices_rise_one_after_the_other_and_one_of_no_use_or_too_small_is_left_out():
    seen = []
    table = {"1g": 10.0, "2g": 15.0, "3g": 17.0, "4g": 17.1, "3g+1c": 18.0, "3g+2c": 17.0}
    search = search_executors(speeds({**table}, seen), ["g", "c"], {"g": 5, "c": 3})
    assert search.chosen == {"g": 3, "c": 1}
    assert seen == list(table)
    assert [point.images_per_s for point in search.points] == list(table.values())
    assert search.reason == (
        "3 executors on g: with 4 throughput is 0.6% higher; 1 executor on c: with 2 throughput is 5.6% lower"
    )
    seen = []
    search = search_executors(speeds({"1g": 10.0, "2g": None, "1g+1c": 9.0}, seen), ["g", "c"], {"g": 5, "c": 3})
    assert search.chosen == {"g": 1}
    assert "2 do not fit" in search.reason
    seen.clear()
    search = search_executors(speeds({"1g": None, "1c": 2.0}, seen), ["g", "c"], {"g": 5, "c": 1})
    assert search.chosen == {"c": 1}
    assert "1 were allowed" in search.reason
    with pytest.raises(ConfigError, match="fewer executors"):
        search_executors(lambda numbers: None, ["g", "c"], {"g": 2, "c": 2})
    with pytest.raises(ConfigError):
        search_executors(lambda numbers: 1.0, ["g"], {})


@given(st.lists(st.floats(0, 10), min_size=1, max_size=9))
def test_the_chosen_executors_are_the_last_that_rose(rising):
    search = search_executors(lambda numbers: rising[numbers["c"] - 1], ["c"], {"c": len(rising)})
    chosen = search.chosen["c"]
    assert all(after > before * (1 + GAIN) for before, after in pairwise(rising[:chosen]))
    assert chosen == len(rising) or rising[chosen] <= rising[chosen - 1] * (1 + GAIN)
