"""docs/own-board.md from photographs to a better expert, with photographs that the project draws: fewer than there."""

import shlex
from pathlib import Path

import pages
import pytest

from apps.demo import own_photographs
from coe.board import rules
from coe.cli import board_command, experts_command, inspect
from coe.store.store import Store

PAGE = pages.ROOT / "docs" / "own-board.md"
MODULES = {"coe-board": board_command, "coe-experts": experts_command, "coe-inspect": inspect}
ELSEWHERE = ("## From a placement file", "## Boards without fiducials")
"""Sections that need pictures of whole boards; test_own_board.py and test_whole_boards.py draw them."""


def commands():
    lines = []
    text = PAGE.read_text(encoding="utf-8").splitlines()
    for block in pages.blocks(PAGE):
        heading = next(line for line in range(block.line - 1, -1, -1) if text[line].startswith("## "))
        if not block.language and text[heading] not in ELSEWHERE:
            lines += block.text.splitlines()
    return [shlex.split(line) for line in lines]


@pytest.mark.slow
def test_the_page_can_be_followed(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    statuses = {}
    for words in commands():
        if words[0] == "python":
            assert words[1:3] == ["-m", "apps.demo.own_photographs"]
            own_photographs.main(["--to", "photos", "--component", "Y3225-25M", "--good", "14", "--bad", "6"])
            continue
        if words[:2] == ["coe-board", "new"]:
            words.remove("--run")  # its commands stand on the page, too
        if words[:2] == ["coe-experts", "choose"]:
            words += ["--kinds", "probe"]
        said = call(*words[1:], command=MODULES[words[0]])
        name = words[1] if words[0] == "coe-experts" else words[0]
        statuses.setdefault(name, []).append(said.status)
        assert said.status in (0, 1), f"{shlex.join(words)}: {said.err}"
    assert statuses.keys() == {"coe-board", "split", "choose", "evaluate", "coe-inspect", "calibrate", "train"}
    for name in ("coe-board", "split", "choose", "train"):
        assert set(statuses[name]) == {0}, name
    loaded = rules.load("routing_rules/line8.yaml")
    assert set(loaded.components) == {"Y3225-25M"}
    assert Store(None).manifest("line8/Y3225-25M").version == 2, "learned, and learned again"
    for page in ("line8/evaluation.html", "line8/run/report.html", "line8/shift1/report.html"):
        assert Path(page).is_file(), page
