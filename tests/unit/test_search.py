"""The profiler: the search for a configuration, its figure, and usage by rules and images."""

from collections import Counter
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tables import with_slow_rows
from thorough import THOROUGH

from coe.core import Finding
from coe.errors import ConfigError, RulesError
from coe.inspector.profile import (
    BatchTime,
    BoardProfile,
    Chosen,
    ExecutorsPoint,
    Fingerprint,
    KindProfile,
    LatencyLine,
    Profile,
    UsageRow,
)
from coe.profiler.draw_profile import draw, labels, loaded
from coe.profiler.search import GAIN, WINDOW, search_executors, search_memory, windows
from coe.profiler.usage import binomial_p, cdf, differences, usage
from coe.testing import rules_from


def tent(peak, rise=1.0, fall=1.0, base=10.0):
    return lambda n: max(0.0, base + rise * n if n <= peak else base + rise * peak - fall * (n - peak))


def tried(search):
    return [point.upper for point in search.points]


def bounds(most):
    """How many samples a search may take: each window, the end, and the gaps on both sides of the best halved."""
    return len([bound for bound in windows() if bound < most]) + 2 + 2 * most.bit_length()


def test_the_faithful_search_stops_where_the_paper_did_and_draws_from_that_window():
    numbers = {search_memory(tent(peak=35), 60, faithful=Random(seed)).chosen for seed in range(60)}
    assert numbers == set(range(28, 40))
    search = search_memory(tent(peak=35), 60, faithful=Random(1))
    assert ("16.3%" in search.reason, "window 28 to 39" in search.reason) == (True, True)
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
    assert (search.chosen, reason in search.reason) == (chosen, True)


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
    assert (search.chosen, seen) == ({"g": 3, "c": 1}, list(table))
    assert [point.images_per_s for point in search.points] == list(table.values())
    assert search.reason == (
        "3 executors on g: with 4 throughput is 0.6% higher; 1 executor on c: with 2 throughput is 5.6% lower"
    )
    seen = []
    search = search_executors(speeds({"1g": 10.0, "2g": None, "1g+1c": 9.0}, seen), ["g", "c"], {"g": 5, "c": 3})
    assert (search.chosen, "2 do not fit" in search.reason) == ({"g": 1}, True)
    seen.clear()
    search = search_executors(speeds({"1g": None, "1c": 2.0}, seen), ["g", "c"], {"g": 5, "c": 1})
    assert (search.chosen, "1 were allowed" in search.reason) == ({"c": 1}, True)
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


MIB = 1 << 20
MACHINE = Fingerprint(
    cpu="Intel(R) Xeon(R) Processor @ 2.10GHz", cores=2, memory_bytes=8 << 30, gpu=None, driver=None,
    libraries={"torch": "2.11"},
)  # fmt: skip


def kind(name, per_image_s=0.05, size=224, **changes):
    sizes = (1, 2, 3, 4, 6, 8, 12, 16)
    values = {
        "kind": name, "input_size": size, "device": "cpu", "threads": 2, "backend": "torch", "precision": "fp32",
        "batches": tuple(
            BatchTime(images=n, median_s=0.03 + per_image_s * n * (1 + n % 3 / 40), spread=0.1, bytes=n * 9 * MIB)
            for n in sizes
        ),
        "line": LatencyLine(per_image_s=per_image_s, base_s=0.03, error=0.03),
        "max_batch": 4, "weights_bytes": 170 * MIB,
        "activation_bytes": 9 * MIB, "workspace_bytes": 12 * MIB, "load_s": 0.2,
    }  # fmt: skip
    return KindProfile.model_validate({**values, **changes})


def board(experts=60, peak=35, tries=6, images=True):
    total = sum(1 / n for n in range(1, experts + 1))
    usage = tuple(
        UsageRow(expert=f"e{n}", by_rules=1 / n / total, by_images=(1 / n / total) ** 0.8 if images else None)
        for n in range(1, experts + 1)
    )
    search = search_memory(lambda n: 10 + 0.5 * n if n <= peak else 10 + 0.5 * peak - 0.6 * (n - peak), experts)
    return BoardProfile(
        board="A", digest="0" * 64, memory_bytes=4 << 30, strategy="coserve", usage=usage,
        windows=tuple(search.points),
        executors=tuple(
            ExecutorsPoint(executors={"cpu": n}, threads={"cpu": max(1, 6 // n)}, images_per_s=20 + 4 * n - n * n)
            for n in range(1, tries + 1)
        ),
        chosen=Chosen(
            executors={"cpu": 2}, threads={"cpu": 3}, workspace_bytes={"cpu": 300 * MIB}, loaded_experts=search.chosen,
            images_per_s=24.1, casual_images_per_s=21.0,
            reasons=(search.reason, "executors: with 3 throughput is 4.2% lower"),
        ),
    )  # fmt: skip


def profile(*kinds, **boards):
    return Profile(made="2026-11-21T10:00:00+00:00", machine=MACHINE, kinds=kinds, boards=boards)


FOUR = (
    kind("resnet101"),
    kind("resnet101", 0.03, backend="onnxruntime"),
    kind("yolov5m", 0.11, size=640),
    kind("someone_elses_very_long_kind_name_of_an_expert", 0.02),
)
FEW = board(experts=5, peak=9, tries=1, images=False)
CASES = {
    "four-kinds": profile(*FOUR, A=board()),
    "few-experts": profile(*FOUR[:2], A=FEW),
    "no-kinds": profile(A=FEW.model_copy(update={"windows": (), "executors": ()})),
    "small-experts": profile(
        FOUR[0], A=FEW.model_copy(update={"chosen": FEW.chosen.model_copy(update={"loaded_experts": 20_000})})
    ),
}


@pytest.mark.parametrize("name", with_slow_rows(CASES, fast=1))
def test_a_picture_is_drawn_whatever_there_is(name, tmp_path):
    path = draw(CASES[name], "A", tmp_path / "new" / f"{name}.png")
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 1000


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([kind("a"), kind("b")], ["a", "b"]),
        (FOUR[:3], ["resnet101, torch, 224 px", "resnet101, onnxruntime, 224 px", "yolov5m, torch, 640 px"]),
        # Executors of a GPU have no threads to speak of.
        (
            [kind("a"), kind("a", threads=1), kind("a", device="cuda", threads=1)],
            ["a, cpu, 2 threads", "a, cpu, 1 thread", "a, cuda"],
        ),
    ],
)
def test_labels_say_what_is_not_the_same_of_all(kinds, expected):
    assert labels(kinds) == expected


def test_the_chosen_number_is_that_of_the_search():
    chosen = [loaded(board(peak=35)), loaded(board(experts=20, peak=99)), loaded(CASES["no-kinds"].boards["A"])]
    assert chosen == [35, 20, None]
    assert len(labels(FOUR)[3]) < 45


def test_a_board_without_profile_and_a_place_that_cannot_be_written_are_said(tmp_path):
    with pytest.raises(ConfigError, match="has no board 'B'; known: A"):
        draw(CASES["few-experts"], "B", tmp_path / "a.png")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        draw(CASES["few-experts"], "A", tmp_path / "file" / "a.png")


BOARD = rules_from(
    """
board: b
experts:
  a: {kind: k, labels: [ok, odd, bad], input: 8, reject: [bad], shares: {ok: 0.5, odd: 0.25, bad: 0.25},
      min_score: 0.5, then: {ok: [joint, mark], odd: joint}}
  joint: {kind: k, labels: [ok, bad], input: 8, reject: [bad]}
  mark: {kind: k, labels: [ok, bad], input: 8, reject: [bad]}
components:
  R1: {count: 3, inspect: a}
  R2: {count: 1, inspect: mark}
"""
)


def said(**labels):
    return {expert: Finding(expert, "fp32", label, 0.9) for expert, label in labels.items()}


def test_without_images_there_are_the_rules_alone_and_the_cdf_is_that_of_figure_11():
    rows = usage(BOARD, None)
    # mark: 3/4 * 1/2 + 1/4
    assert [(row.expert, row.by_rules) for row in rows] == [("a", 0.75), ("mark", 0.625), ("joint", 0.5625)]
    assert all(row.by_images is None for row in rows)
    assert usage(BOARD, []) == rows
    rows = usage(BOARD, [("R2", said(mark="ok"))])
    assert cdf(rows) == pytest.approx([0.75 / 1.9375, 1.375 / 1.9375, 1.0])
    assert cdf(rows, by_images=True) == [1.0, 1.0, 1.0]
    with pytest.raises(RulesError, match="'R3'"):
        usage(BOARD, [("R3", {})])
    with pytest.raises(RulesError, match="no expert"):
        cdf([UsageRow(expert="a", by_rules=0.0)])


def test_images_need_what_the_routing_asks_for_and_silent_experts_count():
    seen = [
        ("R1", said(a="ok", joint="ok", mark="bad")),
        ("R1", said(a="odd", joint="ok")),
        ("R1", said(a="bad")),
        ("R2", said(mark="ok")),
    ]
    assert {row.expert: row.by_images for row in usage(BOARD, seen)} == {"a": 0.75, "mark": 0.5, "joint": 0.5}
    # The first ran everything on everything; of the second, `joint` and `mark` could not answer.
    seen = [("R1", said(a="bad", joint="ok", mark="ok")), ("R1", said(a="ok"))]
    assert {row.expert: row.by_images for row in usage(BOARD, seen)} == {"a": 1.0, "mark": 0.5, "joint": 0.5}
    doubt = {"a": Finding("a", "fp32", "ok", 0.4)}
    assert {row.expert: row.by_images for row in usage(BOARD, [("R1", doubt)])} == {"a": 1.0, "mark": 0, "joint": 0}


@pytest.mark.parametrize(
    ("successes", "trials", "probability", "p_value"),
    [
        (5, 10, 0.5, 1.0),
        # 2 * (1 + 10) / 1024
        (1, 10, 0.5, 22 / 1024),
        (10, 10, 0.5, 2 / 1024),
        (0, 3, 0.2, 1.0),
        (3, 3, 0.1, 0.002),
        (0, 9, 0.0, 1.0),
        (1, 9, 0.0, 0.0),
        (9, 9, 1.0, 1.0),
        (8, 9, 1.0, 0.0),
    ],
)
def test_the_binomial_test(successes, trials, probability, p_value):
    assert binomial_p(successes, trials, probability) == pytest.approx(p_value)


def test_only_what_chance_does_not_explain_is_named_the_surest_first():
    rows = [
        UsageRow(expert="as foretold", by_rules=0.5, by_images=0.53),
        UsageRow(expert="more", by_rules=0.3, by_images=0.5),
        UsageRow(expert="never foretold", by_rules=0.0, by_images=0.01),
        UsageRow(expert="not seen", by_rules=0.4),
    ]
    named = differences(rows, 100)
    assert [one.expert for one in named] == ["never foretold", "more"]
    assert (named[1].by_rules, named[1].by_images) == (0.3, 0.5)
    assert named[1].p_value < 0.001
    assert differences(rows[:2], 10) == ()
    assert differences(rows, 0) == ()


def test_an_expert_that_images_need_otherwise_than_the_rules_say_differs():
    board = rules_from(
        "board: b\nexperts:\n"
        "  a: {kind: k, labels: [ok, bad], input: 8, then: {ok: b, bad: NG}}\n"
        "  b: {kind: k, labels: [ok, bad], input: 8, then: {ok: OK, bad: NG}}\n"
        "components:\n  A: {count: 1, inspect: a}\n"
    )

    def rows(bad, images):
        labels = ["bad"] * bad + ["ok"] * (images - bad)
        findings = [
            ("A", {"a": Finding("a", "fp32", label, 1.0), "b": Finding("b", "fp32", "ok", 1.0)}) for label in labels
        ]
        return {row.expert: (row.by_images, row.differs) for row in usage(board, findings)}

    assert rows(40, 50) == {"a": (1.0, False), "b": (0.2, True)}
    assert not any(differs for _, differs in rows(1, 2).values())


def test_of_many_experts_drawn_by_the_rules_few_boards_name_any():
    draw = np.random.default_rng(0)
    wrong = 0
    for _ in range(25 * THOROUGH):
        shares = draw.uniform(0.01, 0.99, 40)
        needed = draw.binomial(200, shares) / 200
        rows = [
            UsageRow(expert=str(number), by_rules=float(share), by_images=float(seen))
            for number, (share, seen) in enumerate(zip(shares, needed, strict=True))
        ]
        wrong += bool(differences(rows, 200))
    assert wrong <= 2.5 * THOROUGH


@given(st.lists(st.floats(0, 1), min_size=1).filter(lambda shares: sum(shares) > 0))
def test_it_rises_ever_slower_to_one(shares):
    Random(0).shuffle(shares)
    found = cdf([UsageRow(expert=str(n), by_rules=share) for n, share in enumerate(shares)])
    steps = np.diff([0.0, *found])
    assert found[-1] == pytest.approx(1.0)
    assert all(steps >= -1e-12)
    assert all(np.diff(steps) <= 1e-9)
