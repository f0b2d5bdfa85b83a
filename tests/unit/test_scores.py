"""Scores after a temperature, and boxes that do not count."""

import math
from dataclasses import replace

import pytest
import torch
from candidates import candidates
from hypothesis import given
from hypothesis import strategies as st

from coe.board.scores import adjusted, honest
from coe.core import Box, Expert, Finding
from coe.errors import CoeError
from coe.store.kinds import ExpertInput
from experts.findings import Cut, classified, detected

PLACE = (0.0, 0.0, 1.0, 1.0)


def expert(temperature=1.0, **ignore_under):
    plain = Expert("e", "k", ("joint", "bridge"), 64, "b/e", frozenset({"bridge"}))
    return replace(plain, temperature=temperature, ignore_under=ignore_under)


def finding(*boxes, margin=0.9):
    label, score = boxes[0] if boxes else ("none", 0.8)
    return Finding("e", "fp32", label, score, tuple(Box(label, score, PLACE) for label, score in boxes), margin)


def test_without_entries_in_the_rules_a_finding_stays_and_a_classifier_has_no_boxes_to_ignore():
    said = finding(("joint", 0.9))
    assert adjusted(said, expert()) == said
    said = Finding("e", "fp32", "bridge", 0.9)
    with pytest.raises(CoeError, match="gives no boxes, and the rules ignore boxes of it"):
        adjusted(said, expert(bridge=0.6))


def test_a_temperature_divides_the_logarithm_of_the_odds_as_in_a_softmax():
    assert honest(0.9, 2.0) == pytest.approx(0.75)  # odds of 9 become odds of 3
    assert honest(0.5, 7.0) == 0.5
    assert math.isnan(honest(math.nan, 2.0))
    logits = (2.5, 0.7)
    at = [math.exp(value / 3) for value in logits]
    plain = [math.exp(value) for value in logits]
    assert honest(plain[0] / sum(plain), 3.0) == pytest.approx(at[0] / sum(at))


@given(st.floats(0, 1), st.floats(0.05, 20))
def test_an_honest_score_is_a_score_on_the_same_side_and_can_be_undone(score, temperature):
    there = honest(score, temperature)
    assert 0 <= there <= 1
    assert (there - 0.5) * (score - 0.5) >= 0
    if 0.01 < score < 0.99 and temperature > 0.2:
        assert honest(there, 1 / temperature) == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize(
    ("boxes", "label", "score", "kept"),
    [
        ([("bridge", 0.7), ("joint", 0.9)], "bridge", 0.7, 2),
        ([("bridge", 0.5), ("joint", 0.9)], "joint", 0.9, 1),
        ([("bridge", 0.5), ("bridge", 0.4)], "none", 0.5, 0),
        ([("bridge", 0.6)], "bridge", 0.6, 1),
    ],
)
def test_boxes_under_a_score_do_not_count(boxes, label, score, kept):
    said = adjusted(finding(*boxes), expert(bridge=0.6))
    assert (said.label, said.score, len(said.boxes)) == (label, score, kept)


def test_the_margin_is_at_most_the_distance_to_a_box_that_begins_or_ceases_to_count():
    assert adjusted(finding(("bridge", 0.58)), expert(bridge=0.6)).margin == pytest.approx(0.02)
    assert adjusted(finding(("bridge", 0.95), margin=0.1), expert(bridge=0.6)).margin == 0.1
    # On the scale of the kind: at temperature 2 a score of 0.75 is the kind's 0.9.
    assert adjusted(finding(("bridge", 0.95)), expert(2.0, bridge=0.75)).margin == pytest.approx(0.05)


# How far a finding was from saying something else, and in which variant it was made


CHIP = Expert("chip", "k", ("ok", "bad", "odd"), 32, "b/chip", variant="bf16")
JOINT = Expert("joint", "k", ("joint", "bridge", "lifted"), 32, "b/joint", frozenset({"bridge", "lifted"}), "q8")


def test_a_classifier_tells_its_lead_over_the_next_label_and_one_label_has_no_rival():
    clear, tie = classified(torch.tensor([[0.125, 0.75, 0.125], [0.5, 0.0, 0.5]]), CHIP)
    assert (clear.label, clear.score, clear.margin, clear.variant) == ("bad", 0.75, 0.625, "bf16")
    assert (tie.label, tie.margin) == ("ok", 0.0)
    (only,) = classified(torch.tensor([[1.0]]), Expert("chip", "k", ("ok",), 32, "b/chip"))
    assert (only.label, only.margin, only.variant) == ("ok", 1.0, "fp32")


@pytest.mark.parametrize(
    ("scores", "label", "margin"),
    [
        ([], "none", 1.0),
        ([[0.0, 0.125, 0.0]], "none", 0.375),
        ([[0.875, 0.0, 0.0]], "joint", 0.375),
        ([[0.5, 0.0, 0.0]], "joint", 0.0),
        # A second joint that comes or goes is a joint all the same.
        ([[0.875, 0.0, 0.0], [0.46875, 0.0, 0.0]], "joint", 0.375),
        # A bridge that nearly came in would have decided, whatever the joint scores.
        ([[0.875, 0.0, 0.0], [0.0, 0.4375, 0.0]], "joint", 0.0625),
        # One that is there does, and joints no longer count.
        ([[0.875, 0.0, 0.0], [0.0, 0.75, 0.0]], "bridge", 0.25),
        # Of two labels to reject the better one is told: the lead over the other is what may be lost.
        ([[0.0, 0.75, 0.0], [0.0, 0.0, 0.625]], "bridge", 0.125),
        ([[0.0, 0.75, 0.0], [0.0, 0.0, 0.25]], "bridge", 0.25),
    ],
)
def test_a_detector_tells_how_far_its_label_is_from_another(scores, label, margin):
    prepared = ExpertInput(torch.zeros(3, 32, 32, dtype=torch.uint8).numpy(), 32, 32)
    boxes = [[8.0 * place, 0.0, 8.0 * place + 4, 4.0, *row] for place, row in enumerate(scores)]
    (found,) = detected(candidates(boxes, 3), [prepared], JOINT, Cut(threshold=0.5, overlap=0.45, most=9))
    assert (found.label, found.margin, found.variant) == (label, margin, "q8")
