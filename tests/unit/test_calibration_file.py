"""The calibration of a board in a file beside the board file: what wins, what goes back, and what is refused."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coe.board import calibration_file, rules
from coe.board.board_spec import StatedScores
from coe.board.calibration_file import BoardCalibration, CalibratedExpert
from coe.errors import RulesError
from coe.learn import calibration_text

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
    assert loaded.experts["body"].temperature == 1.5
    assert loaded.experts["seen"].ignore_under == {"hole": 0.4}
    scores = {name: component.root.min_scores for name, component in loaded.components.items()}
    assert scores == {"U1": {"ok": 0.9}, "U2": {"none": 0.6}, "U3": {"ok": 0.6}}, "what a step states goes first"
    calibration_file.path_for(board).unlink()
    assert rules.load(board).components["U1"].root.min_scores == {"ok": 0.5, "bad": 0.1}
    assert rules.load(board).experts["body"].temperature == 1


def test_the_digest_is_of_both_files(board):
    calibrated, path = rules.load(board).digest, calibration_file.path_for(board)
    path.write_text(CALIBRATION + "# another\n")
    other = rules.load(board).digest
    path.unlink()
    assert len({calibrated, other, rules.load(board).digest}) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("board: hall7", "board: hall8"), ("hall7.calibration.yaml:1:", "'hall8'")),
        (("  seen:", "  sen:"), ("hall7.calibration.yaml:7:", "'sen'", "did you mean 'seen'")),
        (("{ok: 0.9}", "{okay: 0.9}"), ("hall7.calibration.yaml:5:", "'okay' is not a label of 'body'")),
        (("{hole: 0.4}", "{none: 0.4}"), ("hall7.calibration.yaml:7:", "'none' is not a label of 'seen'")),
        (("{ok: 0.5, bad", "{ok: 0.7, bad"), ("hall7.calibration.yaml:3:", "states other scores of 'body'")),
        (("    stated: {min_scores: {ok: 0.5, bad: 0.1}}\n", ""), ("hall7.calibration.yaml:3:", "'body'")),
        (("temperature: 1.5", "temperature: 0"), ("hall7.calibration.yaml:4:", "temperature")),
        (("temperature: 1.5", "temprature: 1.5"), ("hall7.calibration.yaml:4:", "did you mean 'temperature'")),
        (("board: hall7\n", ""), ("hall7.calibration.yaml:1:", "'board' is missing")),
        ((CALIBRATION, ""), ("hall7.calibration.yaml:1:", "empty")),
        ((CALIBRATION, "thresholds"), ("hall7.calibration.yaml:1:", "board and experts")),
        ((CALIBRATION, CALIBRATION[:-20]), ("hall7.calibration.yaml:",)),
        ((CALIBRATION, "\0"), ("hall7.calibration.yaml:1:",)),
    ],
)
def test_a_calibration_that_is_damaged_or_does_not_fit_is_refused(board, change, words):
    calibration_file.path_for(board).write_text(CALIBRATION.replace(*change))
    with pytest.raises(RulesError) as refused:
        rules.load(board)
    assert all(word in str(refused.value) for word in words), refused.value
    assert "\n" not in str(refused.value)


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
    path.unlink()
    path.symlink_to(tmp_path / "gone.yaml")
    with pytest.raises(RulesError, match="cannot be read"):
        rules.load(board)
    path.unlink()
    path.mkdir()
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
    for read in (rules.load, calibration_file.digest_of_rules):
        with pytest.raises(RulesError) as refused:
            read(tmp_path / board)
        assert calibration in str(refused.value)
        assert calibration_file.path_for(tmp_path / board).name in str(refused.value)
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
    with pytest.raises(RulesError, match="did you mean 'hall7'") as refused:
        rules.find("hall7x")
    assert "hall7.calibration" not in str(refused.value)
    with pytest.raises(RulesError):
        rules.load(calibration_file.path_for(board))
    raw = calibration_file.content(board)
    assert raw is not None
    written = BoardCalibration(board="hall7", experts=calibration_text.entries(board, raw))
    whole = calibration_text.text(board, written)
    assert calibration_text.entries(board, whole.encode()) == written.experts
    for length in range(len(whole.rstrip())):
        calibration_file.path_for(board).write_text(whole[:length])
        with pytest.raises(RulesError):
            rules.load(board)


scores = st.dictionaries(st.sampled_from(["ok", "bad", "none"]), st.floats(0, 1))


@settings(max_examples=50)
@given(st.floats(0.01, 100), scores)
def test_what_is_written_is_read_again(temperature, least):
    stated = StatedScores(min_scores={"ok": 0.5, "bad": 0.1})
    entry = CalibratedExpert(temperature=temperature, min_scores=least, stated=stated)
    written = calibration_text.text(
        Path("hall7.yaml"), BoardCalibration(board="hall7", experts={"body": entry})
    ).encode()
    loaded = rules.of_bytes(Path("hall7.yaml"), BOARD.encode(), written)
    assert loaded.experts["body"].temperature == temperature
    assert loaded.components["U1"].root.min_scores == least
