"""Pages: their programs, their boards, and the calls that they draw."""

import doctest
import importlib
import inspect
import json
import re
import runpy
import shlex
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

import cv2
import numpy as np
import pages
import pytest
import torch
from pages import ROOT, Block
from quick_line import LIGHT, quick
from tiny_line import TINY

import coe
import coe.inspector
from apps.demo import own_board
from coe import Inspector, Request, Result, Verdict
from coe.board import rules
from coe.board.parts_list import PlacedPart
from coe.cli.start import MODULES, Exit
from coe.scheduler.costs import Cost
from coe.scheduler.strategies import Strategy
from coe.store.store import Store
from coe.testing import VirtualLine, pools_of, rules_from

PAGE = pages.ROOT / "docs" / "own-board.md"


def section(heading):
    """Return the blocks of a section."""
    text = PAGE.read_text(encoding="utf-8")
    begin = text.count("\n", 0, text.index(heading))
    end = text.find("\n## ", text.index(heading))
    last = text.count("\n") if end < 0 else text.count("\n", 0, end)
    return [block for block in pages.blocks(PAGE) if begin < block.line <= last]


def module(name):
    return importlib.import_module(MODULES[name.removeprefix("coe-")])


@pytest.mark.slow
def test_the_page_leads_from_a_placement_file_to_a_report(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COE_STORE", str(tmp_path / "store"))
    first, sizes, then = section("## From a placement file")
    (tmp_path / "package_sizes.yaml").write_text(sizes.text, encoding="utf-8")
    for line in (first.text + then.text).splitlines():
        words = shlex.split(line)
        if words[0] == "python":
            own_board.main(words[3:])
            continue
        said = call(*words[1:], command=module(words[0]))
        # Exit status 1: a picture was left out of a reference, or a part is not OK.
        assert said.status in (Exit.OK, Exit.NOT_GOOD), said.words
        assert "to decide" not in said.out
    assert (tmp_path / "line7" / "overlay-SN2.png").is_file()
    results = [json.loads(line) for line in (tmp_path / "line7" / "run" / "results.jsonl").read_text().splitlines()]
    images = [row for row in results if row.get("refdes")]
    assert len(images) == 76
    assert sum(row["verdict"] == "OK" for row in images) >= 0.75 * len(images)
    assert {row["verdict"] for row in images} <= {"OK", "NG", "REVIEW"}
    assert (tmp_path / "line7" / "run" / "report.html").is_file()


def test_the_page_leads_from_places_in_pixels_to_photographs(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places, new, recipe, rest = section("## Boards without fiducials")
    (tmp_path / "places.csv").write_text(places.text, encoding="utf-8")
    (tmp_path / "boards").mkdir()
    for name in ("b1", "b2"):
        cv2.imwrite(str(tmp_path / "boards" / f"{name}.png"), np.full((789, 600, 3), 90, np.uint8))
    assert call(*shlex.split(new.text)[1:], command=module("coe-board")).status == Exit.OK
    (tmp_path / "block" / "recipe.yaml").write_text(recipe.text, encoding="utf-8")
    crop, photographed, inspect = (shlex.split(line) for line in rest.text.splitlines())
    assert call(*crop[1:], command=module("coe-experts")).status == Exit.OK
    assert len(list((tmp_path / "block" / "photos" / "screw").glob("P?-b?.png"))) == 8
    assert photographed[4] == "block/photos"
    assert inspect[3:-2] == crop[3:-2], "pictures are inspected as they were cut"


TRAINED_FIRST = ("demo", "first_look")
ALL = [block for page in pages.PAGES for block in pages.blocks(page)]
EXPORTED = {name: getattr(coe, name) for name in coe.__all__}
CLASSES = [*filter(inspect.isclass, EXPORTED.values()), PlacedPart, Strategy, VirtualLine]


def place(block):
    return block.place if isinstance(block, Block) else block[0].place


@pytest.fixture
def open_line(tiny, tmp_path, monkeypatch):
    """Return what opens a line in an empty folder, with stand-ins for boards that must be trained first."""
    (tmp_path / "routing_rules").mkdir()
    for name in TRAINED_FIRST:
        text = TINY.replace("board: tiny", f"board: {name}").replace("  C: {", "  R0402-10K: {")
        text = re.sub(r"(\S+): {kind: (\S+),", r"\1: {weights: tiny/\1, kind: \2,", text)
        (tmp_path / "routing_rules" / f"{name}.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def opened(board, **options):
        if all(name in TRAINED_FIRST for name in (board if isinstance(board, list) else [board])):
            return quick((board, tiny[1]), **options)
        return Inspector(board, **options)

    return opened


@pytest.mark.parametrize("program", pages.programs(), ids=place)
def test_a_program_prints_what_its_page_says(open_line, monkeypatch, capsys, program):
    monkeypatch.setattr(coe.inspector.inspector, "Inspector", open_line)
    names = {"__name__": "__main__"}
    with torch.random.fork_rng(devices=[]):
        for block in program:
            exec(compiled(block), names)
            printed = capsys.readouterr().out
            assert doctest.OutputChecker().check_output(block.output, printed, doctest.ELLIPSIS), printed


@pytest.mark.parametrize("shown", CLASSES, ids=lambda shown: shown.__name__)
def test_the_example_of_a_public_class_runs(open_line, capsys, shown):
    cv2.imwrite("R7.png", LIGHT)
    given = (PlacedPart, Strategy, VirtualLine, Cost, Store, SimpleQueue, pools_of, rules_from)
    names = EXPORTED | {one.__name__: one for one in given} | {"Inspector": open_line}
    names["result"] = Result(Request(1, "R0402-10K"), Verdict.OK, (), latency_s=0.1)
    example = doctest.DocTestParser().get_doctest(shown.__doc__, names, shown.__name__, None, None)
    assert example.examples
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(example).failed == 0, capsys.readouterr().out


@pytest.mark.parametrize("block", [block for block in ALL if block.reason], ids=place)
def test_a_program_that_is_not_run_can_be_compiled(block):
    compiled(block)


# A calibration begins as a board file does, and has no components.
BOARDS = [block for block in ALL if block.text.startswith("board:") and "\ncomponents:" in block.text]


@pytest.mark.parametrize("block", BOARDS, ids=place)
def test_a_board_file_can_be_read(block, tmp_path):
    (tmp_path / "board.yaml").write_text(block.text, encoding="utf-8")
    assert rules.load(tmp_path / "board.yaml").components


def compiled(block):
    """Compile a program so that an error names the page and its line."""
    return compile("\n" * (block.line - 1) + block.text, str(block.page), "exec")


DRAWN = runpy.run_path(str(ROOT / "docs" / "draw.py"))
COE = str(Path(coe.__file__).parent) + "/"


@pytest.mark.parametrize("name", sorted(DRAWN["PICTURES"]))
def test_a_picture_is_as_the_code_draws_it(name):
    kept = (ROOT / "docs" / "img" / name).read_text(encoding="utf-8")
    assert kept == DRAWN["PICTURES"][name](), "python docs/draw.py draws it again"


def test_a_picture_whose_expert_is_absent_takes_the_drawn_way(tiny):
    board, store = tiny
    calls = []

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(COE):
            calls.append((threading.current_thread().name, code.co_filename.removeprefix(COE), code.co_qualname))

    threading.setprofile(note)
    try:
        with Inspector(board, store=store, memory="12MB") as line:
            for component in "CAB":  # one of the three is not in memory
                del calls[:]
                sys.setprofile(note)
                future = line.submit(np.zeros((50, 50, 3), np.uint8), component)
                sys.setprofile(None)
                assert future.result(60).verdict is not None
                if any(function == "CpuDevice.load" for _, _, function in calls):
                    break
    finally:
        threading.setprofile(None)
    left = iter(list(calls))
    for thread, file, function, _ in DRAWN["WAY"]:
        step = (thread if thread.startswith("coe-") else "MainThread", file, function)
        assert any(call[0].startswith(step[0]) and call[1:] == step[1:] for call in left), step


# One picture's way through a line, on all threads
