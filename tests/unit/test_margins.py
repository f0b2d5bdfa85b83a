"""How far a finding was from saying something else, and in which variant it was made."""

import pytest
import torch

from coe.core import Expert
from coe.kinds import Prepared
from experts.findings import classified, detected

CHIP = Expert("chip", "k", ("ok", "bad", "odd"), 32, "b/chip", variant="bf16")
JOINT = Expert("joint", "k", ("joint", "bridge"), 32, "b/joint", variant="q8")


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
        ([[0.0, 0.125]], "none", 0.375),
        ([[0.875, 0.0]], "joint", 0.375),
        ([[0.875, 0.0], [0.0, 0.4375]], "joint", 0.0625),
        ([[0.5, 0.0]], "joint", 0.0),
    ],
)
def test_a_detector_tells_how_near_any_candidate_is_to_the_threshold(scores, label, margin):
    prepared = Prepared(torch.zeros(3, 32, 32, dtype=torch.uint8).numpy(), 32, 32)
    boxes = [[8.0 * place, 0.0, 8.0 * place + 4, 4.0, *row] for place, row in enumerate(scores)]
    found = detected(torch.tensor(boxes).reshape(-1, 6), prepared, JOINT, threshold=0.5, overlap=0.45, most=9)
    assert (found.label, found.margin, found.variant) == (label, margin, "q8")
