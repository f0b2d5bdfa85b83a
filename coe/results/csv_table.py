"""`results.csv`: the results for a spreadsheet. No cell is a formula, and no cell breaks a row.

A spreadsheet runs a cell that begins with `=`, `+`, `-` or `@` (or their wide forms, a tab, a line break) as a formula:
the name of a file could run commands on the machine of the person who opens the table. Such a cell gets an apostrophe
in front (OWASP, "CSV Injection"). So does a cell with apostrophes before such a character, so that every name can be
told from its cell. `results.jsonl` has all names unchanged.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator

from coe.core import Result
from coe.results.summary import several

COLUMNS = ("image", "serial", "component", "refdes", "verdict", "findings", "latency_s", "late", "error")
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")


def rows(results: Iterable[Result]) -> Iterator[str]:
    """Yield the table as text: a line of headings, then a row for each result.

    A last column names the board (`Request.board`) where the results are of several.
    """
    results = list(results)
    products = several(result.request for result in results)
    yield row((*COLUMNS, "board") if products else COLUMNS)
    for result in results:
        request = result.request
        findings = " > ".join(
            f"{finding.expert}={finding.label} {finding.score:.3f}"
            + (f" ({len(finding.boxes)} boxes)" if finding.boxes else "")
            + (f" ({finding.reading})" if finding.reading else "")
            + (f" ({finding.doubt})" if finding.doubt else "")
            for finding in result.findings
        )
        verdict = result.verdict.value if result.verdict else ""
        latency = "" if math.isnan(result.latency_s) else f"{result.latency_s:.6f}"
        place = (request.image, request.serial, request.component, request.refdes)
        cells = (*place, verdict, findings, latency, "late" if result.late else "", result.error or "")
        yield row((*cells, request.board) if products else cells)


def guarded(text: str) -> str:
    """Return a text as a cell that no spreadsheet runs as a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def row(cells: Iterable[str]) -> str:
    """Return a row of the table as a line; no cell of it is a formula."""
    text = io.StringIO()
    # With this line end the writer quotes cells that contain a carriage return or a line feed.
    csv.writer(text, lineterminator="\r\n").writerow([guarded(cell) for cell in cells])
    return text.getvalue().removesuffix("\r\n") + "\n"
