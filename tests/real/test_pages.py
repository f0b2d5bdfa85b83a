"""The programs of README and docs run as they stand, and print what the page says; their board files can be read.

So do the examples of public classes. Lines of boards that must be trained first run on small boards that have
components of the same names.
"""

import doctest
import inspect
import re
from queue import SimpleQueue

import cv2
import pages
import pytest
import torch
from pages import Block
from quick_line import LIGHT, quick
from tiny_line import TINY

import coe.inspector
from coe import Inspector, Request, Result, Verdict
from coe.board import rules
from coe.board.parts_list import PlacedPart
from coe.scheduler.costs import Cost
from coe.scheduler.strategies import Strategy
from coe.store.store import Store
from coe.testing import VirtualLine, pools_of, rules_from

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


def test_no_program_and_no_comment_is_passed_over():
    texts = [page.read_text(encoding="utf-8") for page in pages.PAGES]
    python = [block for block in ALL if block.language == "python"]
    assert sum(text.count("```python") for text in texts) == len(python) > 0
    assert sum(text.count("<!-- not run") for text in texts) == sum(block.reason is not None for block in python)
    shown = sum(text.count("<!-- prints") + text.count("```text") for text in texts)
    assert shown == sum(block.output != "" for block in python)


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
