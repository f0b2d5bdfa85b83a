"""What the pages that teach a board do to files: what was cut and found is taken over, and comes back."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from serve_rows import the
from waiting import eventually

from coe.errors import ConfigError
from coe.helpers import strict_yaml
from coe.serve.teach import teach_steps
from coe.serve.teach.take_results import take_crops, take_map
from coe.serve.teach.teach_draft import BoardDraft, text_of
from coe.serve.teach.teach_steps import crops
from coe.serve.teach.teach_work import RESTARTED, STOPPED, WORK, Work, Works, log_of


def test_files_of_one_name_come_back_each_to_its_place(tmp_path):
    draft = BoardDraft(tmp_path, "recipe")  # routing_rules/recipe.yaml and recipe/recipe.yaml

    def texts():
        return [path.read_text().splitlines()[-1] for path in (draft.rules, draft.recipe)]

    before = draft.state.model_copy(update={"rules": {"a": "1"}, "recipe": {"b": "2"}})
    draft.say(before)
    teach_steps.remember(draft, "a step")
    draft.say(before.model_copy(update={"rules": {"a": "3"}, "recipe": {"b": "4"}}))
    assert texts() == ["{a: 3}", "{b: 4}"]
    teach_steps.take_back(draft)
    assert texts() == ["{a: 1}", "{b: 2}"]


def test_work_runs_until_a_next_step_can_begin(tmp_path):
    draft, works = BoardDraft(tmp_path, "line7"), Works()
    draft.folder.mkdir()
    done = Work(what="", then="learn", commands=(("coe-experts",),), at=1, state="done")
    (draft.folder / WORK).write_text(done.model_dump_json())
    wait = "import sys; sys.stdin.read()"
    works.running[draft.folder] = subprocess.Popen([sys.executable, "-c", wait], stdin=subprocess.PIPE)
    assert (the(works.of(draft)).state, works.is_running(draft)) == ("running", True)
    works.running[draft.folder].communicate()
    assert (the(works.of(draft)).state, works.is_running(draft)) == ("done", False)


def test_work_that_a_person_stops_was_not_ended_by_a_restart(tmp_path):
    draft, works = BoardDraft(tmp_path, "line7"), Works()
    draft.folder.mkdir()
    for ended, exit_of in ((works.stop, STOPPED), (lambda _: works.close(), RESTARTED)):
        (draft.folder / WORK).write_text(Work(what="", then="learn", commands=(("coe-experts",),)).model_dump_json())
        works.running[draft.folder] = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        works.running[draft.folder].communicate(b"x")  # so that it has ended before anybody kills its group
        ended(draft)
        assert (the(works.of(draft)).state, the(works.of(draft)).exit) == ("failed", exit_of)


def test_words_are_read_as_they_were_written():
    words = ["no", "1e3", "2.40", "null", "", "a: b", "# x", "- y", "\u03a9", "'", "0x1f", "~", "2026-01-01"]
    data = {"labels": words, "components": {word or "-": {"size": ["1", "2.0"]} for word in words}, "none": None}
    assert strict_yaml.parse(Path("x.yaml"), text_of(data).encode()).data == data


def made_beside(draft, recipe, unseen="[]"):
    """Write what `coe-board new` writes into the folder in which a draft is searched."""
    made, read = BoardDraft(draft.folder / "found", draft.name), draft.read()
    answers = read.answers.with_more({"not_inspected": yaml.safe_load(unseen)})
    read = draft.read(said=answers)
    files = {made.recipe: recipe, made.rules: "board: line7\n", made.folder / "overlay-SN1.png": ""}
    files |= {made.parts: read.text("x"), made.answers: read.answers.text()}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


MINE = """\
# mine
recipe: r
side: top
um_per_pixel: 50  # TODO: how many
outline: {x: [0, 20], y: [0, 16]}  # mine
held: true
picture: [600, 400]
components:
  mine: {size: [1, 2]}
"""
ROWS = "Ref,Val,Package,PosX,PosY,Rot,Side\nR1,1k,R_0402,5,5,0,top\n"


def begun(folder, rows=ROWS):
    draft = BoardDraft(folder, "line7")
    (draft.folder / "placements").mkdir(parents=True)
    (draft.folder / "placements" / "pnp.csv").write_text(rows)
    draft.answers.write_text("packages: [{package: R_0402, component: mine}]\n")
    draft.say(draft.state.model_copy(update={"units": "mm"}))
    draft.keep(draft.read())
    return draft


def test_of_a_recipe_that_is_there_the_map_changes_alone(tmp_path):
    draft = begun(tmp_path)
    made_beside(draft, MINE)
    take_map(draft)
    before = draft.state
    assert (before.recipe["held"], before.open, draft.is_found) == ("true", ("um_per_pixel",), False)
    draft.say(before.model_copy(update={"rules": {"board": "mine", "components": {}}}))
    fiducials = "fiducials:\n  diameter: 1\n  at: {F1: [1, 2], F2: [9, 9]}\n"
    measured = "um_per_pixel: 40\ncamera: {turn: 90}\n"
    outline = "outline: {x: [0, 21], y: [0, 17]}\n"
    made_beside(draft, f"recipe: r\nside: top\n{outline}{measured}{fiducials}components:\n  A: {{size: [1, 1]}}\n")
    take_map(draft)
    after = draft.state
    kept = {key: value for key, value in before.recipe.items() if key not in ("um_per_pixel", "held", "picture")}
    found = yaml.load(measured + fiducials, yaml.BaseLoader)
    assert (after.recipe, after.rules, after.open) == (kept | found, {"board": "mine", "components": {}}, ())
    assert (draft.folder / "overlay-SN1.png").is_file()


def test_parts_of_a_newer_placement_file_are_added_to_what_is_there(tmp_path):
    draft = begun(tmp_path, f"{ROWS}C1,1u,C_0603,8,5,0,top\nTP1,,TP,2,2,0,top\nJ1,x,J,9,9,0,top\n")
    mine = yaml.load(MINE, yaml.BaseLoader)
    board = {"board": "line7", "experts": {}, "components": {"mine": {"inspect": "x"}}}
    draft.say(draft.state.model_copy(update={"recipe": mine, "rules": board}))
    more = "  C0603-1u: {size: [3, 4]}  # TODO: the size\n  J-x: {size: [9, 9]}\n"
    made_beside(draft, f"{MINE}{more}", "[J1]")
    found = BoardDraft(draft.folder / "found", draft.name)
    found.rules.write_text("components:\n  C0603-1u: {inspect: first-look}\n")
    take_map(draft)
    state = draft.state
    assert state.recipe["components"] == {"mine": {"size": ["1", "2"]}, "C0603-1u": {"size": ["3", "4"]}}
    assert [site.component for site in draft.layout.sites] == ["mine", "C0603-1u"]
    assert state.rules["components"] == {"mine": {"inspect": "x"}, "C0603-1u": {"inspect": "first-look"}}
    assert state.open == ("um_per_pixel", "C0603-1u")


def test_parts_that_are_cut_again_stay_what_a_person_said(tmp_path):
    draft = BoardDraft(tmp_path, "line7")
    there = [draft.photos / name for name in ("A/good/R1-SN1.png", "A/bad/R2-SN1.png", "A/R3-SN1.png")]
    cut = [draft.folder / "cut" / "A" / f"{name}.png" for name in ("R1-SN1", "R2-SN1", "R3-SN1", "R1-SN2")]
    for path in (*there, *cut):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("new" if path in cut else "old")
    take_crops(draft)
    assert {crop.path: crop.mark for crop in crops(draft)["A"]} == {
        "A/good/R1-SN1.png": "good",
        "A/bad/R2-SN1.png": "bad",
        "A/R3-SN1.png": "",
        "A/R1-SN2.png": "",
    }
    assert {(draft.photos / crop.path).read_text() for crop in crops(draft)["A"]} == {"new"}


@pytest.mark.slow
def test_commands_run_one_after_another_until_one_fails(tmp_path):
    draft, works = BoardDraft(tmp_path, "line7"), Works()
    draft.folder.mkdir()
    fails = ("coe-board", "new", "line7")
    works.begin(draft, "x", "place", [("coe-board", "--help"), fails, ("coe-board", "--help")])
    with pytest.raises(ConfigError):
        works.begin(draft, "y", "place", [fails])
    eventually(lambda: not works.is_running(draft))
    ended = works.of(draft)
    assert (ended.state, ended.at, ended.exit) == ("failed", 1, 2)
    assert "--photos" in log_of(draft)
    works.begin(draft, "z", "place", [("coe-board", "--help")])  # nothing of what ran before is left open
    works.stop(draft)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="Windows has no groups of processes")
def test_what_runs_ends_with_the_gate(tmp_path):
    draft, works = BoardDraft(tmp_path, "line7"), Works()
    (draft.folder / "boards").mkdir(parents=True)
    os.mkfifo(tmp_path / "never")  # nobody writes into it, so the command waits for ever
    wait = ("coe-board", "new", "line7", "--placements", "never")
    works.begin(draft, "x", "place", [wait])
    (running,) = works.running.values()
    eventually(lambda: (draft.folder / "work.json").read_text().find('"at":0') > 0)
    running.stdin.close()  # as when the gate was killed
    assert running.wait(30) in (1, -signal.SIGKILL)
    ended = works.of(draft)
    assert ended.state == "failed"
    works.close()
