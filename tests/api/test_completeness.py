"""A part without a picture: with a parts list, a placement file or counts, its board is never OK, and it is named."""

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from coe.board import rules
from coe.board.completeness import Expected, is_absent
from coe.cli import inspect as inspect_cli
from coe.errors import ConfigError
from coe.results.records import read


def save(folder, *names):
    for name in names:
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), np.full((60, 60, 3), 90, np.uint8))


@pytest.fixture
def run(tiny, tmp_path, call):
    """Inspect a folder of images by the tiny board on which everything is OK; return status, summary and words."""
    board, store = tiny
    text = board.read_text(encoding="utf-8").replace("bad: NG", "bad: OK").replace("A: {count: 5", "A: {count: 2")
    (tmp_path / "good.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "parts.csv").write_text("refdes,component\nR1,C\nR2,C\nR3,C\n", encoding="utf-8")

    def command(*options, out="out"):
        common = ("--board", tmp_path / "good.yaml", "--store", store, "--images", tmp_path / "images")
        said = call(*common, "--memory", "12MB", "--out", tmp_path / out, *options, command=inspect_cli)
        path = tmp_path / out / "summary.json"
        summary = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return said.status, summary, " ".join((said.out + said.err).split())

    return command


@pytest.fixture
def parts(tmp_path):
    return "--parts", tmp_path / "parts.csv"


def test_a_board_of_three_parts_with_one_picture_is_not_ok_until_the_others_come(run, parts, tmp_path):
    save(tmp_path, "SN1/R1__C.png", *(f"SN2/R{number}__C.png" for number in (1, 2, 3)))
    status, summary, words = run(*parts)
    assert (status, summary["boards"]) == (1, {"SN1": "REVIEW", "SN2": "OK"})
    assert summary["incomplete_boards"] == {"SN1": ["R2", "R3"]}
    assert (summary["boards_ok"], summary["boards_decided"], summary["board_fpy"]) == (1, 2, 0.5)
    assert (summary["completeness"], summary["absent"], summary["images"], summary["ok"]) == ("parts", 2, 4, 4)
    assert ("SN1 (R2, R3)" in words, "no picture" in words) == (True, True)
    out = tmp_path / "out"
    absent = [one.request for one in read(out / "results.jsonl") if is_absent(one)]
    assert [(one.serial, one.refdes) for one in absent] == [("SN1", "R2"), ("SN1", "R3")]
    with (out / "results.csv").open(newline="", encoding="utf-8") as file:
        assert [row["refdes"] for row in csv.DictReader(file) if row["verdict"] == "REVIEW"] == ["R2", "R3"]
    report = (out / "report.html").read_text(encoding="utf-8")
    assert ("R2, R3" in report, "No picture" in report) == (True, True)
    save(tmp_path, "SN1/R2__C.png", "SN1/R3__C.png")
    assert run("--resume")[0] == 2  # without the list the board would become OK in silence
    status, summary, _ = run(*parts, "--resume")
    assert (status, summary["boards"], summary["incomplete_boards"]) == (0, {"SN1": "OK", "SN2": "OK"}, {})


def test_without_a_list_it_is_said_that_nobody_asked_and_files_that_are_no_pictures_are_named(run, tmp_path):
    save(tmp_path, "SN1/R1__C.png")
    (tmp_path / "images/SN1/R1__C.txt").write_text("note", encoding="utf-8")
    status, summary, words = run()
    assert (status, summary["completeness"], summary["incomplete_boards"]) == (0, "not checked", {})
    assert ("completeness was not checked" in words, summary["left_alone"]) == (True, ["SN1/R1__C.txt"])
    assert "was not checked" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_counts_ask_for_different_places(run, parts, tmp_path):
    names = ("R1__A", "R2__A", "R1__B", "R2__B", "R3__B", "R1__C")
    save(tmp_path, *(f"{serial}/{name}.png" for serial in ("SN1", "SN2") for name in names))
    (tmp_path / "images/SN2/R2__A.png").rename(tmp_path / "images/SN2/R1__A.JPG")  # taken again
    status, summary, _ = run("--expect", "counts")
    assert (status, summary["incomplete_boards"], summary["completeness"]) == (1, {"SN2": ["A"]}, "counts")
    for options in (("--expect", "everything"), ("--expect", "counts", *parts)):
        assert run(*options, out="other")[0] == 2


@pytest.mark.parametrize(
    ("names", "table", "options", "incomplete"),
    [
        # A strategy that does not look ahead; an empty folder is a board.
        (["SN1/R1__C.png", "SN1/R2__C.png", "SN1/R3__C.png", "SN2/"], "", ("--strategy", "samba"), {"SN2": [1, 2, 3]}),
        (["a.png"], "path,component,serial,refdes\na.png,C,SN1,R2\n", (), {"SN1": [1, 3]}),
        (["a.png"], "path,component,serial,refdes\na.png,C,,R2\n", (), {"": [1, 3]}),
        (["C/a.png"], "", (), None),  # an image of no board
    ],
)
def test_a_list_is_asked_whatever_says_to_which_boards_images_belong(
    run, parts, tmp_path, names, table, options, incomplete
):
    save(tmp_path, *(name for name in names if not name.endswith("/")))
    for name in (name for name in names if name.endswith("/")):
        (tmp_path / "images" / name).mkdir()
    if table:
        (tmp_path / "images" / "images.csv").write_text(table, encoding="utf-8")
    status, summary, words = run(*parts, *options)
    if incomplete is None:
        assert (status, summary["completeness"], "no image has a serial" in words) == (0, "not checked", True)
        assert run("--expect", "counts", out="other")[0] == 2
    else:
        lacking = {serial: [f"R{number}" for number in numbers] for serial, numbers in incomplete.items()}
        assert (status, summary["incomplete_boards"]) == (1, lacking)


def test_a_share_of_a_part_cannot_be_asked_for(tiny, tmp_path):
    path = tmp_path / "half.yaml"
    path.write_text(Path(tiny[0]).read_text(encoding="utf-8").replace("count: 3", "count: 2.5"), encoding="utf-8")
    with pytest.raises(ConfigError, match="not whole numbers"):
        Expected.of_counts(rules.load(path).components, "half.yaml")
