"""Calibration: verified pictures, honest scores, thresholds for a wanted rate, and their entries in a board file."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import picture_folders
import pytest
import yaml
from exams import give
from golden_parts import good, part
from hypothesis import given, settings
from hypothesis import strategies as st
from lamp import LOGITS, lamp, picture
from PIL import Image
from thorough import THOROUGH

from coe.board import calibration_file, rules
from coe.board.board_spec import StatedScores
from coe.board.calibration_file import BoardCalibration, CalibratedExpert
from coe.board.scores import adjusted, honest
from coe.cli import experts_command
from coe.core import Box, Expert, Finding, Shown, Verdict
from coe.errors import ConfigError
from coe.helpers.files import FolderLock
from coe.helpers.rates import Rate
from coe.inspector import weights_used
from coe.learn import calibration_text, evaluation, labelled
from coe.learn.answers import BoardExperts, ExpertAnswers, LabelledFinding
from coe.learn.calibration import calibrate, unreached, warnings
from coe.learn.draw_thresholds import draw
from coe.learn.temperature import ScoredAnswers, fitted, temperature
from coe.learn.thresholds import Goal, Use, WantedRate, choose, curve_of
from coe.pictures.photographs import Photograph
from coe.store.exam import Exam, ExamItem
from coe.store.store import Store
from coe.testing import rules_from
from experts.onnx import Onnx

CLASSIFIER = Expert("body", "k", ("ok", "bad"), 64, "b/body", frozenset({"bad"}))
DETECTOR = Expert("seen", "k", ("hole",), 64, "b/seen", frozenset({"hole"}))


def named(truths):
    return {f"{number}.png": truth for number, truth in enumerate(truths)}


def classified(*pairs):
    answers = [LabelledFinding(truth, Finding("body", "fp32", label, score)) for truth, label, score in pairs]
    return ExpertAnswers(CLASSIFIER, False, tuple(answers), {})


def detected(*pairs):
    """Return the answers of a detector that sees boxes from a score of 0.5: truth and best score of each picture."""
    answers = []
    for truth, score in pairs:
        boxes = (Box("hole", score, (0, 0, 1, 1)),) if score >= 0.5 else ()
        label, said = ("hole", score) if boxes else ("none", 1 - score)
        answers.append(LabelledFinding(truth, Finding("seen", "fp32", label, said, boxes)))
    return ExpertAnswers(DETECTOR, True, tuple(answers), {})


def saying(truth, **scores):
    """Return what a detector says that sees a box of each of these labels."""
    boxes = tuple(Box(label, score, (0, 0, 1, 1)) for label, score in scores.items())
    best = max(boxes, key=lambda box: box.score, default=Box("none", 1.0, (0, 0, 1, 1)))
    return LabelledFinding(truth, Finding("seen", "fp32", best.label, best.score, boxes))


@pytest.mark.parametrize("hot", [1.0, 2.5])
def test_the_temperature_of_answers_is_found_again_and_few_tell_nothing(hot):
    chance = np.random.default_rng(1)
    scores = chance.uniform(0.5, 0.999, 400)
    answers = ScoredAnswers(scores, chance.random(400) < [honest(score, hot) for score in scores])
    honesty = fitted(answers)
    assert temperature(answers) == honesty.temperature == pytest.approx(hot, rel=0.25)
    assert honesty.after <= honesty.before
    assert hot == 1.0 or answers.at(hot).error() < answers.error() / 2
    assert fitted(ScoredAnswers(answers.scores[:19], answers.right[:19])) is None


@pytest.mark.parametrize(
    ("score", "right", "least", "most"), [(0.9, True, 0.3, 1), (0.5, False, 0, 20), (1, False, 20, 20)]
)
def test_an_expert_that_was_always_right_or_wrong_is_not_believed_without_end(score, right, least, most):
    assert least <= temperature(ScoredAnswers(np.full(30, score), np.full(30, right))) <= most


def test_a_classifiers_threshold_sends_bad_parts_that_it_calls_good_to_review():
    answers = classified(
        *[("ok", "ok", 0.90 + place / 1000) for place in range(60)],
        *[("bad", "bad", 0.9)] * 58,
        ("bad", "ok", 0.70),
        ("bad", "ok", 0.925),
    )
    curve = curve_of(answers, 1.0, Goal.ESCAPES)
    assert (curve.labels, curve.use) == (("ok",), Use.REVIEW_UNDER)
    lenient = choose(curve, answers, 1.0, WantedRate(Goal.ESCAPES, 0.10))
    assert lenient.proven
    assert (lenient.point.escapes.events, lenient.point.false_calls.events) == (1, 0)
    assert 0.70 < lenient.point.threshold < 0.90
    strict = choose(curve, answers, 1.0, WantedRate(Goal.ESCAPES, 0.05))
    assert strict.proven
    assert strict.point.escapes.events == 0
    assert 0.925 < strict.point.threshold < 0.926


def test_a_threshold_that_too_few_pictures_prove_is_told_and_written_only_if_asked_for():
    answers = classified(*[("ok", "ok", 0.9)] * 20, *[("bad", "bad", 0.9)] * 10)
    wanted = WantedRate(Goal.ESCAPES, 0.01)
    outcome = calibrate(answers, wanted)
    assert not outcome.choice.proven
    assert outcome.written is None
    assert outcome.scores(StatedScores()).min_scores == {}
    assert outcome.scores(StatedScores(min_scores={"ok": 0.5})).min_scores, "what was stated before stays"
    origin = outcome.entry(StatedScores(), StatedScores(), "2026-11-22").origin
    assert (origin.proven, origin.threshold) == (False, None)
    assert (origin.escapes.events, origin.escapes.trials, origin.escapes.at_most) == (0, 10, 0.2588656)
    assert all(word in unreached(outcome) for word in ("0 of 10", "25.89%", "299"))
    asked = calibrate(answers, wanted, unproven=True)
    assert asked.scores(StatedScores()).min_scores == {"ok": asked.written.point.threshold}
    assert unreached(asked), "it is still not proven"


THREE = st.sampled_from(["ok", "fine", "bad"])


@settings(max_examples=40 * THOROUGH)
@given(
    st.lists(st.tuples(THREE, THREE, st.floats(0, 1)), min_size=1, max_size=60),
    st.lists(st.floats(0, 1), min_size=2, max_size=6),
    st.sampled_from(Goal),
)
def test_a_higher_wanted_rate_never_gives_a_lower_bound(pictures, rates, goal):
    answers = classified(*pictures)
    expert = replace(CLASSIFIER, labels=("ok", "fine", "bad"))
    bounds, proofs = [], []
    for rate in sorted(rates):
        choice = calibrate(replace(answers, expert=expert), WantedRate(goal, rate)).choice
        if choice is None:
            continue
        held = choice.point.rate(goal)
        bounds.append(held.upper())
        proofs.append(choice.proven)
        assert choice.proven == (held.upper() <= rate)
    assert bounds == sorted(bounds)
    assert proofs == sorted(proofs), "what is proven for a rate is proven for a higher rate"


def test_the_rate_holds_for_an_expert_as_a_whole_and_not_for_each_label_alone():
    """Each of two labels could let 30 of 3,000 pass; together they may let no more pass."""
    chance = np.random.default_rng(3)
    pictures = [("ok", "ok", float(score)) for score in chance.uniform(0.9, 1.0, 300)] + [("bad", "bad", 0.9)] * 2900
    for label in ("ok", "fine"):
        pictures += [("bad", label, float(score)) for score in chance.uniform(0.5, 1.0, 50)]
    answers = replace(classified(*pictures), expert=replace(CLASSIFIER, labels=("ok", "fine", "bad")))
    outcome = calibrate(answers, WantedRate(Goal.ESCAPES, 0.01))
    least = outcome.scores(StatedScores()).min_scores
    assert set(least) == {"ok", "fine"}
    passed = sum(
        truth == "bad" and honest(score, outcome.temperature) >= least.get(label, 2) for truth, label, score in pictures
    )
    assert passed == outcome.written.point.escapes.events
    assert Rate(passed, 3000).upper() <= 0.01


TWO = st.sampled_from(["ok", "bad"])


@settings(max_examples=25 * THOROUGH)
@given(
    st.lists(st.tuples(TWO, TWO, st.sampled_from([0.0, 0.3, 0.9, 1.0])), min_size=1, max_size=20), st.sampled_from(Goal)
)
def test_at_each_threshold_the_rules_pass_and_call_what_the_curve_says(pictures, goal):
    curve = curve_of(classified(*pictures), 1.0, goal)
    for point in curve.points:
        passed = {"ok": 0, "bad": 0}
        for truth, label, score in pictures:
            passed[truth] += label == "ok" and not score < point.threshold
        good = sum(truth == "ok" for truth, _, _ in pictures)
        assert (point.escapes.events if point.escapes else 0) == passed["bad"]
        assert (point.false_calls.events if point.false_calls else 0) == good - passed["ok"]


def test_a_proven_rate_is_exceeded_in_at_most_one_lot_of_twenty():
    """Lots of pictures of one expert, whose true rate at each threshold is known: bad parts say ok with a score."""
    chance, exceeded, proven = np.random.default_rng(20), 0, 0
    for _ in range(300):
        saying_ok = chance.random(150) < 0.3
        scores = chance.random(150)
        bad = [("bad", "ok" if says else "bad", float(s)) for says, s in zip(saying_ok, scores, strict=True)]
        good = [("ok", "ok", float(score)) for score in chance.uniform(0.5, 1.0, 60)]
        answers = classified(*good, *bad)
        wanted = WantedRate(Goal.ESCAPES, 0.1)
        curve = curve_of(answers, 1.0, wanted.goal)
        assert curve is not None
        choice = choose(curve, answers, 1.0, wanted)
        proven += choice.proven
        exceeded += choice.proven and 0.3 * (1 - choice.point.threshold) > 0.1
    assert proven > 290
    assert exceeded <= 0.05 * 300 + 3 * (0.05 * 0.95 * 300) ** 0.5
    assert exceeded > 0, "a bound that never fails gives away good parts"


def test_boxes_that_no_picture_shows_count_and_where_none_is_bad_nothing_seen_is_an_escape():
    expert = replace(DETECTOR, labels=("hole", "scratch"), reject=frozenset({"hole", "scratch"}))
    answers = [saying("hole", hole=0.5 + place / 200) for place in range(60)]
    answers += [saying("none")] * 50 + [saying("none", hole=0.3)] * 8 + [saying("none", scratch=0.3)] * 2
    outcome = calibrate(ExpertAnswers(expert, True, tuple(answers), {}), WantedRate(Goal.ESCAPES, 0.05))
    assert outcome.written.point.false_calls == Rate(2, 60)
    stated = StatedScores(temperature=outcome.temperature, ignore_under={"scratch": 0.9, "hole": 0.9})
    assert outcome.scores(stated).ignore_under == {"hole": outcome.written.point.threshold}
    assert any("'scratch'" in told for told in warnings(outcome))
    both = [*answers, *[saying("scratch")] * 2]
    few = calibrate(ExpertAnswers(expert, True, tuple(both), {}), WantedRate(Goal.ESCAPES, 0.12))
    assert few.written.by_label["scratch"] == Rate(2, 2)
    assert any("'scratch': 2 of 2" in told for told in warnings(few)), "a rare label is not hidden by the others"
    expert = Expert("joint", "k", ("joint", "bridge"), 64, "b/joint", frozenset({"bridge", "none"}))
    answers = [saying("none")] * 40 + [saying("none", bridge=0.3)] * 5 + [saying("joint", joint=0.9)] * 30
    answers += [saying("bridge", joint=0.9, bridge=0.8)] * 20 + [saying("none", joint=0.5)]
    outcome = calibrate(ExpertAnswers(expert, True, tuple(answers), {}), WantedRate(Goal.ESCAPES, 0.1))
    assert outcome.written.by_label == {"bridge": Rate(0, 20), "none": Rate(1, 46)}
    assert outcome.written.point.false_calls == Rate(0, 30)


@pytest.mark.parametrize("kind", ["classifier", "detector"])
def test_parts_that_cannot_be_compared_are_called_at_every_threshold(kind):
    if kind == "detector":
        answers = detected(*[("none", 0.1)] * 32, *[("hole", 0.9)] * 10)
        good, bad = "none", "hole"
    else:
        answers = classified(*[("ok", "ok", 0.9)] * 32, *[("bad", "bad", 0.9)] * 10)
        good, bad = "ok", "bad"
    curve = curve_of(replace(answers, doubtful=named((good,) * 8 + (bad,) * 2)), 1.0, Goal.ESCAPES)
    before_it = curve_of(answers, 1.0, Goal.ESCAPES)
    without = {point.threshold: point for point in before_it.points}
    for point in curve.points:
        before = without[point.threshold]
        assert point.false_calls == Rate(before.false_calls.events + 8, 40)
        assert point.escapes == Rate(before.escapes.events, 12)
    outcome = calibrate(replace(answers, doubtful=named((good,) * 8)), WantedRate(Goal.FALSE_CALLS, 0.1))
    origin = outcome.entry(StatedScores(), StatedScores(), "2026-11-22").origin
    assert (origin.pictures, origin.not_compared, origin.wanted) == (42, 8, {"false_calls": 0.1})
    none = replace(detected(*[("hole", 0.9)] * 10), doubtful=named(("none",) * 8))
    assert {point.false_calls for point in curve_of(none, 1.0, Goal.FALSE_CALLS).points} == {Rate(8, 8)}


SEEN = b"""board: b
experts: {seen: {kind: k, labels: [hole], input: 64, reject: [hole], then: {none: OK}}}
components: {R1: {inspect: seen}}
"""


def passing(answers, scores):
    """Return how many bad and how many good pictures a board with these scores lets pass."""
    entry = CalibratedExpert(**dict(scores))
    over = calibration_text.text(Path("b.yaml"), BoardCalibration(board="b", experts={"seen": entry}))
    board = rules.of_bytes(Path("b.yaml"), SEEN, over.encode())
    root, expert = board.components["R1"].root, board.experts["seen"]
    verdicts = [board.router.next(root, adjusted(answer.finding, expert)).verdict for answer in answers.answers]
    passed = [answer.truth for answer, verdict in zip(answers.answers, verdicts, strict=True) if verdict == "OK"]
    return passed.count("hole"), passed.count("none")


@settings(max_examples=12 * THOROUGH)
@given(
    st.lists(st.tuples(st.sampled_from(["none", "hole"]), st.floats(0, 1)), min_size=1, max_size=40), st.floats(0, 1)
)
def test_a_line_lets_pass_what_the_chosen_point_says(pairs, rate):
    answers = detected(*pairs)
    for goal in Goal:
        outcome = calibrate(answers, WantedRate(goal, rate), unproven=True)
        if (choice := outcome.written) is not None:
            bad, good = passing(answers, outcome.scores(StatedScores()))
            if choice.point.escapes:
                assert bad == choice.point.escapes.events
            if choice.point.false_calls:
                assert good == choice.point.false_calls.trials - choice.point.false_calls.events


def test_an_expert_without_a_threshold_says_why_and_keeps_the_scale_of_what_the_rules_state():
    only_good = calibrate(classified(("ok", "ok", 0.9)), WantedRate(Goal.ESCAPES, 0.1))
    assert "no picture shows a bad part" in unreached(only_good)
    assert only_good.choice is None
    seen = calibrate(replace(detected(("none", 0.1)), expert=replace(DETECTOR, reject=frozenset({"none"}))),
                     WantedRate(Goal.ESCAPES, 0.1))  # fmt: skip
    assert seen.curve is None
    assert unreached(seen)
    # Otherwise a picture that went to REVIEW would pass once a label's pictures are too few.
    before = StatedScores(temperature=2, min_scores={"ok": 0.8, "none": 0.3}, ignore_under={"hole": 0.6})
    few = calibrate(classified(("ok", "ok", 0.9)), WantedRate(Goal.ESCAPES, 0.1))
    assert (few.choice, few.temperature) == (None, 1.0)
    scores, kept = few.scores(before), {label: honest(score, 0.5) for label, score in before.min_scores.items()}
    assert scores.min_scores == pytest.approx(kept, abs=2e-7)
    assert scores.ignore_under == pytest.approx({"hole": honest(0.6, 0.5)}, abs=2e-7)
    assert honest(0.3, 0.5) <= scores.min_scores["none"]
    assert scores.ignore_under["hole"] <= honest(0.6, 0.5)
    same = StatedScores(min_scores={"ok": 0.93})
    assert few.scores(same) == same
    found = calibrate(detected(*[("none", 0.6)] * 3, *[("hole", 0.8)] * 3), WantedRate(Goal.FALSE_CALLS, 0.7))
    threshold = found.written.point.threshold
    wanted = StatedScores(min_scores={"none": round(1 - threshold, 7)}, ignore_under={"hole": threshold})
    assert found.scores(StatedScores(min_scores={"none": 0.9}, ignore_under={"hole": 0.2})) == wanted


FILE = """\
board: hall7
experts:
  body: {kind: k, labels: [ok, bad], input: 64, then: {ok: OK, bad: NG}}
  seen: {kind: k, labels: [hole], input: 64, reject: [hole], then: {none: OK}}
components:
  U1: {inspect: body}
  U2: {inspect: seen}
"""


def test_pictures_lie_in_folders_of_experts_and_labels_or_stand_in_a_table(tmp_path):
    for name in ("body/ok/2.png", "body/ok/10.png", "seen/none/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "body/ok/notes.txt").touch()
    experts = rules_from(FILE).experts
    found = [(picture.name, picture.expert, picture.label) for picture in labelled.find(tmp_path, experts)]
    bodies = [(f"body/ok/{number}.png", "body", "ok") for number in (2, 10)]
    assert found == [*bodies, ("seen/none/1.png", "seen", "none")]
    picture(tmp_path / "body/okay/1.png", 1)
    with pytest.raises(ConfigError, match=r"body/okay: 'okay'.*'body'.*'ok'"):
        labelled.find(tmp_path, experts)
    table = tmp_path / "images.csv"
    for name in ("a.png", "good.png"):
        (tmp_path / name).touch()
    table.write_text("path;expert;label;reference\na.png;seen;hole;good.png\na.png;body;bad;\n")
    first, second = labelled.find(tmp_path, experts)
    assert (first.expert, first.label, first.reference) == ("seen", "hole", tmp_path / "good.png")
    assert second.reference is None
    for line, named in {
        "b.png;seen;hole;": ":2: .*'b.png'",
        "../a.png;seen;hole;": ":2: '../a.png'.* outside",
        "b.png;seen;hole;\na.png;seen;hol;": ":2: .*'b.png'.*:3: 'hol'.*'seen'",
        "a.png;sen;hole;": ":2: 'sen'.*'seen'",
        "a.png;seen;hole;\na.png;seen;none;": ":3: 'a.png'.* 2",
    }.items():
        table.write_text(f"path;expert;label;reference\n{line}\n")
        with pytest.raises(ConfigError, match=f"^images.csv{named}"):
            labelled.find(table, experts)


def test_a_picture_is_drawn_of_each_expert(tmp_path):
    answers = classified(
        *[("ok", "ok", 0.5 + place / 50) for place in range(25)], *[("bad", "bad", 0.9)] * 10, ("bad", "ok", 0.6)
    )
    outcome = calibrate(answers, WantedRate(Goal.ESCAPES, 0.5))
    for number, each in enumerate((outcome, calibrate(classified(), outcome.wanted))):
        assert draw(each, tmp_path / f"{number}.png").stat().st_size > 10_000


@pytest.fixture
def lamp_board(tmp_path):
    """A board with a classifier of brightness, whose scores the board file states, and verified pictures."""
    lamp(tmp_path / "lamp.onnx")
    said = {"kind": "onnx", "labels": ["dark", "bright"], "input_size": 32, "outputs": LOGITS}
    Store(tmp_path / "store").put("b/lamp", file=tmp_path / "lamp.onnx", **said)
    for level in range(40):
        picture(tmp_path / f"labelled/lamp/dark/{level}.png", level)
        picture(tmp_path / f"labelled/lamp/bright/{level}.png", 250 - level)
    (tmp_path / "b.yaml").write_text(
        "board: b\nexperts:\n  lamp: {kind: onnx, labels: [dark, bright], input: 32, reject: [dark], "
        "min_scores: {bright: 0.9, dark: 0.2}}\ncomponents:\n"
        "  U1: {inspect: lamp, min_scores: {bright: 0.6}}\n  U2: {inspect: lamp, min_score: 0.4}\n"
    )
    return tmp_path / "b.yaml"


@pytest.fixture
def run(lamp_board, call):
    folder = lamp_board.parent
    given = ("--images", folder / "labelled", "--store", folder / "store")
    return lambda *options, board=lamp_board: call("calibrate", board, *given, *options, command=experts_command)


def test_a_calibration_is_written_beside_the_board_file_which_stays_as_it_is(lamp_board, run):
    (lamp_board.parent / "line").mkdir()
    link = lamp_board.parent / "line" / "link.yaml"
    link.symlink_to(lamp_board)
    before, path = lamp_board.read_bytes(), calibration_file.path_for(lamp_board)
    shown = run("--escapes", "0.1")
    assert (shown.status, path.exists(), "+board: b" in shown.out) == (0, False, True)
    said = run("--escapes", "0.1", "--write", board=link)
    assert (said.status, lamp_board.read_bytes()) == (0, before), said.err
    assert all(word in said.words for word in ("`min_score` of U2", "`min_scores` of U1"))
    assert str(path) in said.out
    entry = calibration_text.entries(lamp_board, path.read_bytes())["lamp"]
    origin = entry.origin
    assert (origin.pictures, origin.proven, origin.threshold) == (80, True, entry.min_scores["bright"])
    assert origin.weights == Store(lamp_board.parent / "store").manifest("b/lamp").checksum
    assert entry.stated.min_scores == {"bright": 0.9, "dark": 0.2}
    written = rules.load(lamp_board)
    assert written.components["U1"].root.min_scores == {"dark": entry.min_scores["dark"], "bright": 0.6}
    assert written.components["U2"].root.min_scores == entry.min_scores
    text = path.read_text()
    assert run("--escapes", "0.1", "--write").status == 0
    assert path.read_text() == text, "the pictures are judged with raw scores, whatever was calibrated before"
    manifest = Store(lamp_board.parent / "store").manifest("b/lamp")
    for checksum, is_old in ((manifest.checksum, False), ("0" * 32, True)):
        known = {"b/lamp": manifest.model_copy(update={"checksum": checksum})}
        assert any("calibration of 'lamp'" in said for said in weights_used.warnings(written, known)) is is_old


def exam_of(board):
    """Return the exam by which a line of this board goes."""
    return weights_used.manifests_of(rules.load(board), Store(board.parent / "store"))["b/lamp"].exam


def test_an_expert_is_shown_again_what_must_not_pass_by_the_thresholds_that_are_written(lamp_board, run):
    store = Store(lamp_board.parent / "store")
    missing = ExamItem(item=Shown.MISSING, shown=20, passed=0)
    give(store, "b/lamp", taken := Exam(items=(missing, ExamItem(item=Shown.TURNED, shown=9, passed=0))))
    assert run("--escapes", "0.1").status == 0
    assert exam_of(lamp_board) == taken, "nothing was written"
    said = run("--escapes", "0.1", "--write")
    assert store.manifest("b/lamp").exam == taken, "which is of the weights, whatever scores a board has for them"
    turned = {item.item: item for item in exam_of(lamp_board).items}
    assert turned.pop(Shown.MISSING) == missing, "what could not be shown again stays"
    (row,) = turned.values()
    assert (row.item, row.passed > 0.5 * row.shown, row.shown > 9) == (Shown.TURNED, True, True)
    assert f"{row.passed} of {row.shown}" in said.out
    assert "REVIEW at U1, U2" in said.out, "they have a polarity by their names"
    calibration_file.path_for(lamp_board).unlink()
    assert exam_of(lamp_board) == taken, "the exam goes with the calibration"


def test_the_exam_of_shared_weights_is_that_of_the_expert_that_lets_most_pass(lamp_board, run, call):
    text = lamp_board.read_text()
    other = "  lens: {kind: onnx, labels: [dark, bright], input: 32, reject: [dark], weights: b/lamp}\ncomponents:\n"
    lamp_board.write_text(text.replace("components:\n", other) + "  U3: {inspect: lens}\n")
    store = Store(lamp_board.parent / "store")
    give(store, "b/lamp", blind := Exam(items=(ExamItem(item=Shown.TURNED, shown=20, passed=14),)))
    assert run("--escapes", "0.1", "--write").status == 0
    assert exam_of(lamp_board).blind != ()
    file = calibration_file.path_for(lamp_board)
    taken = [{"item": "turned", "shown": 200, "passed": 0}]
    said = yaml.safe_load(file.read_text())
    said["experts"]["lamp"]["exam"] = taken
    file.write_text(yaml.safe_dump(json.loads(json.dumps(said)), sort_keys=False))
    assert exam_of(lamp_board) == blind, "the other expert took none with its own scores"
    given = ("--images", lamp_board.parent / "labelled", "--store", lamp_board.parent / "store")
    said["experts"]["lens"] = {"origin": dict(said["experts"]["lamp"]["origin"]), "exam": [dict(taken[0])]}
    file.write_text(yaml.safe_dump(json.loads(json.dumps(said)), sort_keys=False))
    assert exam_of(lamp_board).blind == ()
    assert call("evaluate", lamp_board, *given, command=experts_command).status in (0, 1), "pictures of one alone"
    said["experts"]["lens"]["exam"][0]["passed"] = 201
    file.write_text(yaml.safe_dump(json.loads(json.dumps(said)), sort_keys=False))
    refused = call("evaluate", lamp_board, *given, command=experts_command)
    assert (refused.status, "b.calibration.yaml:" in refused.words) == (2, True)


def test_an_exam_of_other_weights_or_of_good_parts_that_do_not_pass_closes_no_gap(lamp_board, run, monkeypatch):
    store = Store(lamp_board.parent / "store")
    give(store, "b/lamp", blind := Exam(items=(ExamItem(item=Shown.TURNED, shown=20, passed=14),)))
    assert run("--escapes", "0.1", "--write").status == 0
    taken = exam_of(lamp_board)
    assert taken != blind
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "worst", lambda verdicts: Verdict.REVIEW)  # as of dark pictures
        assert run("--escapes", "0.1", "--write").status == 0
    assert exam_of(lamp_board) == blind
    assert run("--escapes", "0.1", "--write").status == 0
    assert exam_of(lamp_board) == taken
    with store.changing("b/lamp") as manifest:
        store.rewrite(manifest.model_copy(update={"checksum": "0" * 32}))
    assert exam_of(lamp_board) == blind


@pytest.mark.parametrize(
    ("known", "shown"),
    [({"metrics": {"turned": 1.0}}, {Shown.MISSING}), ({"exam": Exam(is_surface=True)}, {Shown.TURNED})],
)
def test_parts_at_any_angle_are_not_shown_turned_and_surfaces_not_missing(lamp_board, run, monkeypatch, known, shown):
    both = (Shown.TURNED, Shown.MISSING)
    monkeypatch.setattr(Onnx, "must_not_pass", lambda _, image: [(item, image) for item in both])
    store = Store(lamp_board.parent / "store")
    with store.changing("b/lamp") as manifest:
        store.rewrite(manifest.model_copy(update=known))
    assert run("--escapes", "0.1", "--write").status == 0
    assert {row.item for row in exam_of(lamp_board).items} == shown


def test_a_calibration_that_does_not_fit_or_cannot_be_written_is_said(lamp_board, run):
    (lamp_board.parent / ".lock").mkdir()
    said = run("--escapes", "0.1", "--write")
    assert (said.status, said.out) == (4, ""), "before the pictures are judged"
    assert all(word in said.words for word in ("b.calibration.yaml", "cannot be written", "copy"))
    assert run("--escapes", "0.1").status == 0
    (lamp_board.parent / ".lock").rmdir()
    assert run("--escapes", "0.1", "--write").status == 0
    lamp_board.write_text(lamp_board.read_text().replace("bright: 0.9", "bright: 0.95"))
    said = run("--escapes", "0.1", "--write")
    assert (said.status, "b.calibration.yaml:" in said.words) == (2, True)
    calibration_file.path_for(lamp_board).unlink()
    assert run("--escapes", "0.1", "--write").status == 0


def test_calibrations_that_end_at_the_same_time_write_one_after_the_other(lamp_board, run, monkeypatch):
    text, free = calibration_text.text, []

    def noted(board, calibration):
        free.append(FolderLock.take(board.parent, wait=False))
        return text(board, calibration)

    monkeypatch.setattr(calibration_text, "text", noted)
    assert run("--escapes", "0.1", "--write").status == 0
    assert {*free} == {None}


def test_an_expert_none_of_whose_pictures_can_be_judged_stays_as_it_is(lamp_board, run):
    for file in lamp_board.parent.glob("labelled/lamp/*/*.png"):
        file.write_bytes(b"no picture")
    assert run("--escapes", "0.1", "--write").status == 1
    assert not calibration_file.path_for(lamp_board).exists()


@pytest.mark.parametrize(("outcome", "against"), [("OK", False), ("NG", True), ("REVIEW", True)])
def test_what_follows_none_on_the_board_says_whether_it_speaks_against_a_part(tiny, tmp_path, outcome, against):
    path, store = tiny
    (tmp_path / "tiny.yaml").write_text(path.read_text(encoding="utf-8").replace("none: OK", f"none: {outcome}"))
    file = tmp_path / "a.png"
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(file)
    asked = BoardExperts(rules.load(tmp_path / "tiny.yaml"), Store(store))
    answers = asked.answers("joint", [Photograph(file, name="a.png", expert="joint", label="none")])
    assert ("none" in answers.expert.reject) is against


def test_good_parts_are_learned_for_a_model_that_knows_none_and_stand_behind_its_ok(lamp_board, run, backbone):
    labelled, store = lamp_board.parent / "labelled/lamp", Store(lamp_board.parent / "store")
    shutil.copytree(backbone.parents[1], store.root / "backbones")
    shutil.rmtree(labelled / "bright")
    for file in list((labelled / "dark").iterdir())[8:]:
        file.unlink()
    picture_folders.saved(labelled / "bright", *(good(seed) for seed in range(12)))
    assert "--near" in run("--escapes", "0.1").err
    said = run("--escapes", "0.1", "--near")
    lines = [line.strip() for line in said.out.splitlines()]
    entry, then = (line for line in lines if line.startswith(("lamp-near: {", "then: ")))
    assert store.manifest("b/lamp-near").exam is not None
    text = lamp_board.read_text().replace("components:", f"  {entry}\ncomponents:")
    lamp_board.write_text(text.replace("min_scores: {bright: 0.6}", then).replace("min_score: 0.4", then))
    board = rules.load(lamp_board)
    assert BoardExperts(board, store).answers("lamp-near", []).expert.reject == {"strange"}

    def verdicts(*pictures):
        shown = picture_folders.saved(lamp_board.parent / "shown", *pictures)
        asked = BoardExperts(board, store)
        seen = [Photograph(path, name=path.name) for path in sorted(shown.iterdir())]
        near = board.components["U1"].root.outcomes["bright"]
        assert isinstance(near, tuple)
        found = [one.finding for one in asked.ask(board.experts["lamp-near"], seen)]
        return [board.router.next(near[0], one).verdict for one in found if one is not None]

    assert verdicts(good(40), part(7), np.full((160, 160, 3), 220, np.uint8)) == [Verdict.OK, *[Verdict.REVIEW] * 2]
    again = run("--escapes", "0.1")
    assert "--near" not in again.err
    assert "lamp-near" not in again.err, "it is not calibrated by what it learned from"
