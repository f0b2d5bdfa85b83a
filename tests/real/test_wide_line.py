"""Pictures of a 12-bit camera on a line: the board file, a call and `coe-inspect --bits` say how many bits count."""

import json

import cv2
import numpy as np
import pytest

from coe import FailureKind, Inspector, Picture
from coe.cli import inspect

FRAME = cv2.GaussianBlur(np.random.default_rng(1).integers(0, 4096, (60, 80, 3), np.uint16), (5, 5), 0)
NARROW = (FRAME >> 4).astype(np.uint8)
OPTIONS = {"memory": "200MB", "executors": "cpu=1", "profile": None}


def scores(result):
    assert result.failure is None, result.failure
    return [finding.score for finding in result.findings]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "images" / "A" / "wide.png"
    path.parent.mkdir(parents=True)
    assert cv2.imwrite(str(path), FRAME)
    return path


def test_a_call_or_the_board_says_how_many_bits_count(tiny, file, tmp_path):
    board, store = tiny
    with Inspector(board, store=store, **OPTIONS) as line:
        wanted = scores(line.submit(NARROW, "A").result(30))
        assert scores(line.submit(FRAME, "A", bits=12).result(30)) == wanted
        assert scores(line.submit(file, "A", bits=12).result(30)) == wanted
        assert scores(next(line.stream([Picture(file, "A", bits=12)]))) == wanted
        assert scores(line.submit(file, "A", bits=16).result(30)) != wanted
        for unsaid in (file, FRAME):
            failure = line.submit(unsaid, "A").result(30).failure
            assert failure.kind is FailureKind.IMAGE
            assert "bits=12" in failure.reason
    said = tmp_path / "said.yaml"
    said.write_text(board.read_text().replace("board: tiny", "board: tiny\nbits: 12"))
    with Inspector(said, store=store, **OPTIONS) as line:
        assert scores(line.submit(FRAME, "A").result(30)) == wanted
        assert scores(line.submit(file.read_bytes(), "A").result(30)) == wanted
        assert scores(line.submit(NARROW, "A").result(30)) == wanted
        assert scores(line.submit(FRAME * 16, "A", bits=16).result(30)) == wanted


def test_the_command_takes_bits_and_a_run_keeps_to_them(tiny, file, tmp_path, call):
    board, store = tiny
    given = ["--board", board, "--store", store, "--images", file.parent.parent, "--memory", "200MB"]
    given += ["--profile", "none", "--out", tmp_path / "out"]
    assert call(*given, command=inspect).status == 3
    assert call(*given, "--resume", "--bits", 12, command=inspect).status == 2
    assert call(*given[:-1], tmp_path / "said", "--bits", 12, command=inspect).status in (0, 1)
    (line,) = (tmp_path / "said" / "results.jsonl").read_text().splitlines()
    assert json.loads(line)["verdict"] is not None
    assert call(*given, "--bits", 17, command=inspect).status == 2
