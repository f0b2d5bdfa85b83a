"""The report of a run writes the marks that `coe-experts learn` reads: in a real browser, from a file."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from coe.core import Finding, Heat, Likeness, Request, Result, Verdict
from coe.results import marks
from coe.results.report import write_report
from coe.results.report_cards import PixelSource
from coe.results.run_file import RunUsed
from coe.results.summary import RunFigures, summarise

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.slow
NAMES = ("SN1/R1__L.png", 'SN1/R2"é__L.png')


def test_what_is_pressed_in_the_report_is_a_file_of_marks(tmp_path):
    if (program := shutil.which("chromium")) is None:
        pytest.skip("there is no chromium here; install Debian's package `chromium`")
    likeness = Likeness(8, bytes(3 * 8 * 8), (0.0, 0.0, 20.0, 20.0))
    finding = Finding("lamp", "fp32", "dark", 0.9, heat=Heat(2, 2, bytes(4)), likeness=likeness)
    results = [Result(Request(0, "L", name, "SN1", name[4:6]), Verdict.NG, (finding,), 0.1) for name in NAMES]
    source = PixelSource(lambda name: np.full((40, 40, 3), 90, np.uint8))
    report = tmp_path / "report.html"
    write_report(report, "b", results, summarise(results, RunFigures("b")), source, used=RunUsed("b.yaml", "board: b"))
    with playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        said = []
        page.on("console", lambda message: said.append(message.text))
        page.goto(report.as_uri())
        for place, word in enumerate(("good", "bad")):
            page.locator(".marking").nth(place).get_by_text(word).click()
        page.locator(".marking").nth(1).get_by_text("good").click()
        with page.expect_download() as download:
            page.locator("#save").click()
        download.value.save_as(tmp_path / marks.MARKS)
        page.locator(".marking").nth(0).get_by_text("good").click()  # taken back
        assert page.locator("#save").text_content() == "Save marks.jsonl (1)"
        page.set_viewport_size({"width": 1280, "height": 800})
        page.locator(".marking").nth(0).scroll_into_view_if_needed()
        page.screenshot(path=tmp_path / "report.png")
        page.set_viewport_size({"width": 360, "height": 800})
        tops = [one.bounding_box()["y"] for one in page.locator(".card").first.locator(".shown").all()]
        assert tops == [*sorted(tops[:3]), tops[2]], "what is most unlike stands beside what is most like it"
        browser.close()
    assert said == []
    assert [(mark.image, mark.label, mark.component) for mark in marks.read(tmp_path)] == [
        (NAMES[0], "good", "L"),
        (NAMES[1], "good", "L"),
    ]
