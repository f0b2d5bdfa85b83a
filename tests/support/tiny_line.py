"""A small board of real networks with seeded random weights: three classifiers, one shared detector."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from fake_gpu import FEW, FakeDriver

from coe import Inspector, Picture
from coe.board import rules
from coe.lab.cli import bench
from coe.runtime.cuda import torch_driver, worker
from coe.store import kinds, skeletons
from coe.store.store import Store


class Said(NamedTuple):
    """The exit status of a command, and its output."""

    status: int
    out: str
    err: str

    @property
    def words(self):
        """Standard error as one line, for any width of the window."""
        return " ".join(self.err.split())


Call = Callable[..., Said]
STATED = ("--resize", "letterbox", "--channels", "rgb", "--normalize", "imagenet")
"""Options of import for a file of weights that says nothing of pictures."""


@pytest.fixture
def call(monkeypatch, capsys):
    """Return a function that runs `coe-bench`, or the given module of `coe.cli`, with arguments."""

    def run(*arguments, command=bench):
        monkeypatch.setattr(sys, "argv", ["coe", *(str(argument) for argument in arguments)])
        with pytest.raises(SystemExit) as ended:
            command.main()
        output = capsys.readouterr()
        return Said(int(ended.value.code or 0), output.out, output.err)

    return run


TINY = """
board: tiny
experts:
  body-a: {kind: narrow, labels: [ok, bad], input: 48}
  body-b: {kind: narrow, labels: [ok, bad], input: 48}
  body-c: {kind: narrow, labels: [ok, bad], input: 48}
  joint: {kind: narrow_boxes, labels: [joint, bridge], input: 64, reject: [bridge], then: {none: OK}}
components:
  A: {count: 5, inspect: body-a, then: {ok: joint, bad: joint}}
  B: {count: 3, inspect: body-b, min_score: 0.2, then: {ok: joint, bad: REVIEW}}
  C: {count: 1, inspect: body-c, then: {ok: OK, bad: NG}}
"""


def fill(store, board):
    """Put seeded random weights for all experts of a board into a store."""
    for seed, expert in enumerate(board.experts.values()):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            state = skeletons.skeleton(kinds.resolve(expert.kind), expert, optional=()).state_dict()
        store.put(expert.weights, kind=expert.kind, labels=expert.labels, input_size=expert.input_size, state=state)


@pytest.fixture
def driver(monkeypatch):
    """A fake GPU in the place of the machine's, with few graphs, because it captures at the speed of this processor."""
    monkeypatch.setattr(worker, "SIZES", FEW)
    fake = FakeDriver()
    monkeypatch.setattr(torch_driver, "driver", lambda search_kernels=True: fake)
    return fake


@pytest.fixture(scope="module")
def board(tiny, tmp_path_factory):
    """The tiny board, loaded, and a copy of its store for one module of tests, which may prepare its experts."""
    folder = tmp_path_factory.mktemp("board")
    shutil.copy(tiny[0], folder)
    return rules.load(folder / "tiny.yaml"), Store(shutil.copytree(tiny[1], folder / "store"))


@pytest.fixture
def own_tiny(tiny, tmp_path):
    """A copy of the board's file and the store for one test, which may damage them."""
    board, store = tiny
    return Path(shutil.copy(board, tmp_path)), Path(shutil.copytree(store, tmp_path / "own-store"))


@pytest.fixture(scope="session")
def pictures():
    """Thirty different pictures of noise, with their components in a mixed order."""
    chance = np.random.default_rng(7)
    thirty = []
    for index in range(30):
        height, width = chance.integers(40, 90, 2)
        pixels = chance.integers(0, 255, (height, width, 3), dtype=np.uint8)
        pixels[: height // 2] //= 1 + index % 4
        thirty.append(Picture(pixels, "ABC"[int(chance.integers(0, 3))], "SN1", f"R{index}", f"image{index}"))
    return thirty


@pytest.fixture
def inspect_all(tiny):
    """Return a function that runs pictures through the tiny board's line and gives results by image name, each once."""

    def run(pictures, **options):
        board, store = tiny
        results = {}
        with Inspector(board, store=store, **options) as line:
            for result in line.stream(iter(pictures)):
                assert result.request.image not in results
                results[result.request.image] = result
        assert set(results) == {picture.name for picture in pictures}
        return results

    return run
