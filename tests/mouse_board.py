"""A small board for tests of workloads and traces: two experts, one behind the other."""

from pathlib import Path

import pytest

from coe import config
from coe.board import rules
from coe.board.rules import Rules

BOARD = """
board: mouse
experts:
  joints: {kind: yolov5m, labels: [joint, bridge], input: 320, reject: [bridge], then: {none: OK}}
  body: {kind: resnet18, labels: [ok, bad], input: 224, then: {ok: joints, bad: NG}}
components:
  R-1K: {count: 12, inspect: body}
  C-1U: {count: 3, inspect: joints}
"""


def found_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Rules:
    """Write the board where names of boards are looked up, and return it."""
    (folder / "mouse.yaml").write_text(BOARD)
    monkeypatch.setenv(config.RULES_VARIABLE, str(folder))
    return rules.load("mouse")
