"""Scores, calibrations and texts that a board lets pass."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from candidates import candidates
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import THOROUGH

from coe.board import calibration_file, rules
from coe.board.board_spec import StatedScores
from coe.board.calibration_file import BoardCalibration, CalibratedExpert
from coe.board.scores import adjusted, honest
from coe.core import Box, Expert, Finding
from coe.errors import CoeError, RulesError
from coe.helpers.allowed_text import Reading
from coe.learn import calibration_text
from coe.store.kinds import ExpertInput
from coe.testing import rules_from
from experts.findings import Cut, classified, detected

BOARD = """\
board: hall7
experts:
  body: {kind: k, labels: [ok, bad], input: 64, min_scores: {ok: 0.5, bad: 0.1}, then: {ok: OK, bad: NG}}
  seen: {kind: k, labels: [hole], input: 64, reject: [hole], then: {none: OK}}
components:
  U1: {inspect: body}
  U2: {inspect: seen}
  U3: {inspect: body, min_scores: {ok: 0.6}}
"""
CALIBRATION = """\
board: hall7
experts:
  body:
    temperature: 1.5
    min_scores: {ok: 0.9}
    stated: {min_scores: {ok: 0.5, bad: 0.1}}
  seen: {ignore_under: {hole: 0.4}, min_scores: {none: 0.6}}
"""


@pytest.fixture
def board(tmp_path):
    (tmp_path / "hall7.yaml").write_text(BOARD)
    (tmp_path / "hall7.calibration.yaml").write_text(CALIBRATION)
    return tmp_path / "hall7.yaml"


def test_a_calibration_counts_in_the_place_of_what_the_board_file_states_until_it_is_deleted(board):
    loaded = rules.load(board)
    assert (loaded.experts["body"].temperature, loaded.experts["seen"].ignore_under) == (1.5, {"hole": 0.4})
    scores = {name: component.root.min_scores for name, component in loaded.components.items()}
    assert scores == {"U1": {"ok": 0.9}, "U2": {"none": 0.6}, "U3": {"ok": 0.6}}, "what a step states goes first"
    (path := calibration_file.path_for(board)).write_text(CALIBRATION + "# another\n")
    other = rules.load(board)
    path.unlink()
    bare = rules.load(board)
    assert (bare.components["U1"].root.min_scores, bare.experts["body"].temperature) == ({"ok": 0.5, "bad": 0.1}, 1)
    assert len({loaded.digest, other.digest, bare.digest}) == 3, "the digest is of both files"


@pytest.mark.parametrize(
    ("known", "other", "named"),
    [
        ("board: hall7", "board: hall8", "1: .*'hall8'"),
        ("  seen:", "  sen:", "7: 'sen'.*'seen'"),
        ("{ok: 0.9}", "{okay: 0.9}", "5: 'okay'.*'body'"),
        ("{hole: 0.4}", "{none: 0.4}", "7: 'none'.*'seen'"),
        ("{ok: 0.5, bad", "{ok: 0.7, bad", "3: .*'body'"),
        ("    stated: {min_scores: {ok: 0.5, bad: 0.1}}\n", "", "3: .*'body'"),
        ("temperature: 1.5", "temperature: 0", "4: .*temperature"),
        ("temperature: 1.5", "temprature: 1.5", "4: .*'temperature'"),
        ("board: hall7\n", "", "1: .*'board'"),
        (CALIBRATION, "", "1: .*empty"),
        (CALIBRATION, "thresholds", "1: .*board"),
        (CALIBRATION, CALIBRATION[:-20], ""),
        (CALIBRATION, "\0", "1: "),
    ],
)
def test_a_calibration_that_is_damaged_or_does_not_fit_is_refused(board, known, other, named):
    calibration_file.path_for(board).write_text(CALIBRATION.replace(known, other))
    with pytest.raises(RulesError, match=rf"^hall7\.calibration\.yaml:{named}[^\n]*$"):
        rules.load(board)


@pytest.mark.parametrize(
    "change",
    [
        ("{ok: 0.5, bad: 0.1}", "{ok: 0.8, bad: 0.1}"),
        ("input: 64, min_scores", "input: 64, temperature: 2, min_scores"),
        (", then: {none: OK}", ", then: {none: OK}, ignore_under: {hole: 0.1}"),
        ("labels: [ok, bad]", "labels: [fine, bad]"),
    ],
)
def test_scores_that_a_person_states_later_in_the_board_file_are_not_passed_over(board, change):
    board.write_text(BOARD.replace(*change))
    with pytest.raises(RulesError):
        rules.load(board)


def test_a_calibration_that_cannot_be_read_is_refused(board, tmp_path):
    path = calibration_file.path_for(board)
    for damage in (Path.mkdir, lambda path: path.symlink_to(tmp_path / "gone.yaml")):
        path.unlink() if path.is_file() else path.rmdir()
        damage(path)
        with pytest.raises(RulesError, match="cannot be read"):
            rules.load(board)


@pytest.mark.parametrize(
    ("board", "calibration"),
    [
        ("hall8.yaml", "hall7.calibration.yaml"),
        ("board_hall7.yaml", "hall7.calibration.yaml"),
        ("hall7.yaml", "hall7.calibration.yml"),
        ("hall7.yaml", "Hall7.calibration.yaml"),
        ("h\u00e4lle.yaml", "ha\u0308lle.calibration.yaml"),
    ],
)
def test_a_calibration_is_not_lost_when_a_board_file_is_called_otherwise(tmp_path, board, calibration):
    (tmp_path / board).write_text(BOARD)
    (tmp_path / calibration).write_text(CALIBRATION)
    wanted = calibration_file.path_for(tmp_path / board).name
    for read in (rules.load, calibration_file.digest_of_rules):
        with pytest.raises(RulesError, match=f"(?s)(?=.*{calibration})(?=.*{wanted})"):
            read(tmp_path / board)
    (tmp_path / calibration).rename(calibration_file.path_for(tmp_path / board))
    assert rules.load(tmp_path / board).experts["body"].temperature == 1.5


def test_calibrations_of_other_boards_in_the_folder_are_let_alone(board, tmp_path):
    calibration_file.path_for(board).rename(tmp_path / "gone.calibration.yaml")
    board.write_text(BOARD.replace("board: hall7", "board: hall9"))
    (tmp_path / "other.calibration.yaml").write_text("[")
    assert rules.load(board).experts["body"].temperature == 1


def test_a_link_to_a_board_file_has_the_calibration_of_the_file(board, tmp_path):
    (tmp_path / "line").mkdir()
    link = tmp_path / "line" / "today.yaml"
    link.symlink_to(board)
    assert rules.load(link).digest == rules.load(board).digest
    beside = link.with_name("today.calibration.yaml")
    beside.symlink_to(calibration_file.path_for(board))
    assert rules.load(link).experts["body"].temperature == 1.5
    beside.unlink()
    beside.write_text(CALIBRATION)
    with pytest.raises(RulesError, match=r"today\.yaml is a link"):
        rules.load(link)


def test_a_calibration_is_no_board_and_one_that_is_cut_short_is_refused(board, tmp_path, monkeypatch):
    monkeypatch.setenv("COE_RULES", str(tmp_path))
    with pytest.raises(RulesError, match=r"^(?!.*hall7\.calibration).*'hall7'"):
        rules.find("hall7x")
    with pytest.raises(RulesError):
        rules.load(calibration_file.path_for(board))
    experts = calibration_text.entries(board, calibration_file.content(board))
    written = BoardCalibration(board="hall7", experts=experts)
    whole = calibration_text.text(board, written)
    assert calibration_text.entries(board, whole.encode()) == written.experts
    for length in range(len(whole.rstrip())):
        calibration_file.path_for(board).write_text(whole[:length])
        with pytest.raises(RulesError):
            rules.load(board)


scores = st.dictionaries(st.sampled_from(["ok", "bad", "none"]), st.floats(0, 1))


@settings(max_examples=20 * THOROUGH)
@given(st.floats(0.01, 100), scores)
def test_what_is_written_is_read_again(temperature, least):
    stated = StatedScores(min_scores={"ok": 0.5, "bad": 0.1})
    entry = CalibratedExpert(temperature=temperature, min_scores=least, stated=stated)
    written = calibration_text.text(Path("hall7.yaml"), BoardCalibration(board="hall7", experts={"body": entry}))
    loaded = rules.of_bytes(Path("hall7.yaml"), BOARD.encode(), written.encode())
    assert (loaded.experts["body"].temperature, loaded.components["U1"].root.min_scores) == (temperature, least)


PLACE = (0.0, 0.0, 1.0, 1.0)


def expert(temperature=1.0, **ignore_under):
    plain = Expert("e", "k", ("joint", "bridge"), 64, "b/e", frozenset({"bridge"}))
    return replace(plain, temperature=temperature, ignore_under=ignore_under)


def finding(*boxes, margin=0.9):
    label, score = boxes[0] if boxes else ("none", 0.8)
    return Finding("e", "fp32", label, score, tuple(Box(label, score, PLACE) for label, score in boxes), margin)


def test_a_finding_stays_without_entries_in_the_rules_and_its_margin_ends_where_a_box_begins_to_count():
    said = finding(("joint", 0.9))
    assert adjusted(said, expert()) == said
    said = Finding("e", "fp32", "bridge", 0.9)
    with pytest.raises(CoeError, match="ignore_under"):
        adjusted(said, expert(bridge=0.6))
    assert adjusted(finding(("bridge", 0.58)), expert(bridge=0.6)).margin == pytest.approx(0.02)
    assert adjusted(finding(("bridge", 0.95), margin=0.1), expert(bridge=0.6)).margin == 0.1
    # On the scale of the kind: at temperature 2 a score of 0.75 is the kind's 0.9.
    assert adjusted(finding(("bridge", 0.95)), expert(2.0, bridge=0.75)).margin == pytest.approx(0.05)


def test_a_temperature_divides_the_logarithm_of_the_odds_as_in_a_softmax():
    assert honest(0.9, 2.0) == pytest.approx(0.75)  # odds of 9 become odds of 3
    assert honest(0.5, 7.0) == 0.5
    assert math.isnan(honest(math.nan, 2.0))
    logits = (2.5, 0.7)
    at = [math.exp(value / 3) for value in logits]
    plain = [math.exp(value) for value in logits]
    assert honest(plain[0] / sum(plain), 3.0) == pytest.approx(at[0] / sum(at))
    clear, tie = classified(torch.tensor([[0.125, 0.75, 0.125], [0.5, 0.0, 0.5]]), CHIP)
    assert (clear.label, clear.score, clear.margin, clear.variant) == ("bad", 0.75, 0.625, "bf16")
    assert (tie.label, tie.margin) == ("ok", 0.0)
    (only,) = classified(torch.tensor([[1.0]]), Expert("chip", "k", ("ok",), 32, "b/chip"))
    assert (only.label, only.margin, only.variant) == ("ok", 1.0, "fp32")


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


CHIP = Expert("chip", "k", ("ok", "bad", "odd"), 32, "b/chip", variant="bf16")
JOINT = Expert("joint", "k", ("joint", "bridge", "lifted"), 32, "b/joint", frozenset({"bridge", "lifted"}), "q8")


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


@pytest.mark.parametrize(
    ("allowed", "alike", "fit", "others"),
    [
        ("103|10K", (), ["10K"], [""]),
        ("103", (), ["103", "10 3"], ["104", "1103"]),
        ("24C64", (), [], ["24c64"]),
        ("SN######", (), ["SN004211"], ["SN00421", "SN0O4211"]),
        ("@@##", (), ["AB12"], ["1B12"]),
        ("K2?17", (), ["K2417"], []),
        ("24C64*", (), ["24C64WP"], ["24C6"]),
        (r"A\#1", (), ["A#1"], ["A11"]),
        ("1.5", (), [], ["1x5"]),
        ("a*a*a*a*", (), ["a" * 5000 + "b"], []),
        ("a*a*a*c", (), [], ["a" * 200]),
        ("AO3T", ("0O", "8B"), ["A03T"], []),
        ("A03T", ("0O", "8B"), ["AO3T"], ["AQ3T"]),
        ("##", ("0O", "8B"), ["1O"], []),
        ("@@", ("0O", "8B"), ["8A"], ["1A"]),
        ("#", ("0O", "8B"), [], ["I"]),
    ],
)
def test_patterns_and_characters_that_are_alike(allowed, alike, fit, others):
    assert Reading().allows(allowed), "without patterns each text is allowed"
    said = Reading(allowed=tuple(allowed.split("|")), alike=alike)
    assert [text for text in (*fit, *others) if said.allows(text)] == fit


def reading(reads):
    expert = f"{{kind: marking, labels: [right, wrong], input: 96, reject: [wrong],\n    reads: {{{reads}}}}}"
    return rules_from(f"board: b\nexperts:\n  value: {expert}\ncomponents:\n  R1: {{inspect: value}}\n")


@pytest.mark.parametrize(
    ("reads", "says"),
    [
        ("allowed: []", "allowed"),
        ('allowed: [""]', "pattern"),
        (r"allowed: ['A\']", "pattern"),
        ("allowed: ['*1*2*3*4*5']", "pattern"),
        ("allowed: ['103'], window: [0.5, 0.5, 0.6, 0.1]", "window"),
        ("allowed: ['103'], window: [-0.1, 0, 0.6, 0.1]", "window"),
        ("allowed: ['103'], window: [0, 0, 0, 0.1]", "window"),
        ("allowed: ['103'], window: [0, 0, .nan, 0.1]", "window"),
        ("allowed: ['103'], alike: [0]", "'0'"),
        ("allowed: ['103'], alike: [0O, OQ]", "'O'"),
        ("alowed: ['103']", "alowed"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(reads, says):
    with pytest.raises(RulesError, match=f"board.yaml:4: .*{says}"):
        reading(reads)


def test_the_rules_hand_it_to_the_expert():
    reads = reading("window: [0.25, 0.4, 0.5, 0.2], allowed: [103, 10K], alike: [0O]").experts["value"].reads
    assert reads == Reading(window=(0.25, 0.4, 0.5, 0.2), allowed=("103", "10K"), alike=("0O",))
