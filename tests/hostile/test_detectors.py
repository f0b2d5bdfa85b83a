"""Whatever a detector's network returns, nothing good hides anything bad, and nonsense is never OK."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from candidates import candidates
from hypothesis import given
from hypothesis import strategies as st

from coe import Inspector
from coe.core import NOTHING, Box, Expert, Finding, Verdict
from coe.errors import CoeError, RulesError, StoreError
from coe.helpers.preprocessing import Outputs
from coe.runtime.runner import findings_of
from coe.store.kinds import ExpertInput
from coe.testing import rules_from
from experts.findings import Cut, classified, detected
from experts.onnx import onnx

LABELS = ("joint", "bridge", "lifted")
PLAIN = ExpertInput(np.zeros((3, 64, 64), np.uint8), height=64, width=64)
HEAD = "board: b\nexperts:\n  d: {kind: k, labels: [joint, bridge, lifted], input: 64, "
TAIL = "}\ncomponents:\n  R: {inspect: d}\n"
BY_REJECT = "reject: [bridge, lifted], then: {none: OK}"
BY_THEN = "then: {joint: OK, bridge: NG, lifted: REVIEW, none: OK}"
BOTH = pytest.mark.parametrize("judging", [BY_REJECT, BY_THEN], ids=["reject", "then"])
Row = tuple[tuple[float, float, float, float], tuple[float, float, float]]


@cache
def board(judging):
    return rules_from(HEAD + judging + TAIL)


def see(rows, expert, most=300):
    outputs = candidates([[*corners, *scores] for corners, scores in rows], 3)
    (finding,) = detected(outputs, [PLAIN], expert, Cut(threshold=0.25, overlap=0.45, most=most))
    return finding


def judged(rows, judging):
    """Return the verdict of a picture in which a detector's network has these candidates."""
    found = board(judging)
    decision = found.router.next(found.components["R"].root, see(rows, found.experts["d"]))
    assert decision.verdict is not None
    return decision.verdict


def at(number, side=4.0):
    """Return corners of the box of this number; no two overlap."""
    left, top = 10.0 * (number % 64), 10.0 * (number // 64)
    return left, top, left + side, top + side


def joints(count, score=0.9):
    return [(at(number), (score, 0.0, 0.0)) for number in range(count)]


@BOTH
@pytest.mark.parametrize("count", [1, 299, 300, 301, 2000])
def test_a_bridge_is_ng_behind_any_number_of_better_joints(judging, count):
    assert judged([*joints(count), (at(count), (0.0, 0.8, 0.0))], judging) is Verdict.NG


@BOTH
@pytest.mark.parametrize("score", [0.25, 0.3, 0.5, 1.0])
def test_a_bridge_counts_from_the_threshold_on_whatever_the_joints_score(judging, score):
    assert judged([*joints(400, 1.0), (at(400), (0.0, score, 0.0))], judging) is Verdict.NG


@pytest.mark.parametrize("most", [1, 2, 5, 300])
def test_of_a_flood_the_best_of_each_label_stays_then_what_speaks_against_the_part(most):
    expert = board(BY_REJECT).experts["d"]
    bridges = [(at(500 + number), (0.0, 0.3 + number / 1000, 0.0)) for number in range(400)]
    finding = see([*joints(400), *bridges, (at(950), (0.0, 0.0, 0.26))], expert, most)
    kept = [box.label for box in finding.boxes]
    assert len(kept) == max(most, 3)
    assert (kept.count("joint"), kept.count("lifted")) == (1, 1)
    assert (finding.label, round(finding.score, 3)) == ("bridge", 0.699)
    assert [box.score for box in finding.boxes] == sorted((box.score for box in finding.boxes), reverse=True)


@pytest.mark.parametrize(
    "place", [(-11.0, -11.0, -1.0, -1.0), (-600.0, -600.0, -590.0, -590.0), (700.0, 700.0, 710.0, 710.0)]
)
@BOTH
def test_a_bridge_outside_the_picture_is_a_bridge(place, judging):
    """Moved by the largest coordinate, as the common suppression of all labels at once does, it fell on a joint."""
    rows = [((100.0, 100.0, 110.0, 110.0), (0.9, 0.0, 0.0)), (place, (0.0, 0.8, 0.0))]
    assert judged(rows, judging) is Verdict.NG


def test_the_boxes_of_each_label_are_suppressed_by_themselves():
    expert = board(BY_REJECT).experts["d"]
    rows = [((100.0, 100.0, 110.0, 110.0), (0.9, 0.0, 0.0)), ((-11.0, -11.0, -1.0, -1.0), (0.0, 0.8, 0.0))]
    assert sorted(box.label for box in see(rows, expert).boxes) == ["bridge", "joint"]


@BOTH
def test_of_equal_scores_of_one_candidate_the_bad_label_is_believed(judging):
    assert judged([(at(0), (1.0, 1.0, 0.0))], judging) is Verdict.NG
    assert judged([(at(0), (0.5, 0.0, 0.5))], judging) is not Verdict.OK


@given(
    rows=st.lists(
        st.tuples(st.tuples(*[st.floats(-100, 200, width=32)] * 4), st.tuples(*[st.floats(0, 1, width=32)] * 3)),
        max_size=12,
    ),
    most=st.integers(1, 12),
)
def test_whatever_the_boxes_are_one_that_is_rejected_makes_ng_and_nothing_else_does(rows, most):
    found = board(BY_REJECT)
    finding = see(rows, found.experts["d"], most)
    said = {LABELS[max((1, 2, 0), key=lambda place: scores[place])] for _, scores in rows if max(scores) >= 0.25}
    decision = found.router.next(found.components["R"].root, finding)
    assert (decision.verdict is Verdict.NG) == bool(said & {"bridge", "lifted"})
    assert finding.labels == (said or {NOTHING})
    assert 0 <= finding.margin <= 1


NAN, INF = math.nan, math.inf
NONSENSE = {
    "a score that is no number": [(at(0), (NAN, 0.0, 0.0))],
    "all scores no numbers": [(at(0), (NAN, NAN, NAN))],
    "one of many": [*joints(50), (at(60), (0.0, NAN, 0.0))],
    "a score of infinity": [*joints(2), (at(5), (INF, 0.0, 0.0))],
    "a score of minus infinity": [*joints(2), (at(5), (-INF, 0.0, 0.0))],
    "logits": [(at(0), (3.5, -2.0, 0.1))],
    "logits under zero": [(at(0), (-3.5, -2.0, -9.0))],
    "per cent": [(at(0), (90.0, 1.0, 1.0))],
    "a place that is no number": [((NAN, 0.0, 4.0, 4.0), (0.9, 0.0, 0.0))],
    "a bad box at no place": [*joints(3), ((0.0, 0.0, INF, 4.0), (0.0, 0.9, 0.0))],
}


@pytest.mark.parametrize("rows", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_an_error_and_never_nothing(rows):
    with pytest.raises(StoreError, match=r"its (scores|boxes) (are not numbers|go from|have coordinates)"):
        see(rows, board(BY_REJECT).experts["d"])


@pytest.mark.parametrize("noise", [0.0, -0.0005, 1.0005])
def test_scores_that_are_rounded_to_sixteen_bits_are_believed(noise):
    assert len(see([(at(0), (0.9, 0.0, noise))], board(BY_REJECT).experts["d"]).boxes) == 1


@pytest.mark.parametrize("row", [[0.5, 0.5, 0.0], [0.3, 0.3, 0.3], [0.5, 0.0, 0.5]])
def test_of_labels_that_a_classifier_finds_equally_likely_the_bad_one_is_said(row):
    finding = classified(torch.tensor([row]), board(BY_THEN).experts["d"])[0]
    assert finding.label in ("bridge", "lifted")
    assert (finding.score, finding.margin) == (pytest.approx(max(row)), 0.0)


@pytest.mark.parametrize("values", [[NAN, 0.5, 0.5], [NAN] * 3, [INF, 0.0, 0.0], [0.0, 1.0, -INF]])
def test_a_classifier_of_numbers_that_are_none_says_nothing(values):
    with pytest.raises(StoreError, match="its scores are not numbers"):
        classified(torch.tensor([[0.1, 0.8, 0.1], values]), Expert("c", "k", LABELS, 64, "b/c"))


@pytest.mark.parametrize("logits", [[NAN, 0.0, 1.0], [INF, INF, 0.0], [INF, 0.0, 0.0], [-INF, -INF, -INF]])
def test_an_onnx_classifier_of_nonsense_is_an_error_of_that_image_alone(logits):
    expert = Expert("c", "onnx", LABELS, 64, "b/c", outputs=Outputs(layout="scores", activation="softmax"))
    with pytest.raises(StoreError, match="its scores are not numbers"):
        onnx.postprocess(np.array([logits], np.float32), [PLAIN], expert)


@pytest.mark.parametrize("beside", [[NAN, 0.0, 0.0], [0.2, 0.5, 0.3]])
def test_what_shares_a_batch_with_a_row_of_probabilities_does_not_change_it(beside):
    expert = Expert("c", "onnx", LABELS, 64, "b/c", outputs=Outputs(layout="scores", activation="none"))
    row = [0.7, 0.2, 0.1]
    (alone,) = onnx.postprocess(np.array([row], np.float32), [PLAIN], expert)
    assert alone.score == pytest.approx(0.7)
    if not math.isnan(beside[0]):
        together = onnx.postprocess(np.array([row, beside], np.float32), [PLAIN, PLAIN], expert)
        assert together[0] == alone


class Says:
    """A kind of a user's own that says what a test gives it."""

    def __init__(self, *findings):
        self.findings = list(findings)

    def postprocess(self, outputs, prepared, expert):
        return self.findings


def box(label="joint", score=0.9, corner=1.0):
    return Box(label, score, (0.0, 0.0, corner, 4.0))


@pytest.mark.parametrize(
    ("finding", "complaint"),
    [
        (Finding("d", "fp32", "joint", 0.9, (box("crack"),)), "it said 'crack', which is not one of its labels"),
        (Finding("d", "fp32", "joint", 0.9, (box(NOTHING),)), "it said 'none', but gave 1 box"),
        (Finding("d", "fp32", NOTHING, 0.9, (box(),)), "it said 'none', but gave 1 box"),
        (Finding("d", "fp32", "joint", 0.9, (box(score=NAN),)), "its scores are not numbers"),
        (Finding("d", "fp32", "joint", 0.9, (box(), box(score=INF))), "its scores are not numbers"),
        (Finding("d", "fp32", "joint", 0.9, (box(corner=NAN),)), "its boxes have coordinates that are not numbers"),
        (Finding("d", "fp32", "joint", NAN, (box(),)), "its scores are not numbers"),
    ],
)
def test_what_a_kind_of_ones_own_may_not_say(finding, complaint):
    with pytest.raises(CoeError, match=complaint):
        findings_of(Says(finding), None, [PLAIN], Expert("d", "k", LABELS, 64, "b/d"))


@pytest.mark.parametrize("kind", ["yolov5n", "yolov5l"])
def test_a_line_does_not_start_on_a_detector_of_which_none_is_unsaid(tmp_path, kind):
    path = tmp_path / "b.yaml"
    text = f"board: b\nexperts:\n  d: {{kind: {kind}, labels: [joint], input: 64, then: {{joint: OK}}}}\n"
    path.write_text(text + "components: {R: {inspect: d}}\n")
    with pytest.raises(RulesError) as caught:
        Inspector(path, store=tmp_path / "store")
    assert str(caught.value).startswith("b.yaml:3: 'd' may see nothing, and not all of its steps say what follows then")
