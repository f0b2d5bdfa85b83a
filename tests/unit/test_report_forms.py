"""A report in a form of a user's own is written beside ours, and none is lost without a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coe import plugins
from coe.core import Request, Result, Verdict
from coe.errors import ConfigError
from coe.files import DiskFull, NotWritten
from coe.results.report import write_report
from coe.results.report_forms import PixelSource, write_reports, writers
from coe.results.run_file import RunUsed
from coe.results.summary import RunFigures, summarise

RESULTS = [Result(Request(0, "R0402", "a.png", "SN1", "R1"), Verdict.NG, (), 0.1)]
FIND = "from coe.results.report_forms import writers; print(*(one.__module__ for one in writers().values()))"


def write(folder: Path, forms: dict[str, Any]) -> None:
    source = PixelSource(lambda name: np.zeros((9, 9, 3), np.uint8))
    summary = summarise(RESULTS, RunFigures("b"))
    write_reports(forms, folder, "b", RESULTS, summary, source, RunUsed("b.yaml", "board: b"))


def count(path: Path, board: str, results: Any, summary: Any, source: PixelSource, *, used: RunUsed) -> None:
    path.write_text(f"{board} {summary.total.ng} {source.image(results[0].request.image).shape[0]} {used.board_file}")


def fail(path: Path, *_: object, **__: object) -> None:
    sys.exit("no licence")


def fill(path: Path, *_: object, **__: object) -> None:
    raise DiskFull(f"{path}: there is no room")


def test_each_form_is_written_with_all_of_a_run(tmp_path: Path) -> None:
    write(tmp_path, {"html": write_report, "txt": count})
    assert (tmp_path / "report.txt").read_text() == "b 1 9 b.yaml"
    assert "SN1" in (tmp_path / "report.html").read_text()


def test_those_that_fail_are_named_together_and_cost_no_other(tmp_path: Path) -> None:
    with pytest.raises(NotWritten) as lost:
        write(tmp_path, {"docx": fail, "none": lambda *_, **__: None, "pdf": fail, "txt": count})
    assert [
        word for word in ("report.docx", "report.none", "report.pdf", "no licence") if word not in str(lost.value)
    ] == []
    assert [path.name for path in tmp_path.iterdir()] == ["report.txt"]
    with pytest.raises(DiskFull):
        write(tmp_path, {"csv": fill, "html": write_report})
    assert (tmp_path / "report.html").is_file()
    with pytest.raises(NotWritten) as both:
        write(tmp_path, {"csv": fill, "docx": fail})
    assert [word for word in ("report.csv", "report.docx") if word not in str(both.value)] == []


def test_an_installed_package_brings_its_form(tmp_path: Path) -> None:
    (tmp_path / "theirs-1.dist-info").mkdir()
    (tmp_path / "theirs-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (tmp_path / "theirs-1.dist-info" / "entry_points.txt").write_text("[coe.reports]\npdf = theirs:write\n")
    (tmp_path / "theirs.py").write_text("def write(): pass\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", FIND], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["coe.results.report", "theirs"]


def test_no_run_goes_without_its_report_where_entry_points_are_older_than_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugins, "names", lambda group: [])
    with pytest.raises(ConfigError, match="install"):
        writers()
