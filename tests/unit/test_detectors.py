"""Nothing good hides anything bad: not boxes of a detector, not rules, not a part that fits its reference twice."""

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from candidates import candidates
from contact_rows import case_of
from hypothesis import given
from hypothesis import strategies as st

from coe import Inspector
from coe.comparing.comparison import compare
from coe.comparing.motion import OPENING
from coe.core import NOTHING, Box, Expert, Finding, Verdict
from coe.errors import CoeError, RulesError, StoreError
from coe.helpers.preprocessing import Outputs
from coe.runtime.runner import findings_of
from coe.scheduler.costs import Cost
from coe.store.kinds import ExpertInput
from coe.testing import VirtualLine, pools_of, rules_from
from experts.findings import Cut, classified, detected
from experts.onnx import onnx

LABELS = ("joint", "bridge", "lifted")
PLAIN = ExpertInput(np.zeros((3, 64, 64), np.uint8), height=64, width=64)
BY_REJECT = "reject: [bridge, lifted], then: {none: OK}"
BY_THEN = "then: {joint: OK, bridge: NG, lifted: REVIEW, none: OK}"
BOTH = pytest.mark.parametrize("judging", [BY_REJECT, BY_THEN], ids=["reject", "then"])


@cache
def board(judging):
    expert = f"{{kind: k, labels: [joint, bridge, lifted], input: 64, {judging}}}"
    return rules_from(f"board: b\nexperts:\n  d: {expert}\ncomponents:\n  R: {{inspect: d}}\n")


def see(rows, expert, most=300):
    outputs = candidates([[*corners, *scores] for corners, scores in rows], 3)
    (finding,) = detected(outputs, [PLAIN], expert, Cut(threshold=0.25, overlap=0.45, most=most))
    return finding


def judged(rows, judging):
    found = board(judging)
    return found.router.next(found.components["R"].root, see(rows, found.experts["d"])).verdict


def at(number, side=4.0):
    left, top = 10.0 * (number % 64), 10.0 * (number // 64)
    return left, top, left + side, top + side


def joints(count, score=0.9):
    return [(at(number), (score, 0.0, 0.0)) for number in range(count)]


@BOTH
@pytest.mark.parametrize(
    ("others", "score"),
    [*((joints(n), 0.8) for n in (1, 299, 300, 301, 2000)), *((joints(400, 1.0), s) for s in (0.25, 0.3, 0.5, 1.0))],
    ids=lambda value: len(value) if isinstance(value, list) else value,
)
def test_a_bridge_from_the_threshold_on_is_ng_behind_any_number_of_better_joints(judging, others, score):
    assert judged([*others, (at(len(others)), (0.0, score, 0.0))], judging) is Verdict.NG


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


@pytest.mark.parametrize("corner", [-11.0, -600.0, 700.0])
@BOTH
def test_a_bridge_outside_the_picture_is_a_bridge(corner, judging):
    """Moved by the largest coordinate, as the common suppression of all labels at once does, it fell on a joint."""
    bridge = (corner, corner, corner + 10, corner + 10)
    rows = [((100.0, 100.0, 110.0, 110.0), (0.9, 0.0, 0.0)), (bridge, (0.0, 0.8, 0.0))]
    assert judged(rows, judging) is Verdict.NG
    assert sorted(box.label for box in see(rows, board(judging).experts["d"]).boxes) == ["bridge", "joint"]


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
    with pytest.raises(StoreError, match=r"its (scores|boxes)"):
        see(rows, board(BY_REJECT).experts["d"])


@pytest.mark.parametrize("noise", [0.0, -0.0005, 1.0005])
def test_scores_that_are_rounded_to_sixteen_bits_are_believed(noise):
    assert len(see([(at(0), (0.9, 0.0, noise))], board(BY_REJECT).experts["d"]).boxes) == 1


@pytest.mark.parametrize("row", [[0.5, 0.5, 0.0], [0.3, 0.3, 0.3], [0.5, 0.0, 0.5]])
def test_of_labels_that_a_classifier_finds_equally_likely_the_bad_one_is_said(row):
    finding = classified(torch.tensor([row]), board(BY_THEN).experts["d"])[0]
    assert finding.label in ("bridge", "lifted")
    assert (finding.score, finding.margin) == (pytest.approx(max(row)), 0.0)


@pytest.mark.parametrize("values", [[NAN, 0.5, 0.5], [NAN] * 3, [INF, 0.0, 0.0], [INF, INF, 0.0], [0.0, 1.0, -INF]])
def test_a_classifier_of_numbers_that_are_none_says_nothing(values):
    with pytest.raises(StoreError, match="scores"):
        classified(torch.tensor([[0.1, 0.8, 0.1], values]), Expert("c", "k", LABELS, 64, "b/c"))
    expert = Expert("c", "onnx", LABELS, 64, "b/c", outputs=Outputs(layout="scores", activation="softmax"))
    if values[-1] != -INF:  # of which a softmax makes a probability
        with pytest.raises(StoreError, match="scores"):
            onnx.postprocess(np.array([values], np.float32), [PLAIN], expert)


@pytest.mark.parametrize("beside", [[NAN, 0.0, 0.0], [0.2, 0.5, 0.3]])
def test_what_shares_a_batch_with_a_row_of_probabilities_does_not_change_it(beside):
    expert = Expert("c", "onnx", LABELS, 64, "b/c", outputs=Outputs(layout="scores", activation="none"))
    row = [0.7, 0.2, 0.1]
    (alone,) = onnx.postprocess(np.array([row], np.float32), [PLAIN], expert)
    assert alone.score == pytest.approx(0.7)
    if not math.isnan(beside[0]):
        together = onnx.postprocess(np.array([row, beside], np.float32), [PLAIN, PLAIN], expert)
        assert together[0] == alone


def box(label="joint", score=0.9, corner=1.0):
    return Box(label, score, (0.0, 0.0, corner, 4.0))


@pytest.mark.parametrize(
    ("label", "score", "boxes", "named"),
    [
        ("joint", 0.9, [box("crack")], "'crack'"),
        ("joint", 0.9, [box(NOTHING)], "'none'"),
        (NOTHING, 0.9, [box()], "'none'"),
        ("joint", 0.9, [box(score=NAN)], "scores"),
        ("joint", 0.9, [box(), box(score=INF)], "scores"),
        ("joint", 0.9, [box(corner=NAN)], "boxes"),
        ("joint", NAN, [box()], "scores"),
    ],
)
def test_what_a_kind_of_ones_own_may_not_say(label, score, boxes, named):
    kind = SimpleNamespace(postprocess=lambda *_: [Finding("d", "fp32", label, score, tuple(boxes))])
    with pytest.raises(CoeError, match=named):
        findings_of(kind, None, [PLAIN], Expert("d", "k", LABELS, 64, "b/d"))


@pytest.mark.parametrize(
    "odd",
    [
        *({"doubt": ["glare"]}, {"expert": ["d"]}, {"expert": "other"}, {"variant": None}, {"read": 7}),
        *({"allowed": None}, {"allowed": (3,)}, {"reference": None}, {"caution": b"x"}, {"heat": "x"}, {"boxes": None}),
        *({"likeness": "x"}, {"score": 5.0}, {"score": -1.0}, {"score": "1"}, {"boxes": (box(score=1.5),)}),
        *({"boxes": ("x",)}, {"boxes": [box()]}, {"label": None}, {"margin": None}, {"margin": NAN}, {"read": b""}),
        {"boxes": (Box("joint", 0.9, (0.0, 0.0, 4.0)),)},
    ],
    ids=str,
)
def test_a_finding_of_another_form_is_refused_where_it_is_given(odd):
    kind = SimpleNamespace(postprocess=lambda *_: [replace(Finding("d", "fp32", "joint", 0.9, (box(),)), **odd)])
    with pytest.raises((CoeError, TypeError, AttributeError)):
        findings_of(kind, None, [PLAIN], Expert("d", "k", LABELS, 64, "b/d"))


@pytest.mark.parametrize("kind", ["yolov5n", "yolov5l"])
def test_a_line_does_not_start_on_a_detector_of_which_none_is_unsaid(tmp_path, kind):
    path = tmp_path / "b.yaml"
    text = f"board: b\nexperts:\n  d: {{kind: {kind}, labels: [joint], input: 64, then: {{joint: OK}}}}\n"
    path.write_text(text + "components: {R: {inspect: d}}\n")
    with pytest.raises(RulesError, match=r"^b\.yaml:3: 'd'"):
        Inspector(path, store=tmp_path / "store")


PLACE = (0.0, 0.0, 4.0, 4.0)
BOARD = """
board: b
experts:
  d:
    kind: k
    labels: [joint, mark, bridge, smudge]
    input: 8
    {judging}
  p: {kind: k, labels: [ok, bad], input: 8, reject: [bad], then: {none: OK}}
  q: {kind: k, labels: [ok, bad], input: 8, reject: [bad], then: {none: OK}}
components:
  R: {inspect: d}
  P: {inspect: p, then: {ok: q}}
"""


def board_rules(judging):
    return rules_from(BOARD.replace("{judging}", judging))


def saw(**best):
    """What a detector says that has a box of each of these labels: the best of them tells."""
    boxes = tuple(Box(label, score, PLACE) for label, score in sorted(best.items(), key=lambda one: -one[1]))
    return Finding("d", "fp32", boxes[0].label, boxes[0].score, boxes)


def inspected(rules, finding, **others):
    """Return the verdict of a picture of which the detector says this; `others` is what the experts behind it say."""
    costs = dict.fromkeys(rules.experts, Cost(0.1, 0.1, 0.1, 10, 1))
    findings = {(0, "d"): finding}
    findings |= {(0, expert): label for expert, label in others.items()}
    line = VirtualLine(rules, costs, pools_of(1, 100), findings=findings)
    line.arrive(0.0, "R")
    line.run()
    assert len(line.results) == 1
    return line.results[0].verdict


FOLLOWED = "then: {joint: p, mark: q, bridge: NG, smudge: REVIEW, none: OK}"


@pytest.mark.parametrize(
    ("judging", "seen", "said", "verdict"),
    [
        # What `then` sends to NG counts like what `reject` names.
        ("then: {joint: OK, mark: OK, bridge: NG, smudge: OK, none: OK}", {"joint": 0.9, "bridge": 0.3}, {}, "NG"),
        (
            "then: {joint: OK, mark: OK, bridge: REVIEW, smudge: OK, none: OK}",
            {"joint": 1, "bridge": 0.3},
            {},
            "REVIEW",
        ),
        ("reject: [bridge], then: {none: OK}", {"joint": 0.9, "bridge": 0.3}, {}, "NG"),
        ("reject: [bridge], then: {none: OK}", {"joint": 0.9, "mark": 0.8, "smudge": 0.7}, {}, "OK"),
        ("reject: [bridge], then: {smudge: NG, none: OK}", {"joint": 0.9, "smudge": 0.3}, {}, "NG"),
        ("reject: [bridge], then: {smudge: NG, none: OK}", {"joint": 0.9, "bridge": 0.4, "smudge": 0.3}, {}, "NG"),
        # All that follows must pass, whichever label scores best.
        (FOLLOWED, {"joint": 0.9, "mark": 0.3}, {"p": "ok", "q": "bad"}, "NG"),
        (FOLLOWED, {"joint": 0.3, "mark": 0.9}, {"p": "bad", "q": "ok"}, "NG"),
        (FOLLOWED, {"joint": 0.9, "mark": 0.3}, {"p": "ok", "q": "ok"}, "OK"),
        (FOLLOWED, {"joint": 0.9, "bridge": 0.3}, {"p": "ok"}, "NG"),
        (FOLLOWED, {"joint": 0.9, "smudge": 0.3}, {"p": "ok"}, "REVIEW"),
        (FOLLOWED, {"joint": 0.9, "smudge": 0.3}, {"p": "bad"}, "NG"),
        (FOLLOWED, {"smudge": 0.9, "bridge": 0.3}, {}, "NG"),
        # A score that is too low to be believed is a doubt only where it leads elsewhere.
        ("min_score: 0.5, reject: [bridge], then: {none: OK}", {"joint": 0.9, "bridge": 0.3}, {}, "REVIEW"),
        ("min_score: 0.5, reject: [bridge], then: {none: OK}", {"joint": 0.9, "mark": 0.3}, {}, "OK"),
        ("min_score: 0.5, reject: [bridge], then: {none: OK}", {"joint": 0.3, "bridge": 0.9}, {}, "NG"),
        ("min_score: 0.5, reject: [bridge], then: {none: OK}", {"joint": 0.3}, {}, "REVIEW"),
        ("min_score: 0.5, reject: [bridge, smudge], then: {none: OK}", {"bridge": 0.3, "smudge": 0.6}, {}, "NG"),
        ("min_score: 0.5, " + FOLLOWED, {"joint": 0.9, "mark": 0.3}, {"p": "ok"}, "REVIEW"),
        ("min_score: 0.5, " + FOLLOWED, {"joint": 0.9, "mark": 0.3}, {"p": "bad"}, "NG"),
    ],
)
def test_the_worst_box_decides(judging, seen, said, verdict):
    rules = board_rules(judging.replace(", then", "\n    then").replace("min_score: 0.5, ", "min_score: 0.5\n    "))
    assert inspected(rules, saw(**seen), **said) is Verdict[verdict]


SEEN = ("joint", "mark", "bridge", "smudge")
SCORES = st.dictionaries(st.sampled_from(SEEN), st.floats(0, 1), min_size=1)
OUTCOMES = st.fixed_dictionaries(dict.fromkeys(SEEN, st.sampled_from(["OK", "REVIEW", "NG"])))


@given(seen=SCORES, outcomes=OUTCOMES, least=st.sampled_from([0.0, 0.5]))
def test_whatever_is_seen_no_box_makes_a_verdict_better(seen, outcomes, least):
    then = ", ".join(f"{label}: {outcome}" for label, outcome in outcomes.items())
    rules = board_rules(f"min_score: {least}\n    then: {{{then}}}")
    root = rules.components["R"].root

    def verdict(labels):
        return rules.router.next(root, saw(**labels)).verdict

    whole = verdict(seen)
    for label, score in seen.items():
        alone = verdict({label: score})
        doubted = alone is Verdict.REVIEW and outcomes[label] != "REVIEW"
        assert whole.severity >= alone.severity or doubted
        if score >= least and outcomes[label] == "NG":
            assert whole is Verdict.NG


@pytest.mark.parametrize("label", [None, "joint", "bridge"])
@pytest.mark.parametrize("score", [math.nan, 0.4, -math.inf])
def test_a_score_that_is_not_believed_is_never_ok(label, score):
    rules = board_rules("reject: [bridge]\n    min_score: 0.5\n    then: {none: OK}")
    assert inspected(rules, Finding("d", "fp32", label or NOTHING, score)) is Verdict.REVIEW


@pytest.mark.parametrize(
    ("judging", "words"),
    [
        ("reject: [bridge]\n    then: {bridge: OK}", "board.yaml:8: |'d'|'bridge'|OK"),
        ("reject: [smudge, bridge]\n    then: {none: NG, bridge: OK}", "board.yaml:8: |'d'|'bridge'|OK"),
        ("reject: [bridge]\n    shares: {none: 0.1}", "board.yaml:4: |'d' may see nothing"),
        ("reject: [bridge]\n    then: {None: OK}", "board.yaml:9: |'None'|'d'|'none'"),
        ("reject: [none]", "board.yaml:8: |'none'|'d'"),
        ("weights: x\n    reject: [none]", "board.yaml:9: |'none'|'d'"),
        ("then: {joint: OK}", "'mark'|'d'|`then`"),
        ("then: {joint: OK, mark: OK, smudge: OK}", "'bridge'"),
        ("reject: [bridge]\n    then: {none: PASS}", "'PASS' is not an expert"),
        ("reject: [bridge]\n    then: {none: }", "then.none' has no value"),
        ("reject: [bridge]\n    then: {none: []}", "board.yaml:9: "),
        ("reject: [bridge]\n    min_score: nan", "'nan'"),
    ],
)
def test_rules_that_would_hide_a_defect_are_refused(judging, words):
    with pytest.raises(RulesError) as caught:
        board_rules(judging)
    assert [word for word in words.split("|") if word not in str(caught.value)] == []


def test_a_step_may_judge_otherwise_than_its_expert_there_alone_and_a_weak_box_hides_no_clear_one():
    text = BOARD.replace("{judging}", "reject: [bridge]\n    then: {none: NG}")
    rules = rules_from(text + "  S: {inspect: d, then: {bridge: OK}}\n")
    verdicts = [rules.router.next(rules.components[name].root, saw(joint=0.9, bridge=0.8)).verdict for name in "RS"]
    assert (verdicts, rules.experts["d"].reject) == ([Verdict.NG, Verdict.OK], {"bridge"})
    rules = rules_from(text + "  S: {inspect: d, then: {smudge: REVIEW}}\n")
    assert rules.experts["d"].reject == {"bridge", "smudge"}
    text = BOARD.replace("{judging}", "min_score: 0.5\n    reject: [bridge, smudge]\n    then: {none: NG}")
    rules = rules_from(text + "  S: {inspect: d, then: {joint: p, bridge: p, mark: p, smudge: p}}\n")
    seen = Finding("d", "fp32", "bridge", 0.3, (Box("joint", 0.9, (0, 0, 1, 1)), Box("bridge", 0.3, (0, 0, 1, 1))))
    decision = rules.router.next(rules.components["S"].root, seen)
    assert ([step.expert for step in decision.steps], decision.verdict) == (["p"], None)


@pytest.mark.parametrize("entry", ["", "then: {none: REVIEW}"])
def test_a_detector_that_says_nothing_of_nothing_is_refused_by_its_kind(entry):
    rules = board_rules(f"reject: [bridge]\n    {entry}")
    if entry:
        rules.check_detectors(["d", "p", "q"])
    else:
        with pytest.raises(RulesError, match=r"board.yaml:4: 'd' may see nothing.*add `then: \{none: REVIEW\}` here"):
            rules.check_detectors(["p", "d"])
        assert inspected(rules, Finding("d", "fp32", NOTHING, 1.0)) is None


LEAST = 32
"""Grey levels: less than any expert calls."""


def says(picture, reference):
    comparison = compare(picture, reference)
    if comparison.difference is None:
        return "doubt" if comparison.alignment is None or comparison.alignment.is_certain else "fits twice"
    lasting = cv2.morphologyEx((comparison.difference > LEAST).astype(np.uint8), cv2.MORPH_OPEN, OPENING)
    return "differs" if cv2.countNonZero(lasting) else "alike"


def counted(seeds, largest=520):
    """Count what is said of bad and of good pictures; with the seeds of the bad ones that are like their reference."""
    said, silent = Counter(), []
    for seed in seeds:
        case = case_of(seed, largest)
        said[f"good, {view(case)}: {says(case.good, case.reference)}"] += 1
        # A contact too much at one end, where the other end is out of view, is what a good part looks like elsewhere.
        if case.shows_defect and (case.shows_all or case.defect == "missing"):
            answer = says(case.bad, case.reference)
            said[f"bad: {answer}"] += 1
            silent += [seed] if answer == "alike" else []
    return said, silent


def view(case):
    return ("in view" if case.shows_all else "cut") + (", turned" if case.turned else "")


def shares(said, view):
    of_view = {name: count for name, count in said.items() if name.startswith(f"good, {view}:")}
    return of_view.get(f"good, {view}: fits twice", 0) / sum(of_view.values())


def test_no_contact_is_missing_bent_or_too_much_in_silence():
    said, silent = counted(range(60))
    assert not silent
    assert said["bad: differs"] > said["bad: fits twice"] > 0
    assert shares(said, "in view") == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("thousand", range(7))
def test_of_5000_defects_none_passes_in_silence(thousand):
    first = 1000 * (thousand + 1)
    said, silent = counted(range(first, first + 1000))
    assert not silent
    assert sum(count for name, count in said.items() if name.startswith("bad")) > 715
    assert shares(said, "in view") <= 0.002
    assert shares(said, "in view, turned") <= 0.02
