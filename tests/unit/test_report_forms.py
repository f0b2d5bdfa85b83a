"""A report in a form of a user's own is written beside ours, and none is lost without a word."""

import csv
import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import texts

from coe import plugins
from coe.core import Failure, FailureKind, Finding, Request, Result, Verdict
from coe.errors import ConfigError
from coe.files import DiskFull, NotWritten, Writes, write_atomically
from coe.results.csv_table import COLUMNS, guarded, restored, rows
from coe.results.report import write_report
from coe.results.report_forms import PixelSource, write_reports, writers
from coe.results.run_file import RunUsed
from coe.results.summary import RunFigures, summarise

RESULTS = [Result(Request(0, "R0402", "a.png", "SN1", "R1"), Verdict.NG, (), 0.1)]
FIND = "from coe.results.report_forms import writers; print(*(one.__module__ for one in writers().values()))"


def write(folder: Path, forms: dict[str, Any]) -> None:
    source = PixelSource(lambda name: np.zeros((9, 9, 3), np.uint8))
    summary = summarise(RESULTS, RunFigures("b"))
    writes = Writes()
    write_reports(forms, folder, "b", RESULTS, summary, source, RunUsed("b.yaml", "board: b"), writes)
    writes.check()


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


# results.csv


def table(*results: Result) -> list[list[str]]:
    return list(csv.reader(io.StringIO("".join(rows(results)), newline="")))


def named(image: str, serial: str = "", component: str = "R", refdes: str = "") -> Result:
    return Result(Request(0, component, image, serial, refdes), Verdict.OK, (), 0.25)


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠"])
def test_no_cell_is_a_formula(sign: str) -> None:
    text = f"{sign}cmd|' /C calc'!A0"
    finding = Finding(text, "fp32", "ok", 1.0)
    failed = Result(Request(0, text, text, text, text), None, (finding,), 0.0, Failure(FailureKind.RUN, text))
    heads, row = table(failed)
    assert tuple(heads) == COLUMNS
    cells = [cell for name, cell in zip(COLUMNS, row, strict=True) if name not in ("verdict", "latency_s", "late")]
    assert all(cell.startswith("'" + sign) for cell in cells)
    assert restored(row[0]) == text


@pytest.mark.parametrize(
    "name", ["a\rb", "a\nb", "a\r\nb", 'a"b', "a,b", "a\r", "\r", "\n", "a;b", "a\tb", "a\x85b", "a\x0bb"]
)
def test_a_name_never_splits_a_row(name: str, tmp_path: Path) -> None:
    write_atomically(tmp_path / "t.csv", rows([named(name, "SN1"), named("after")]))
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        _, first, second = csv.reader(file)
    assert (restored(first[0]), first[1], second[0]) == (name, "SN1", "after")
    # A reader that takes a carriage return outside quotes for the end of a row finds none there.
    text = (tmp_path / "t.csv").read_bytes().decode()
    outside = "".join(part for at, part in enumerate(text.split('"')) if at % 2 == 0)
    assert "\r" not in outside


@given(st.text(alphabet=st.sampled_from("'=+-@\t\r\nab ＝"), max_size=6))
def test_every_name_is_given_back(text: str) -> None:
    assert restored(guarded(text)) == text


@given(texts(8), texts(8))
def test_two_names_never_share_a_cell(one: str, other: str) -> None:
    assert (guarded(one) == guarded(other)) == (one == other)


@pytest.mark.parametrize("name", ["R0402", "SN1/R1__R0402.png", "'quoted'", "a=b", " =1", "1-2"])
def test_an_ordinary_name_stays_as_it_is(name: str) -> None:
    assert table(named(name))[1][0] == name


def test_a_column_names_the_board_where_there_are_several() -> None:
    of_board = {name: replace(named("i"), request=Request(0, "R", "i", board=name)) for name in ("a", "b")}
    assert tuple(table(of_board["a"])[0]) == COLUMNS
    heads, *rest = table(of_board["a"], of_board["b"])
    assert tuple(heads) == (*COLUMNS, "board")
    assert [row[-1] for row in rest] == ["a", "b"]
