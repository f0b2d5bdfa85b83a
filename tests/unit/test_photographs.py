"""One layout of photographs for all commands, `<component>/<label>/*`: which picture tells which expert what."""

import shutil
from pathlib import Path

import pytest
from picture_folders import encoded, make, write

from coe.board import photo_labels
from coe.board.rules import of_bytes as rules_of
from coe.cli import board_command
from coe.errors import ConfigError
from coe.learn import labelled
from coe.pictures import finding

BOARD = b"""board: line7
experts:
  chip:    {kind: resnet18, labels: [ok, missing, cracked], input: 64}
  joint:   {kind: yolov5n, labels: [joint, bridge, lifted], input: 64, reject: [bridge, lifted], then: {none: NG}}
  strange: {kind: patch, labels: [odd], input: 64, reject: [odd], then: {none: OK}}
  value:   {kind: resnet18, labels: [10K, 47K, bare], input: 64, reject: [bare]}
components:
  R0402: {inspect: chip, then: {ok: joint, missing: NG, cracked: NG}}
  U3:    {inspect: strange, reference: U3}
  D1:    {inspect: chip, then: {ok: OK, missing: NG, cracked: REVIEW}}
  V1:    {inspect: value}
"""


@pytest.fixture
def board():
    return rules_of(Path("line7.yaml"), BOARD)


def truths(root, board):
    """Return (picture, expert, label) of verified pictures."""
    return [(one.name, one.expert, one.label) for one in labelled.find(root, board.experts, board.components)]


def learned(root, board, expert, **more):
    """Return the labels of the good and bad pictures from which an expert learns, by name."""
    found = labelled.of_expert(root, expert, board, **more)
    return {one.name: one.label or ("good" if one.good else "bad") for one in found}


def test_what_is_good_is_what_the_rules_say(tmp_path, board):
    make(tmp_path, "R0402/good/1.png", "R0402/bridge/2.png", "R0402/missing/3.png")
    make(tmp_path, "U3/OK/2026-11-25/4.png", "U3/bad/5.png", "D1/pass/6.png", "D1/cracked/7.png", "V1/10K/8.png")
    assert truths(tmp_path, board) == [
        ("D1/cracked/7.png", "chip", "cracked"),
        ("D1/pass/6.png", "chip", "ok"),
        ("R0402/bridge/2.png", "joint", "bridge"),
        ("R0402/bridge/2.png", "chip", "ok"),  # only what is ok is looked at by joint
        ("R0402/good/1.png", "chip", "ok"),
        ("R0402/good/1.png", "joint", "joint"),
        ("R0402/missing/3.png", "chip", "missing"),
        ("U3/OK/2026-11-25/4.png", "strange", "none"),
        ("U3/bad/5.png", "strange", "odd"),
        ("V1/10K/8.png", "value", "10K"),
    ]
    assert learned(tmp_path, board, board.experts["chip"]) == {
        "D1/cracked/7.png": "cracked",
        "D1/pass/6.png": "ok",
        "R0402/bridge/2.png": "ok",
        "R0402/good/1.png": "ok",
        "R0402/missing/3.png": "missing",
    }
    good_only = learned(tmp_path, board, board.experts["strange"], good_only=True)
    assert good_only == {"U3/bad/5.png": "bad", "U3/OK/2026-11-25/4.png": "good"}
    assert learned(tmp_path / "R0402", board, board.experts["chip"]) == {
        "bridge/2.png": "ok",
        "good/1.png": "ok",
        "missing/3.png": "missing",
    }


def test_all_commands_see_the_same_photographs(tmp_path, board):
    make(tmp_path, "R0402/good/1.png", "R0402/bridge/2.png", "U3/3.png", "U3/nio/4.png", "U3/gut/20261125/5.png")
    make(tmp_path, "U3/scratched/6.png", "U3/scratched/20261125/7.png")
    known = photo_labels.known_to(board)
    items, skipped = finding.find(tmp_path, known)
    assert ([one for one in items if one.error], skipped) == ([], [])
    assert [(one.name, one.component, one.label) for one in items] == [
        ("R0402/bridge/2.png", "R0402", "bridge"),
        ("R0402/good/1.png", "R0402", "good"),
        ("U3/3.png", "U3", ""),
        ("U3/gut/20261125/5.png", "U3", "gut"),
        ("U3/nio/4.png", "U3", "nio"),
        ("U3/scratched/6.png", "U3", "scratched"),
        ("U3/scratched/20261125/7.png", "U3", "scratched"),
    ]
    good = [
        one.name for one in items if photo_labels.is_good(board.components[one.component], board.experts, one.label)
    ]
    assert good == ["R0402/good/1.png", "U3/3.png", "U3/gut/20261125/5.png"]
    alone, _ = finding.find(tmp_path / "R0402", known)
    assert [(one.name, one.component, one.label) for one in alone] == [
        ("bridge/2.png", "R0402", "bridge"),
        ("good/1.png", "R0402", "good"),
    ]


def test_all_below_the_folder_of_a_component_is_of_it_but_another_component(tmp_path, board):
    make(tmp_path, "R0402/scratched/1.png", "U3/R0402/1.png", "U3/unsorted/deep/1.png")
    found, _ = finding.find(tmp_path, photo_labels.known_to(board))
    assert [(one.component, one.label) for one in found] == [("R0402", "scratched"), ("", ""), ("U3", "unsorted/deep")]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["R0402/good/1.png", "R0402/crakced/2.png", "V1/good/3.png", "D1/4.png"], ["crakced", "10K or 47K", "D1"]),
        (["R0402/bad/1.png"], ["missing", "lifted"]),  # nobody knows which expert would see it
        (["R0402/ok/cracked/1.png"], ["R0402/ok/cracked"]),
        (["D1/cracked/missing/1.png"], ["D1/cracked/missing"]),
        (["R042/good/1.png"], ["R042"]),
        (["D1/ok/1.png", "D1/ok/2.webp", "D1/cracked/3.png.part"], ["2.webp", "3.png.part"]),
        (["train/good/1.png", "test/cracked/2.png", "ground_truth/cracked/2_mask.png"], ["masks", "MVTec"]),
    ],
)
def test_what_is_unclear_is_told_at_once(tmp_path, board, names, told):
    make(tmp_path, *names)
    with pytest.raises(ConfigError) as refused:
        labelled.find(tmp_path, board.experts, board.components)
    assert all(word in str(refused.value) for word in told)
    with pytest.raises(ConfigError):
        [labelled.of_expert(tmp_path, expert, board) for expert in board.experts.values()]


def test_a_picture_that_is_not_called_one_is_refused_with_all_others(tmp_path, board):
    make(tmp_path, "D1/ok/1.png", "D1/ok/.thumb", "D1/ok/notes")
    for name, form in (("IMG_2", "PNG"), ("3.webp", "JPEG"), ("4.dng", "TIFF")):
        write(tmp_path / "D1" / "cracked" / name, encoded(form))
    with pytest.raises(ConfigError) as refused:
        learned(tmp_path, board, board.experts["chip"])
    assert all(f"cracked/{name}" in str(refused.value) for name in ("IMG_2", "3.webp", "4.dng"))
    shutil.rmtree(tmp_path / "D1" / "cracked")
    assert learned(tmp_path, board, board.experts["chip"]) == {"D1/ok/1.png": "ok"}


def test_photographs_of_other_components_alone_are_refused(tmp_path, board):
    make(tmp_path, "R0402/good/1.png")
    for root in (tmp_path, tmp_path / "R0402"):
        with pytest.raises(ConfigError, match="shows no U3"):
            learned(root, board, board.experts["strange"], good_only=True)
    make(tmp_path, "a/train/D1/ok/1.png", "a/val/V1/10K/2.png", "b/train/V1/10K/2.png")
    assert learned(tmp_path / "a", board, board.experts["chip"]) == {"train/D1/ok/1.png": "ok"}
    with pytest.raises(ConfigError, match="shows no R0402 or D1"):
        learned(tmp_path / "b", board, board.experts["chip"])


def test_a_folder_of_a_users_own_may_be_called_ground_truth(tmp_path, board):
    make(tmp_path, "R0402/ground truth/1.png", "R0402/good/2.png")
    found = finding.labelled(tmp_path, board.components, ())
    assert [(one.component, one.label) for one in found] == [("R0402", "good"), ("R0402", "ground truth")]
    make(tmp_path, "R0402/ground truth/1_mask.png")  # as in MVTec AD 2
    with pytest.raises(ConfigError, match="masks"):
        finding.labelled(tmp_path, board.components, ())


def test_a_bad_part_is_never_taken_for_a_good_one(tmp_path, board):
    make(tmp_path, "U3/good/1.png", "U3/odd/2.png", "U3/rejects/3.png", "R0402/4.png")
    expert = board.experts["strange"]
    read = learned(tmp_path, board, expert, good_only=True)
    assert read == {"U3/good/1.png": "good", "U3/odd/2.png": "bad", "U3/rejects/3.png": "bad"}
    make(tmp_path, "U3/scratched/7.png")  # whoever knows good parts alone calls all else strange
    assert learned(tmp_path, board, expert, good_only=True)["U3/scratched/7.png"] == "bad"
    alone = photo_labels.of_component(board.components["U3"], board.experts, "scratched")
    assert alone == {"strange": "odd"}
    make(tmp_path, "U3/good/bad/5.png")
    with pytest.raises(ConfigError, match="U3/good/bad"):
        learned(tmp_path, board, expert, good_only=True)


def test_layouts_without_components_stay_as_they_were(tmp_path, board):
    sorting = rules_of(
        Path("s.yaml"),
        b"board: s\nexperts: {e: {kind: resnet18, labels: [ok, R0402], input: 64, reject: [ok]}}\n"
        b"components: {R0402: {inspect: e}}",
    )
    labels = make(tmp_path / "labels", "ok/1.png", "R0402/2.png")  # a label may be called as a component is
    for rules in (None, sorting):
        assert learned(labels, rules, sorting.experts["e"]) == {"ok/1.png": "ok", "R0402/2.png": "R0402"}
    expert = sorting.experts["e"]
    split = make(tmp_path / "split", "train/ok/1.png", "train/R0402/2.png", "val/ok/3.png")
    assert [one.purpose for one in labelled.of_expert(split, expert)] == ["learn", "learn", "verify"]
    of_experts = make(tmp_path / "experts", "chip/ok/1.png", "strange/none/2.png")
    assert truths(of_experts, board) == [("chip/ok/1.png", "chip", "ok"), ("strange/none/2.png", "strange", "none")]
    words = make(tmp_path / "words", "good/1.png", "cracked/2.png", "missing/3.png")
    assert learned(words, None, board.experts["chip"])["good/1.png"] == "ok"


@pytest.mark.parametrize(
    "folder",
    [
        *("unsorted", "UNSORTED", "To Sort", "new", "good2", "ok (2)", "Good-copy", "gut_alt", "test", "001", "-"),
        *("ok_front", "board_ok", "OKimages", "良品画像"),
    ],
)
def test_a_folder_that_nobody_has_sorted_is_neither_good_nor_bad(tmp_path, board, folder):
    make(tmp_path, "U3/good/1.png", f"U3/{folder}/2.png")
    for refusing in (
        lambda: labelled.find(tmp_path, board.experts, board.components),
        lambda: learned(tmp_path, board, board.experts["strange"], good_only=True),
        lambda: board_command.look(tmp_path),
    ):
        with pytest.raises(ConfigError) as refused:
            refusing()
        assert f"U3/{folder}" in str(refused.value)


def test_folders_that_differ_in_case_alone_are_not_two_labels_but_numbers_and_versions_are(tmp_path):
    make(tmp_path, "U3/good/1.png", "U3/Good/2.png", "U4/good/5.png", "U4/scratch/3.png", "U3/Scratch/3.png")
    make(tmp_path, *(f"U5/{label}/{number}.png" for number, label in enumerate(["good", "4.7k", "47k", "v1.1", "v11"])))
    board_command.look(tmp_path)
    make(tmp_path, "U3/scratch/4.png")
    with pytest.raises(ConfigError, match=r"[Ss]cratch"):
        board_command.look(tmp_path)


@pytest.mark.parametrize(
    ("folder", "label"),
    [
        *(("n.i.O.", "odd"), ("NOK", "odd"), ("not good", "odd"), ("Kratzer Ü", "odd"), ("io_pin_bent", "odd")),
        *(("Gut", "none"), ("i.O.", "none"), ("良品", "none"), ("不良品", "odd")),
        *(("accepted", "none"), ("Non-Defective", "none"), ("conforme", "none"), ("정상", "none"), ("OK品", "none")),
        *(("not ok, front", "odd"), ("Nicht i.O.", "odd"), ("non conforme", "odd"), ("불량", "odd"), ("NG品", "odd")),
    ],
)
def test_folders_as_people_call_them(tmp_path, board, folder, label):
    make(tmp_path, f"U3/{folder}/1.png")
    assert truths(tmp_path, board) == [(f"U3/{folder}/1.png", "strange", label)]


def test_a_folder_none_is_good_only_where_rules_say_that_none_passes(tmp_path, board):
    make(tmp_path, "U3/good/1.png", "U3/none/2.png")
    expert = board.experts["strange"]
    assert set(learned(tmp_path, board, expert, good_only=True).values()) == {"good"}
    with pytest.raises(ConfigError, match="or missing"):
        learned(tmp_path / "U3", None, expert, good_only=True)
