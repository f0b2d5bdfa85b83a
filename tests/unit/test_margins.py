"""How far a finding was from saying something else, and in which variant it was made."""

import pytest
import torch
from candidates import candidates

from coe.core import Expert
from coe.store.kinds import ExpertInput
from experts.findings import Cut, classified, detected

CHIP = Expert("chip", "k", ("ok", "bad", "odd"), 32, "b/chip", variant="bf16")
JOINT = Expert("joint", "k", ("joint", "bridge", "lifted"), 32, "b/joint", frozenset({"bridge", "lifted"}), "q8")


def test_a_classifier_tells_its_lead_over_the_next_label():
    clear, tie = classified(torch.tensor([[0.125, 0.75, 0.125], [0.5, 0.0, 0.5]]), CHIP)
    assert (clear.label, clear.score, clear.margin, clear.variant) == ("bad", 0.75, 0.625, "bf16")
    assert (tie.label, tie.margin) == ("ok", 0.0)


def test_one_label_alone_has_no_rival():
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
