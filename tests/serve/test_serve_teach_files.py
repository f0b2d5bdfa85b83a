"""What the pages that teach a board do to files: entries of YAML change alone, what was cut and found is taken over."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from waiting import eventually

from coe.serve.teach import yaml_edit
from coe.serve.teach.crop_gallery import crops
from coe.serve.teach.take_found import take_crops, take_map
from coe.serve.teach.teach_draft import BoardDraft
from coe.serve.teach.teach_work import Works, log_of

TEXT = """\
# head
side: top
um_per_pixel: 50  # TODO: how many
outline: {x: [0, 20], y: [0, 16]}  # mine
components:  # all
  A: {size: [1, 2]}  # TODO: a guess
  B:
    size: [3, 4]   # sure
    margin: 0.1
  \u03a9: {size: [5, 6], margin: 0.2, crop: 64}
placed_as:
- {package: P, component: A}
- {package: Q, component: B}
not_inspected: []
"""


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        (yaml_edit.with_value(TEXT, ("components", "A", "size"), "[7, 8]"), {6: "  A: {size: [7, 8]}"}),
        (yaml_edit.with_value(TEXT, ("components", "B", "size"), "[7, 8]"), {8: "    size: [7, 8]   # sure"}),
        (yaml_edit.with_value(TEXT, ("placed_as", 1, "component"), "C"), {13: "- {package: Q, component: C}"}),
        (
            yaml_edit.with_key(TEXT, ("components", "\u03a9"), "ohm"),
            {10: "  ohm: {size: [5, 6], margin: 0.2, crop: 64}"},
        ),
        (
            yaml_edit.without(TEXT, ("components", "\u03a9", "margin")),
            {10: "  \u03a9: {size: [5, 6], crop: 64}"},
        ),
        (yaml_edit.without(TEXT, ("components", "\u03a9", "crop")), {10: "  \u03a9: {size: [5, 6], margin: 0.2}"}),
        (yaml_edit.with_items(TEXT, "not_inspected", ['"R1"', '"R2"']), {14: 'not_inspected: ["R1", "R2"]'}),
    ],
)
def test_one_line_changes_and_no_other(changed: str, lines: dict[int, str]) -> None:
    before, after = TEXT.splitlines(), changed.splitlines()
    assert len(before) == len(after)
    assert {number: line for number, line in enumerate(after, 1) if line != before[number - 1]} == lines


def test_entries_come_and_go_as_lines() -> None:
    lines = TEXT.splitlines(keepends=True)
    assert yaml_edit.without(TEXT, ("components", "B")) == "".join(lines[:6] + lines[9:])
    assert yaml_edit.without(TEXT, ("placed_as", 0)) == "".join(lines[:11] + lines[12:])
    added = yaml_edit.with_entry(TEXT, ("components",), "C: {size: [1, 1]}")
    assert added == "".join([*lines[:10], "  C: {size: [1, 1]}\n", *lines[10:]])
    first = yaml_edit.with_entry(TEXT, ("placed_as",), "- {package: R, component: C}", first=True)
    assert first == "".join([*lines[:11], "- {package: R, component: C}\n", *lines[11:]])
    assert yaml_edit.with_items("side: top", "not_inspected", ["A"]) == "side: top\nnot_inspected: [A]\n"
    for place in (("components", "D"), ("none",), ("components", "A", "margin")):
        with pytest.raises(KeyError):
            yaml_edit.with_value(TEXT, place, "1")


def made_beside(draft: BoardDraft, recipe: str) -> None:
    """Write what `coe-board new` writes into the folder in which a draft is searched."""
    made = BoardDraft(draft.folder / "found", draft.name)
    for path, text in ((made.recipe, recipe), (made.rules, "board: line7\n"), (made.folder / "overlay-SN1.png", "")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_of_a_recipe_that_is_there_the_map_changes_alone(tmp_path: Path) -> None:
    draft = BoardDraft(tmp_path, "line7")
    made_beside(draft, "recipe: r\nside: top\num_per_pixel: 41.2  # measured\ncamera: {turn: 90}\n")
    take_map(draft)
    assert draft.recipe.read_text() == "recipe: r\nside: top\num_per_pixel: 41.2  # measured\ncamera: {turn: 90}\n"
    draft.recipe.write_text(TEXT, encoding="utf-8")
    draft.rules.write_text("board: line7  # mine\n")
    made_beside(draft, "side: top\num_per_pixel: 40\nfiducials:\n  diameter: 1\n  at: {F1: [1, 2]}\ncomponents: {}\n")
    take_map(draft)
    lines = TEXT.splitlines(keepends=True)
    fiducials = "fiducials:\n  diameter: 1\n  at: {F1: [1, 2]}\n"
    assert draft.recipe.read_text() == "".join([*lines[:2], "um_per_pixel: 40\n", fiducials, *lines[3:]])
    assert draft.rules.read_text() == "board: line7  # mine\n"
    assert (draft.folder / "overlay-SN1.png").is_file()


def test_parts_that_are_cut_again_stay_what_a_person_said(tmp_path: Path) -> None:
    draft = BoardDraft(tmp_path, "line7")
    for name in ("A/good/R1-SN1.png", "A/bad/R2-SN1.png", "A/R3-SN1.png"):
        path = draft.photos / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("old")
    for name in ("R1-SN1", "R2-SN1", "R3-SN1", "R1-SN2"):
        path = draft.folder / "cut" / "A" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("new")
    take_crops(draft)
    assert {crop.path: crop.mark for crop in crops(draft)["A"]} == {
        "A/good/R1-SN1.png": "good",
        "A/bad/R2-SN1.png": "bad",
        "A/R3-SN1.png": "",
        "A/R1-SN2.png": "",
    }
    assert {(draft.photos / crop.path).read_text() for crop in crops(draft)["A"]} == {"new"}


@pytest.mark.slow
def test_commands_run_one_after_another_until_one_fails(tmp_path: Path) -> None:
    draft, works = BoardDraft(tmp_path, "line7"), Works()
    draft.folder.mkdir()
    fails = ("coe-board", "new", "line7")
    assert works.begin(draft, "x", "place", [("coe-board", "--help"), fails, ("coe-board", "--help")])
    assert not works.begin(draft, "y", "place", [fails])
    eventually(lambda: not works.is_running(draft))
    ended = works.of(draft)
    assert ended is not None
    assert (ended.state, ended.at, ended.exit) == ("failed", 1, 2)
    assert "--photos" in log_of(draft)
    works.close()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="Windows has no groups of processes")
def test_what_runs_ends_with_the_gate(tmp_path: Path) -> None:
    draft, works = BoardDraft(tmp_path, "line7"), Works()
    (draft.folder / "boards").mkdir(parents=True)
    os.mkfifo(tmp_path / "never")  # nobody writes into it, so the command waits for ever
    wait = ("coe-board", "new", "line7", "--placements", "never")
    assert works.begin(draft, "x", "place", [wait])
    (running,) = works.running.values()
    eventually(lambda: (draft.folder / "work.json").read_text().find('"at":0') > 0)
    assert running.stdin is not None
    running.stdin.close()  # as when the gate was killed
    assert running.wait(30) in (1, -signal.SIGKILL)
    ended = works.of(draft)
    assert ended is not None
    assert ended.state == "failed"
    works.close()
