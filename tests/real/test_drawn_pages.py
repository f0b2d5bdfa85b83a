"""The pictures of the house are those that the code draws, and the way of a picture is the one that it takes."""

from __future__ import annotations

import runpy
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
from pages import ROOT

import coe
from coe import Inspector

DRAWN = runpy.run_path(str(ROOT / "docs" / "draw.py"))
COE = str(Path(coe.__file__).parent) + "/"


@pytest.mark.parametrize("name", sorted(DRAWN["PICTURES"]))
def test_a_picture_is_as_the_code_draws_it(name: str) -> None:
    kept = (ROOT / "docs" / "img" / name).read_text(encoding="utf-8")
    assert kept == DRAWN["PICTURES"][name](), "python docs/draw.py draws it again"


def test_a_picture_whose_expert_is_absent_takes_the_drawn_way(tiny: tuple[Path, Path]) -> None:
    board, store = tiny
    calls: list[tuple[str, str, str]] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        code: CodeType = frame.f_code
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
        threading.setprofile(None)  # type: ignore[arg-type]
    left = iter(list(calls))
    for thread, file, function, _ in DRAWN["WAY"]:
        step = (thread if thread.startswith("coe-") else "MainThread", file, function)
        assert any(call[0].startswith(step[0]) and call[1:] == step[1:] for call in left), step


def qualified(frame: FrameType) -> str:
    """Return the name of a function with that of its class."""
    name: Any = frame.f_code.co_qualname  # type: ignore[attr-defined]
    return str(name)
