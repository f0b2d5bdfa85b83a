"""A real line that knows its boards' parts, and a real line whose pools still fill."""

import numpy as np
import pytest

from coe import Inspector
from coe.board.parts_list import PlacedPart
from coe.cli import inspect
from coe.errors import ConfigError
from coe.scheduler.events import Why, single_steps
from coe.testing import Experiment


def picture():
    return np.zeros((50, 50, 3), np.uint8)


def test_experts_are_loaded_before_their_images_come(tiny, tmp_path):
    board, store = tiny
    path = tmp_path / "parts.csv"
    path.write_text("refdes,component\nP0,A\nP1,B\nP2,C\n", encoding="utf-8")
    with Inspector(
        board, store=store, parts=path, experiment=Experiment(loaded=2, keep_trace=True), profile=None, threads=1
    ) as line:
        assert line.ready(60)
        for serial in ("S1", "S2"):
            for index, component in enumerate("ABC"):
                result = line.submit(picture(), component, serial=serial, refdes=f"P{index}").result(60)
                assert result.error is None
        commands = [c for _, event, answer in line.trace for _, part in single_steps(event, answer) for c in part]
    assert any(getattr(command, "why", None) is Why.SPECULATIVE for command in commands)
    metrics = line.metrics()
    assert 0 < metrics.speculated <= metrics.switches


def test_a_list_of_another_board_is_refused_at_once(tiny, tmp_path, call):
    board, store = tiny
    with pytest.raises(ConfigError, match="names 1 component that board 'tiny' does not have: 'Z'"):
        Inspector(board, store=store, parts=[PlacedPart("Z", "R1")])
    with pytest.raises(ConfigError, match="give the path of a parts list, or a list of PlacedPart"):
        Inspector(board, store=store, parts=[("R1", "A")])
    (tmp_path / "parts.csv").write_text("refdes,component\nR1,Z\n", encoding="utf-8")
    images = tmp_path / "A"
    images.mkdir()
    (images / "one.png").write_bytes(b"")
    said = call(
        "--board", board, "--store", store, "--images", tmp_path, "--parts", tmp_path / "parts.csv", command=inspect
    )
    assert said.status == 2
    assert "the parts list names 1 component that board 'tiny' does not have: 'Z'" in said.words
