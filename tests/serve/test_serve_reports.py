"""Reports of a time: tables that a spreadsheet reads and does not run, and a PDF that other programs open."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from serve_rows import accepted, decision, late, ng
from serving import Served
from tiny_line import TINY

from coe.results.csv_table import restored
from coe.serve.clock import now_us
from coe.serve.database import board_rows, call_rows, decisions, recipe_versions, verifications
from coe.serve.database.verifications import NewVerification
from coe.serve.enums import Outcome
from coe.serve.gate import report_routes
from coe.serve.recipe_content import RecipeContent
from coe.serve.statistics import report_pdf
from coe.serve.statistics.report_pdf import ReportContent, in_fonts
from coe.serve.statistics.trend import Bar
from coe.serve.statistics.yields import Unit, figure

NAMES = ("=HYPERLINK(1)", "Ü-7", 'a"b,c', "R$1$")


def table(answer: object, separator: str = ",") -> list[dict[str, str]]:
    text = answer.content.decode("utf-8-sig")  # type: ignore[attr-defined]
    return list(csv.DictReader(io.StringIO(text), delimiter=separator))


@pytest.fixture
def worked(served: Served) -> Served:
    """A gate with a board for each name, of which people answered one call."""
    with served.database.writing() as connection:
        content = RecipeContent(rules=TINY).model_dump(mode="json")
        version = recipe_versions.add(connection, "tiny2", content, by="ann", now_us=now_us())
        for number, name in enumerate(NAMES):
            board = accepted(connection, f"k{number}", serial=name)
            connection.execute(
                board_rows.board.update().where(board_rows.board.c.id == board.id).values(recipe_id=version.id)
            )
            found = board_rows.get(connection, board.id)
            assert found is not None
            decisions.write(connection, decision(found, ng(name), late("R9"), at_us=now_us()))
        call = call_rows.of_component(connection, 1, NAMES[0])
        assert call is not None
        word = NewVerification(Outcome.CONFIRMED, now_us(), "op", "=said", "note\nof two lines")
        verifications.record_verification(connection, call, word)
    return served


def test_calls_are_a_table_with_the_newest_answers(worked: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_routes, "TOGETHER", 3)
    local = worked.gate.config.model_copy(update={"zone": "Asia/Tokyo"})
    worked.gate.config = local
    answer = worked.engineer.get("/api/v1/reports/calls.csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = table(answer)
    assert len(rows) == 2 * len(NAMES)
    assert [restored(row["serial"]) for row in rows[::2]] == list(NAMES)
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row.values())
    assert (rows[0]["outcome"], rows[0]["by"], restored(rows[0]["said_label"])) == ("confirmed", "op", "=said")
    assert rows[0]["decided"].endswith("+09:00")
    assert ZoneInfo("Asia/Tokyo").key == worked.gate.config.local.zone
    assert worked.operator.get("/api/v1/reports/calls.csv").status_code == 403
    assert table(worked.engineer.get("/api/v1/reports/calls.csv?recipe=tiny")) == []


def test_figures_are_a_table_with_their_bounds(worked: Served) -> None:
    rows = {row["name"]: row for row in table(worked.operator.get("/api/v1/reports/figures.csv"))}
    assert (rows["raw_fpy"]["value"], rows["raw_fpy"]["events"], rows["raw_fpy"]["trials"]) == ("0.0", "0", "4")
    assert rows["dpmo"]["missing"] == "1 of 8 answered"
    assert rows["dpmo"]["value"] == ""
    assert float(rows["dpmo"]["lower"]) < float(rows["dpmo"]["upper"])
    semicolons = {"separator": ";"}
    figures = table(worked.operator.get("/api/v1/reports/figures.csv", params=semicolons), ";")
    assert [one["lower"].replace(",", ".") for one in figures] == [row["lower"] for row in rows.values()]
    assert (figures[0]["value"], figures[0]["definition"]) == ("0,0", rows["raw_fpy"]["definition"])
    calls = table(worked.engineer.get("/api/v1/reports/calls.csv", params=semicolons), ";")
    assert (restored(calls[4]["serial"]), calls[4]["version"]) == ('a"b,c', "1")
    assert worked.operator.get("/api/v1/reports/figures.csv", params={"separator": "|"}).status_code == 400


def test_a_report_is_a_pdf(worked: Served) -> None:
    answer = worked.operator.get("/api/v1/reports/report.pdf?by=refdes")
    assert answer.headers["content-type"] == "application/pdf"
    assert answer.content.startswith(b"%PDF-")
    assert answer.content.rstrip().endswith(b"%%EOF")


def test_names_of_any_script_are_drawn_without_a_complaint() -> None:
    """Warnings are errors here; what no font of the machine has is written as its code."""
    names = ("线路-电容", "مقاومة", "R😀", "ギ抵抗")
    bars = [Bar(name, 2, 1, 1, 0, 0, 1.0) for name in names]
    assert report_pdf.draw(ReportContent("工場: 早番", "", [], [], "label", bars)).startswith(b"%PDF-")
    assert in_fonts("Ü7\U0001fffe")[0] == "Ü7\\U0001fffe"  # no character, so that no font has it


def test_a_pdf_is_opened_by_another_program_with_its_words(tmp_path: Path) -> None:
    program = shutil.which("pdftotext")
    if program is None:
        pytest.skip("there is no pdftotext here; install Debian's package `poppler-utils`")
    fpy = figure("raw_fpy", "Raw first-pass yield", Unit.PERCENT, "", 99, 100, "")
    many = figure("dpmo", "Defects per million opportunities", Unit.PPM, "", 123, 10_000, "")
    bars = [Bar(name, 2, 1, 1, 0, 0, 1.0) for name in NAMES]
    content = ReportContent("aoi-1: shift early", "2026-03-01", ["100 boards decided"], [fpy, many], "refdes", bars)
    file = tmp_path / "report.pdf"
    file.write_bytes(report_pdf.draw(content))
    text = subprocess.run([program, "-layout", file, "-"], check=True, capture_output=True, text=True).stdout
    for word in ("shift early", "100 boards decided", "99 %", "12,300 ppm", "Ü-7", "R$1$"):
        assert word in text
    empty = ReportContent("aoi-1", "", [], [], "label", [])
    assert report_pdf.draw(empty).startswith(b"%PDF-")
