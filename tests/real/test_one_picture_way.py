"""One picture's way through a line whose expert is resident, on all threads: how many files a reader follows."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import coe
from coe import Inspector

HERE = Path(coe.__file__).parents[1]
OURS = tuple(f"{HERE / folder}/" for folder in ("coe", "experts"))
MOST_FILES, MOST_MOVES = 40, 180
PIXELS = np.random.default_rng(0).integers(0, 255, (60, 60, 3), dtype=np.uint8)


def _ours(frame: FrameType | None) -> str:
    """Return the file of ours that a frame runs in, or the nearest that led to it."""
    while frame is not None and not frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename.removeprefix(f"{HERE}/")


class Way:
    """Counts calls between files, by caller and callee, as long as it `counts`."""

    def __init__(self) -> None:
        self.counts = False
        self.calls: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self.counts and event == "call" and frame.f_code.co_filename.startswith(OURS):
            self.calls[_ours(frame.f_back), _ours(frame)] += 1

    @property
    def files(self) -> set[str]:
        return {callee for _, callee in self.calls}

    @property
    def moves(self) -> int:
        return sum(number for (caller, callee), number in self.calls.items() if caller != callee)


@pytest.fixture
def way() -> Iterator[Way]:
    """What all threads that begin from now on, and the calling thread, do."""
    seen, before = Way(), sys.getprofile()
    threading.setprofile(seen)
    sys.setprofile(seen)
    yield seen
    sys.setprofile(before)
    threading.setprofile(before)


def test_a_picture_takes_few_files_and_few_moves_between_them(way: Way, tiny: tuple[Path, Path]) -> None:
    board, store = tiny
    ways: list[tuple[int, int, list[str]]] = []
    with Inspector(board, store=store, memory="100MB", executors="cpu=1", profile=None) as line:
        for component in "ABC" * 2:
            assert line.submit(PIXELS, component).result(60).error is None
        assert line.ready(60)
        # The least of several: a load that is foreseen may begin in the midst of one.
        for _ in range(5):
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
    assert files <= MOST_FILES, f"{files} files: {', '.join(names)}"
    assert moves <= MOST_MOVES, f"{moves} moves"
