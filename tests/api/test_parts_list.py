"""A real line that knows its boards' parts, and a real line whose pools still fill."""

import numpy as np
import pytest

from coe import Inspector
from coe.board.parts_list import PlacedPart
from coe.errors import ConfigError
from coe.scheduler.events import Why, single_steps
from coe.testing import Experiment


def test_experts_are_loaded_before_their_images_come(tiny, tmp_path):
    path, picture = tmp_path / "parts.csv", np.zeros((50, 50, 3), np.uint8)
    path.write_text("refdes,component\nP0,A\nP1,B\nP2,C\n", encoding="utf-8")
    given = {"store": tiny[1], "parts": path, "profile": None, "threads": 1}
    with Inspector(tiny[0], experiment=Experiment(loaded=2, keep_trace=True), **given) as line:
        assert line.ready(60)
        for serial in ("S1", "S2"):
            for index, component in enumerate("ABC"):
                assert line.submit(picture, component, serial=serial, refdes=f"P{index}").result(60).error is None
        commands = [c for _, event, answer in line.trace for _, part in single_steps(event, answer) for c in part]
    assert any(getattr(command, "why", None) is Why.SPECULATIVE for command in commands)
    metrics = line.metrics()
    assert 0 < metrics.speculated <= metrics.switches


@pytest.mark.parametrize("parts", [[PlacedPart("Z", "R1")], [("R1", "A")]])
def test_a_list_of_another_board_or_of_something_else_is_refused_at_once(tiny, parts):
    with pytest.raises(ConfigError, match=r"'tiny' .*'Z'|PlacedPart"):
        Inspector(tiny[0], store=tiny[1], parts=parts)
