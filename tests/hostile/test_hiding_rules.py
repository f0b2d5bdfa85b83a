"""Rules that would hide a defect are refused, or the worst of what was seen decides."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.core import NOTHING, Box, Finding, Verdict
from coe.errors import RulesError
from coe.scheduler.costs import Cost
from coe.testing import VirtualLine, pools_of, rules_from

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


def board(judging):
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
            {"joint": 0.9, "bridge": 0.3},
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
    rules = board(judging.replace(", then", "\n    then").replace("min_score: 0.5, ", "min_score: 0.5\n    "))
    assert inspected(rules, saw(**seen), **said) is Verdict[verdict]


SCORES = st.dictionaries(st.sampled_from(["joint", "mark", "bridge", "smudge"]), st.floats(0, 1), min_size=1)
OUTCOMES = st.fixed_dictionaries(
    dict.fromkeys(["joint", "mark", "bridge", "smudge"], st.sampled_from(["OK", "REVIEW", "NG"]))
)


@given(seen=SCORES, outcomes=OUTCOMES, least=st.sampled_from([0.0, 0.5]))
def test_whatever_is_seen_no_box_makes_a_verdict_better(seen, outcomes, least):
    then = ", ".join(f"{label}: {outcome}" for label, outcome in outcomes.items())
    rules = board(f"min_score: {least}\n    then: {{{then}}}")
    root = rules.components["R"].root

    def verdict(labels):
        decided = rules.router.next(root, saw(**labels)).verdict
        assert decided is not None
        return decided

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
    rules = board("reject: [bridge]\n    min_score: 0.5\n    then: {none: OK}")
    finding = Finding("d", "fp32", label or NOTHING, score)
    assert inspected(rules, finding) is Verdict.REVIEW


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
        ("reject: [bridge]\n    then: {none: []}", "empty list"),
        ("reject: [bridge]\n    min_score: nan", "'nan'"),
    ],
)
def test_rules_that_would_hide_a_defect_are_refused(judging, words):
    with pytest.raises(RulesError) as caught:
        board(judging)
    assert [word for word in words.split("|") if word not in str(caught.value)] == []


def test_a_step_may_say_ok_of_what_its_expert_rejects_and_that_holds_there_alone():
    text = BOARD.replace("{judging}", "reject: [bridge]\n    then: {none: NG}")
    rules = rules_from(text + "  S: {inspect: d, then: {bridge: OK}}\n")
    verdicts = [rules.router.next(rules.components[name].root, saw(joint=0.9, bridge=0.8)).verdict for name in "RS"]
    assert verdicts == [Verdict.NG, Verdict.OK]
    assert rules.experts["d"].reject == {"bridge"}


def test_a_weak_box_that_another_step_rejects_hides_no_clear_one_that_leads_to_the_same():
    text = BOARD.replace("{judging}", "min_score: 0.5\n    reject: [bridge, smudge]\n    then: {none: NG}")
    rules = rules_from(text + "  S: {inspect: d, then: {joint: p, bridge: p, mark: p, smudge: p}}\n")
    seen = Finding("d", "fp32", "bridge", 0.3, (Box("joint", 0.9, (0, 0, 1, 1)), Box("bridge", 0.3, (0, 0, 1, 1))))
    decision = rules.router.next(rules.components["S"].root, seen)
    assert [step.expert for step in decision.steps] == ["p"]
    assert decision.verdict is None


def test_what_any_step_holds_against_a_part_is_told_before_better_scored_boxes():
    text = BOARD.replace("{judging}", "reject: [bridge]\n    then: {none: NG}")
    rules = rules_from(text + "  S: {inspect: d, then: {smudge: REVIEW}}\n")
    assert rules.experts["d"].reject == {"bridge", "smudge"}


@pytest.mark.parametrize("entry", ["", "then: {none: REVIEW}"])
def test_a_detector_that_says_nothing_of_nothing_is_refused_by_its_kind(entry):
    rules = board(f"reject: [bridge]\n    {entry}")
    if entry:
        rules.check_detectors(["d", "p", "q"])
    else:
        with pytest.raises(RulesError, match=r"board.yaml:4: 'd' may see nothing.*add `then: \{none: REVIEW\}` here"):
            rules.check_detectors(["p", "d"])
        assert inspected(rules, Finding("d", "fp32", NOTHING, 1.0)) is None
