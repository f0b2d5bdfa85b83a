"""A part without a picture: with a parts list, a placement file or counts, its board is never OK, and it is named."""

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from coe.board import rules
from coe.board.completeness import Expected, is_absent
from coe.board.parts_list import PlacedPart
from coe.cli import inspect as inspect_cli
from coe.errors import ConfigError
from coe.pictures.photographs import Photograph
from coe.results.records import read

PARTS = (PlacedPart("C", "R1"), PlacedPart("C", "R2"), PlacedPart("C", "R3"))


def image(refdes, component="C", serial="SN1"):
    return Photograph(Path(f"{refdes}.png"), component, serial, refdes, f"{serial}/{refdes}__{component}.png")


def save(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((60, 60, 3), 90, np.uint8))


class Line:
    """The tiny board on which everything is OK, a folder of images, a parts list, and the command."""

    def __init__(self, tiny, folder, call):
        board, self.store = tiny
        self.folder, self.images, self.call = folder, folder / "images", call
        self.board = folder / "good.yaml"
        text = Path(board).read_text(encoding="utf-8").replace("bad: NG", "bad: OK")
        self.board.write_text(text.replace("A: {count: 5", "A: {count: 2"), encoding="utf-8")
        self.parts = folder / "parts.csv"
        lines = [f"{part.refdes},{part.component}" for part in PARTS]
        self.parts.write_text("\n".join(["refdes,component", *lines]) + "\n", encoding="utf-8")

    def run(self, *options, out="out"):
        common = ("--board", self.board, "--store", self.store, "--images", self.images, "--memory", "12MB")
        said = self.call(*common, "--out", self.folder / out, *options, command=inspect_cli)
        path = self.folder / out / "summary.json"
        summary = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return said.status, summary, " ".join((said.out + said.err).split())


@pytest.fixture
def line(tiny, tmp_path, call):
    return Line(tiny, tmp_path, call)


def test_a_board_of_three_parts_with_one_picture_is_not_ok(line):
    save(line.images / "SN1" / "R1__C.png")
    save(line.images / "SN2" / "R1__C.png")
    for refdes in ("R2", "R3"):
        save(line.images / "SN2" / f"{refdes}__C.png")
    status, summary, words = line.run("--parts", line.parts)
    assert status == 1
    assert summary["boards"] == {"SN1": "REVIEW", "SN2": "OK"}
    assert summary["incomplete_boards"] == {"SN1": ["R2", "R3"]}
    assert (summary["boards_ok"], summary["boards_decided"], summary["board_fpy"]) == (1, 2, 0.5)
    assert (summary["completeness"], summary["absent"], summary["images"], summary["ok"]) == ("parts", 2, 4, 4)
    assert ("SN1 (R2, R3)" in words, "no picture" in words) == (True, True)
    out = line.folder / "out"
    rows = [json.loads(row) for row in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["serial"], row["refdes"]) for row in rows if row["findings"][0]["label"] == "no picture"] == [
        ("SN1", "R2"),
        ("SN1", "R3"),
    ]
    with (out / "results.csv").open(newline="", encoding="utf-8") as file:
        assert [row["refdes"] for row in csv.DictReader(file) if row["verdict"] == "REVIEW"] == ["R2", "R3"]
    report = (out / "report.html").read_text(encoding="utf-8")
    assert ("R2, R3" in report, "No picture" in report) == (True, True)
    assert sum(map(is_absent, read(out / "results.jsonl"))) == 2


def test_without_a_list_it_is_said_that_nobody_asked_and_files_that_are_no_pictures_are_named(line):
    save(line.images / "SN1" / "R1__C.png")
    status, summary, words = line.run()
    assert (status, summary["completeness"], summary["incomplete_boards"]) == (0, "not checked", {})
    assert "completeness was not checked" in words
    assert "was not checked" in (line.folder / "out" / "report.html").read_text(encoding="utf-8")
    (line.images / "SN1" / "R1__C.txt").write_text("note", encoding="utf-8")
    assert line.run(out="again")[1]["left_alone"] == ["SN1/R1__C.txt"]


def test_counts_ask_for_different_places(line):
    for name in ("R1__A", "R2__A", "R1__B", "R2__B", "R3__B", "R1__C"):
        save(line.images / "SN1" / f"{name}.png")
        save(line.images / "SN2" / f"{name}.png")
    (line.images / "SN2" / "R2__A.png").rename(line.images / "SN2" / "R1__A.JPG")  # taken again
    status, summary, _ = line.run("--expect", "counts")
    assert (status, summary["incomplete_boards"], summary["completeness"]) == (1, {"SN2": ["A"]}, "counts")
    assert line.run("--expect", "everything", out="other")[0] == 2
    assert line.run("--expect", "counts", "--parts", line.parts, out="other")[0] == 2


def test_a_run_that_goes_on_asks_again(line):
    save(line.images / "SN1" / "R1__C.png")
    assert line.run("--parts", line.parts)[0] == 1
    for refdes in ("R2", "R3"):
        save(line.images / "SN1" / f"{refdes}__C.png")
    assert line.run("--resume")[0] == 2  # without the list the board would become OK in silence
    status, summary, _ = line.run("--parts", line.parts, "--resume")
    assert (status, summary["boards"], summary["incomplete_boards"]) == (0, {"SN1": "OK"}, {})


def test_a_list_counts_with_every_strategy_and_an_empty_folder_is_a_board(line):
    for refdes in ("R1", "R2", "R3"):
        save(line.images / "SN1" / f"{refdes}__C.png")
    (line.images / "SN2").mkdir()
    status, summary, _ = line.run("--parts", line.parts, "--strategy", "samba")
    assert (status, summary["incomplete_boards"]) == (1, {"SN2": ["R1", "R2", "R3"]})


@pytest.mark.parametrize("serial", ["SN1", ""])
def test_a_table_is_asked_too(line, serial):
    save(line.images / "a.png")
    text = f"path,component,serial,refdes\na.png,C,{serial},R2\n"
    (line.images / "images.csv").write_text(text, encoding="utf-8")
    status, summary, _ = line.run("--parts", line.parts)
    assert (status, summary["incomplete_boards"]) == (1, {serial: ["R1", "R3"]})


def test_images_of_no_board_are_not_asked_and_this_is_said(line):
    save(line.images / "C" / "a.png")
    status, summary, words = line.run("--parts", line.parts)
    assert (status, summary["completeness"]) == (0, "not checked")
    assert "no image has a serial" in words
    assert line.run("--expect", "counts", out="other")[0] == 2


def test_a_share_of_a_part_cannot_be_asked_for(tiny, tmp_path):
    path = tmp_path / "half.yaml"
    path.write_text(Path(tiny[0]).read_text(encoding="utf-8").replace("count: 3", "count: 2.5"), encoding="utf-8")
    with pytest.raises(ConfigError, match="not whole numbers"):
        Expected.of_counts(rules.load(path).components, "half.yaml")
