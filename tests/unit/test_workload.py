"""The same names and the same seed give the same requests; counts, orders and tails are what they say."""

import hashlib
import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.board import rules
from coe.errors import ConfigError
from coe.lab.workloads.workload import TAILS, TASKS, placement, synthetic, task, with_counts, with_tail

BOARD = """
board: mouse
experts:
  joints: {kind: yolov5m, labels: [joint, bridge], input: 320, reject: [bridge], then: {none: OK}}
  body:   {kind: resnet18, labels: [ok, bad], input: 224, then: {ok: joints, bad: NG}, shares: {ok: 0.5, bad: 0.5}}
  fuse:   {kind: resnet18, labels: [ok, bad], input: 224, reject: [bad]}
components:
  R-1K: {count: 12, inspect: body}
  C-1U: {count: 3, inspect: fuse}
  R-2K: {count: 3, inspect: fuse}
  0-OHM: {count: 0.4, inspect: joints}
  SPARE: {count: 0, inspect: fuse}
"""


@pytest.fixture
def board(board_file):
    return rules.load(board_file(BOARD))


def names(work):
    return [arrival.request.component for arrival in work.arrivals]


@pytest.mark.parametrize(
    ("name", "board_name", "requests"),
    [("A1", "board_a", 2500), ("A2", "board_a", 3500), ("B1", "board_b", 2500), ("B2", "board_b", 3500)],
)
def test_a_task_is_the_papers(name, board_name, requests):
    work = task(name)
    assert (work.task, work.order, work.board.board, work.recorded) == (name, "iid", board_name, {})
    assert [arrival.request.id for arrival in work.arrivals] == list(range(requests))
    assert [arrival.at_s for arrival in work.arrivals[:3]] == [0.0, 0.004, 0.008]
    assert work.arrivals[-1].at_s == pytest.approx(0.004 * (requests - 1))
    assert set(TASKS) == {"A1", "A2", "B1", "B2"}


@pytest.mark.parametrize("order", ["iid", "boards"])
def test_a_seed_is_a_workload(order):
    first, again, other = (task("A1", order=order, seed=seed, requests=500) for seed in (7, 7, 8))
    assert first.arrivals == again.arrivals
    assert names(first) != names(other)


def test_a_seed_is_a_workload_the_same_in_years(board):
    assert names(synthetic(board, task="t", requests=8, seed=1)) == [
        "R-1K", "R-2K", "C-1U", "R-1K", "R-1K", "R-1K", "R-1K", "C-1U",
    ]  # fmt: skip
    assert " ".join(part.component for part in placement(board, seed=1)) == (
        "C-1U C-1U C-1U R-1K R-1K R-1K R-1K R-1K R-1K R-1K R-1K R-2K R-2K R-2K 0-OHM R-1K R-1K R-1K R-1K"
    )
    of_a = " ".join(part.component for part in placement(rules.load("A")))
    assert hashlib.sha256(of_a.encode()).hexdigest()[:16] == "468c8c525b08e752"


def test_iid_draws_by_count(board):
    drawn = Counter(names(synthetic(board, task="t", requests=20_000)))
    expected = {"R-1K": 12 / 18.4, "C-1U": 3 / 18.4, "R-2K": 3 / 18.4, "0-OHM": 0.4 / 18.4}
    assert set(drawn) == set(expected)  # what is counted 0 never comes
    for name, share in expected.items():
        five_sigma = 5 * math.sqrt(share * (1 - share) / 20_000)
        assert drawn[name] / 20_000 == pytest.approx(share, abs=five_sigma)


def test_boards_come_one_after_another_with_exact_counts_and_parts_named_as_the_camera_comes(board):
    work = synthetic(board, task="t", order="boards", requests=50, every_s=0.5)
    requests = [arrival.request for arrival in work.arrivals]
    boards = [requests[start : start + 19] for start in (0, 19, 38)]
    assert [{request.serial for request in one} for one in boards] == [{"S0001"}, {"S0002"}, {"S0003"}]
    for one in boards[:2]:
        assert Counter(request.component for request in one) == {"R-1K": 12, "C-1U": 3, "R-2K": 3, "0-OHM": 1}
        assert len({request.refdes for request in one}) == 19
    # The same place on every board; the last is cut off.
    for one in boards[1:]:
        assert [(r.component, r.refdes) for r in one] == [(r.component, r.refdes) for r in boards[0][: len(one)]]
    assert len(boards[2]) == 12
    assert {arrival.at_s for arrival in synthetic(board, task="t", requests=9, every_s=0).arrivals} == {0.0}
    parts = placement(board)
    for prefix, count in (("R", 15), ("C", 3), ("X", 1)):
        assert [p.refdes for p in parts if p.refdes[0] == prefix] == [f"{prefix}{n}" for n in range(1, count + 1)]
    assert {p.component for p in parts if p.refdes[0] == "X"} == {"0-OHM"}


def test_parts_of_a_type_are_scattered_in_groups():
    order = [part.component for part in placement(rules.load("A"))]
    counts = Counter(order)
    assert counts == {name: round(one.count) for name, one in rules.load("A").components.items()}
    beside = sum(left == right for left, right in pairwise(order)) / len(order)
    assert 1.5 * sum((count / len(order)) ** 2 for count in counts.values()) < beside < 0.1
    where = [position for position, name in enumerate(order) if name == counts.most_common(1)[0][0]]
    assert where[0] < len(order) / 4
    assert where[-1] > len(order) * 3 / 4


@pytest.mark.parametrize("tail", TAILS)
def test_a_tail_keeps_the_sum_and_the_ranks(tail):
    before = {name: one.count for name, one in rules.load("B").components.items()}
    after = {name: one.count for name, one in with_tail(rules.load("B"), tail).components.items()}
    assert list(after) == list(before)
    assert sum(after.values()) == pytest.approx(sum(before.values()))
    for common, rare in pairwise(sorted(before, key=lambda name: -before[name])):
        assert after[common] >= after[rare]


def test_tails_run_from_flat_to_steep_and_the_narrow_one_has_150_types(board):
    def counts(tail, of=board):
        return [round(one.count, 3) for one in with_tail(of, tail).components.values()]

    assert counts("board") == [12, 3, 3, 0.4, 0]
    assert counts("flat") == [4.6, 4.6, 4.6, 4.6, 0]
    assert counts("steep") == [8.832, 4.416, 2.944, 2.208, 0]
    top = [max(counts(tail)) for tail in list(TAILS)[1:5]]
    assert top == sorted(top)
    narrow = counts("narrow", rules.load("A"))
    assert sum(count > 0 for count in narrow) == 150
    assert narrow[0] == pytest.approx(2 * narrow[1], abs=2e-3)


def test_a_tail_or_other_counts_change_what_is_likely_to_be_used_and_who_begins_and_no_more(board):
    flat = with_tail(board, "flat")
    assert board.graph.probability("body") == pytest.approx(12 / 18.4)
    assert flat.graph.probability("body") == pytest.approx(0.25)
    assert flat.graph.probability("fuse") == pytest.approx(0.5)
    assert flat.graph.probability("joints") == pytest.approx(0.25 / 2 + 0.25)
    assert flat.graph.by_probability == ("fuse", "joints", "body")
    assert flat.graph.successors("body") == board.graph.successors("body")
    assert flat.router.first("R-1K") is board.router.first("R-1K")
    assert (flat.board, flat.digest) == (board.board, board.digest)
    assert task("A1", tail="steep", requests=10).task == "A1 steep"
    assert names(task("A1", tail="steep", requests=99)) != names(task("A1", requests=99))
    same = with_counts(board, {name: component.count for name, component in board.components.items()}).graph
    for expert in board.experts:
        for fact in ("probability", "predecessors", "waits_for_others"):
            assert getattr(same, fact)(expert) == getattr(board.graph, fact)(expert)
    # An expert waits for others once the component that begins with it occurs no more.
    assert not board.graph.waits_for_others("joints")
    assert with_counts(board, {"0-OHM": 0.0}).graph.waits_for_others("joints")


@given(
    counts=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(["R-1K", "C-1U", "R-2K", "SPARE"], st.floats(0, 1e6, allow_subnormal=False))
    )
)
def test_probability_follows_counts(counts, board):
    changed = with_counts(board, counts)
    now = {name: one.count for name, one in changed.components.items()}
    assert now == {**{name: one.count for name, one in board.components.items()}, **counts}
    fuse = (now["C-1U"] + now["R-2K"] + now["SPARE"]) / sum(now.values())
    assert changed.graph.probability("fuse") == pytest.approx(fuse)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "A3"}, "'A3'.*A1"),
        ({"tail": "stepe"}, "'stepe'.*'steep'"),
        ({"order": "board"}, "'board'.*'boards'"),
        ({"requests": 0}, "0 requests"),
        *(({"every_s": every_s}, f"every {every_s} s") for every_s in (-1.0, math.nan, math.inf)),
        ({"counts": {"R-1k": 1.0}}, "'R-1k'.*'R-1K'"),
        ({"counts": {"R-1K": math.nan}}, "'R-1K'.*nan"),
        ({"counts": {"R-1K": -1.0}}, "'R-1K'.*-1.0"),
        ({"counts": {"R-1K": 1e308, "C-1U": 1e308}}, "mouse.*inf"),
        ({"counts": dict.fromkeys(["R-1K", "C-1U", "R-2K", "0-OHM"], 0.0)}, "mouse.* 0"),
    ],
)
def test_bad_words_numbers_and_counts_are_named(board, options, says):
    with pytest.raises(ConfigError, match=says):
        with_counts(board, **options) if "counts" in options else task(**{"name": "A1", **options})
