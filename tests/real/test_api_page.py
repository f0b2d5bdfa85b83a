"""The programs of docs/api.md run as they stand, on the small board."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from quick_line import quick

import coe.inspector

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
OUTPUTS = [
    r"OK None 0\.\d+\n",
    r"\['NG', 'NG', 'NG', 'NG', 'NG'\]\n",
    r"(frame \d NG\n){3}",
]


@pytest.mark.parametrize(("program", "output"), [*zip(PROGRAMS, OUTPUTS, strict=True)])
def test_a_program_of_the_page_runs(tiny, monkeypatch, capsys, program, output):
    def open_line(board: str, **options: object) -> coe.inspector.inspector.Inspector:
        assert board == "demo"
        return quick(tiny, **options)

    monkeypatch.setattr(coe.inspector.inspector, "Inspector", open_line)
    exec(compile(program.replace("R0402-10K", "C"), "api.md", "exec"), {})
    assert re.fullmatch(output, capsys.readouterr().out)
