"""The pictures of the house are those that the code draws, and the way of a picture is the one that it takes."""

import runpy
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pages import ROOT

import coe
from coe import Inspector

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
            calls.append((threading.current_thread().name, code.co_filename.removeprefix(COE), qualified(frame)))

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


def qualified(frame):
    """Return the name of a function with that of its class."""
    name = frame.f_code.co_qualname
    return str(name)


# One picture's way through a line, on all threads


HERE = Path(coe.__file__).parents[1]
OURS = tuple(f"{HERE / folder}/" for folder in ("coe", "experts"))
PIXELS = np.random.default_rng(0).integers(0, 255, (60, 60, 3), dtype=np.uint8)


def _ours(frame):
    """Return the file of ours that a frame runs in, or the nearest that led to it."""
    while frame is not None and not frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename.removeprefix(f"{HERE}/")


class Way:
    """Counts calls between files, by caller and callee, as long as it `counts`."""

    def __init__(self):
        self.counts = False
        self.calls = Counter()

    def __call__(self, frame, event, argument):
        if self.counts and event == "call" and frame.f_code.co_filename.startswith(OURS):
            self.calls[_ours(frame.f_back), _ours(frame)] += 1

    @property
    def files(self):
        return {callee for _, callee in self.calls}

    @property
    def moves(self):
        return sum(number for (caller, callee), number in self.calls.items() if caller != callee)


@pytest.fixture
def way():
    """What all threads that begin from now on, and the calling thread, do."""
    seen, before = Way(), sys.getprofile()
    threading.setprofile(seen)
    sys.setprofile(seen)
    yield seen
    sys.setprofile(before)
    threading.setprofile(before)


@pytest.mark.parametrize(
    ("memory", "most_files", "most_moves"),
    [pytest.param("100MB", 37, 170, id="resident"), pytest.param("12MB", 55, 380, id="absent")],
)
def test_a_picture_takes_few_files_and_few_moves_between_them(way, tiny, memory, most_files, most_moves):
    board, store = tiny
    ways = []
    with Inspector(board, store=store, memory=memory, executors="cpu=1", profile=None) as line:
        for component in "ABC" * 2:
            assert line.submit(PIXELS, component).result(60).error is None
        # The least of several: a load that is foreseen may begin in the midst of one.
        for _ in range(5):
            if memory == "12MB":  # C's expert leaves for the others
                for component in "AB":
                    assert line.submit(PIXELS, component).result(60).error is None
            assert line.drain(60)
            way.calls.clear()
            way.counts = True
            assert line.submit(PIXELS, "C").result(60).error is None
            sys.setprofile(None)
            assert line.drain(60)
            way.counts = False
            sys.setprofile(way)
            ways.append((way.moves, len(way.files), sorted(way.files)))
    moves, files, names = min(ways)
    assert "coe/scheduler/controller.py" in names, "the control thread was not seen"
    assert ("coe/runtime/reading.py" in names) == (memory == "12MB")
    assert files <= most_files, f"{files} files: {', '.join(names)}"
    assert moves <= most_moves, f"{moves} moves"
