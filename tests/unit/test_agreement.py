"""What is told of a variant: how often it agrees, and the margin below which it is run again."""

import pytest

from coe.core import Box, Finding
from coe.variants.agreement import compare, escalate_below, iou, log_odds, matched


def said(label, score, margin=0.0, *boxes):
    return Finding("x", "fp32", label, score, boxes, margin)


def box(label, score, *xyxy):
    return Box(label, score, xyxy or (0.0, 0.0, 10.0, 10.0))


def test_labels_and_scores_are_compared():
    expected = [said("ok", 0.9), said("ok", 0.8), said("bad", 0.7), said("bad", 0.6)]
    found = [said("ok", 0.9), said("ok", 0.83), said("bad", 0.7), said("ok", 0.55)]
    agreement = compare(expected, found, generated=True)
    assert (agreement.images, agreement.labels_equal, agreement.boxes_matched) == (4, 0.75, None)
    assert agreement.largest_score_difference == pytest.approx(0.05)
    assert agreement.generated


def test_each_box_is_matched_once_by_label_with_the_nearest():
    one = [box("a", 0.9), box("a", 0.5, 20, 0, 30, 10), box("b", 0.8)]
    other = [box("a", 0.8, 0, 0, 10, 10.5), box("a", 0.5, 20, 0, 30, 12), box("c", 0.8)]
    assert matched(one, other) == [(one[0], other[0])]
    agreement = compare([said("a", 0.9, 0, *one)], [said("a", 0.9, 0, *other)], generated=False)
    assert agreement.boxes_matched == pytest.approx(1 / 3)
    assert agreement.largest_score_difference == pytest.approx(0.1)
    one, near, far = box("a", 0.9), box("a", 0.8), box("a", 0.7, 0, 0, 10, 10.5)
    assert matched([one], [far, near]) == [(one, near)]


def test_overlap():
    others = {(0, 0, 10, 10): 1.0, (5, 0, 15, 10): 1 / 3, (10, 0, 20, 10): 0.0, (3, 3, 3, 3): 0.0}
    assert {other: iou((0, 0, 10, 10), other) for other in others} == pytest.approx(others)


def test_the_margin_is_zero_where_nothing_moved_and_counts_a_shift_that_changed_nothing():
    same = [said("ok", 1.0, 1.0), said("ok", 0.7, 0.4)]
    assert escalate_below(same, same) == 0
    assert escalate_below([said("ok", 0.7, 0.4)], [said("ok", 0.7, 0.4 + 1e-9)]) == 1e-4
    # 0.90 to 0.86 is a push of 0.36 in log-odds: a margin of 0.18 could be lost by it, and half as much for safety.
    assert escalate_below([said("ok", 0.95, 0.90)], [said("ok", 0.93, 0.86)]) == pytest.approx(0.262, abs=2e-4)
    expected = [said("ok", 0.9, 0.8), said("bad", 0.6, 0.05), said("ok", 0.55, 0.1)]
    found = [said("ok", 0.9, 0.8), said("ok", 0.6, 0.12), said("bad", 0.55, 0.02)]
    assert 0.12 < escalate_below(expected, found) < 0.5
    sure = [said("ok", 1.0, 1.0), said("bad", 1.0, 1.0)]
    assert 0.05 < escalate_below(sure, sure) < 0.2
    assert log_odds(1.0) == log_odds(1 - 1e-7) < 15


def test_a_doubt_that_a_variant_loses_is_a_disagreement_and_one_without_a_margin_is_looked_at_again():
    exact, doubted = said("ok", 0.9, 0.8), Finding("x", "fp32", "ok", 0.9, doubt="unlike")
    assert compare([doubted], [exact], generated=False).labels_equal == 0
    assert escalate_below([doubted], [exact]) > exact.margin
    assert compare([exact], [doubted], generated=False).labels_equal == 1
    assert 0 < escalate_below([exact, exact], [exact, doubted]) < 1e-3
    assert escalate_below([exact], [doubted]) == 1


def test_boxes_that_one_does_not_see_or_sees_elsewhere_are_no_disagreement_but_their_scores_count():
    seen = said("a", 0.9, 0.03, box("a", 0.9), box("a", 0.28, 20, 0, 30, 10))
    lost = said("a", 0.9, 0.03, box("a", 0.9))
    other = said("b", 0.9, 0.02, box("b", 0.9))
    moved = said("a", 0.9, 0.03, box("a", 0.9), box("a", 0.28, 20, 0, 30, 15))
    assert escalate_below([seen], [lost]) == 0
    assert escalate_below([seen], [other]) > 0.05
    assert escalate_below([seen], [moved]) == 0
    one = said("a", 0.9, 0.03, box("a", 0.9))
    other = said("a", 0.8, 0.03, box("a", 0.8))
    assert escalate_below([one], [other]) == pytest.approx(0.15, abs=2e-3)
