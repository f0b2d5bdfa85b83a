"""Usage by the rules and by images: what a walk through the routing needs, and when the two differ for sure."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thorough import THOROUGH

from coe.core import Finding
from coe.errors import RulesError
from coe.inspector.profile import UsageRow
from coe.profiler.usage import binomial_p, cdf, differences, usage
from coe.testing import rules_from

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


def test_a_component_that_the_board_has_not_and_usage_of_nothing_are_refused():
    with pytest.raises(RulesError, match="'R3'"):
        usage(BOARD, [("R3", {})])
    with pytest.raises(RulesError, match="no expert"):
        cdf([UsageRow(expert="a", by_rules=0.0)])


# Differences


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


# Distribution


@given(st.lists(st.floats(0, 1), min_size=1).filter(lambda shares: sum(shares) > 0))
def test_it_rises_ever_slower_to_one(shares):
    Random(0).shuffle(shares)
    found = cdf([UsageRow(expert=str(n), by_rules=share) for n, share in enumerate(shares)])
    steps = np.diff([0.0, *found])
    assert found[-1] == pytest.approx(1.0)
    assert all(steps >= -1e-12)
    assert all(np.diff(steps) <= 1e-9)
