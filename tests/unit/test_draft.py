"""The draft of a board file loads, and lets nothing pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from coe.board import drafting, rules
from coe.core import NOTHING, Expert, Finding, Verdict
from coe.errors import RulesError

EXPERTS = [
    Expert("body", "resnet18", ("ok", "no", "1", "a: b", "schräg, 'x'"), 64, "b/body"),
    Expert("0402", "onnx", ("joint",), 320, "b/0402"),
]


def test_every_label_of_a_draft_means_review(tmp_path: Path) -> None:
    (path := tmp_path / "b.yaml").write_text(text := drafting.draft_of("b", EXPERTS), encoding="utf-8")
    board = rules.load(path)
    board.check_detectors(board.experts)
    assert text.count("TODO") > 4
    for expert in EXPERTS:
        read, component = board.experts[expert.id], board.components[expert.id]
        assert (read.kind, read.labels, read.input_size) == (expert.kind, expert.labels, expert.input_size)
        for label in (*expert.labels, NOTHING):
            said = board.router.next(component.root, Finding(expert.id, "fp32", label, 1.0))
            assert said.verdict is Verdict.REVIEW


def test_names_that_no_board_file_has_are_refused() -> None:
    with pytest.raises(RulesError):
        drafting.draft_of("b", [Expert("OK", "resnet18", ("ok",), 64, "b/OK")])
