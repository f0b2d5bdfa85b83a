"""The summary that `coe-inspect` prints at its end: the worst first; the report has the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text

from coe import config
from coe.cli.common import out, point_out
from coe.cli.console import styled, table_of
from coe.core import FULL, Verdict
from coe.errors import list_few
from coe.results.summary import OutcomeCounts, Summary

_COLOURS = {Verdict.OK: "green", Verdict.NG: "bold red", Verdict.REVIEW: "yellow"}
_NAMED = 10
"""The most serials that a sentence names."""
_LISTED = 40
"""The most boards, or components, that a table on the terminal shows."""


def show(summary: Summary, report: Path | None) -> None:
    """Print the tables by component and by board, the counts, and where the report lies, if there is one."""
    out.print(_table("component", summary.components))
    out.print()
    if summary.boards:
        out.print(_table("board", summary.boards))
        out.print()
    run_, total = summary.run, summary.total
    out.print(
        f"{total.images} images in {run_.wall_s:.1f} s ({run_.images_per_s:.1f} images/s): {total.ok} OK, "
        f"{total.ng} NG, {total.review} REVIEW, {total.errors} not inspected; {run_.switches} switches, peak "
        f"{config.format_bytes(run_.peak_reserved_bytes)} of {config.format_bytes(run_.budget_bytes)}"
    )
    out.print(_completeness(summary))
    boards = f"board FPY {_share(summary.boards_ok, summary.boards_decided, 'boards')}; " if summary.boards else ""
    bare = f"; {summary.without_serial} images have no serial and belong to no board" if summary.without_serial else ""
    out.print(f"{boards}good images {_share(total.ok, total.images, 'images')}{bare}")
    if run_.precision != FULL or summary.looks.escalated:
        out.print(f"precision {run_.precision}: {summary.looks}")
    if skipped := summary.skipped_boards:
        names = list_few(skipped, _NAMED)
        sentence = f"{len(skipped)} boards with bad marks were not inspected: {names}"
        point_out("skipped", sentence, out)
    if summary.late:
        boards = f", of {len(summary.late_boards)} boards" if summary.late_boards else ""
        late = f"{summary.late} results came after they were due{boards}"
        point_out("late", late, out)
    if run_.pace >= config.PACE_STEP:
        slower = (
            f"at the end batches took {run_.pace:.2g} times as long as measured: does something else use the cores?"
        )
        point_out("slower", slower, out)
    if drifted := [drift for drift in run_.drift if abs(drift.by) >= config.DRIFT]:
        shares = ", ".join(f"{drift.expert} {drift.estimated:.1%} ({drift.rules:.1%})" for drift in drifted)
        out.print(f"images need these experts more or less often than the rules say (in brackets): {shares}")
    for warning in run_.warnings:
        point_out("warning", warning, out)
    if report is not None:
        out.print(f"report: {report}")


def _completeness(summary: Summary) -> Text:
    """Return the sentence that says whether each part has a picture."""
    if not summary.completeness:
        return styled(("completeness was not checked:", "yellow"), f" {summary.unchecked} (--parts, --expect counts)")
    if not summary.incomplete:
        return styled((f"each part has a picture, by {summary.completeness}", ""))
    boards = (f"{serial or 'no serial'} ({list_few(places, _NAMED)})" for serial, places in summary.incomplete.items())
    few = list_few(boards, _NAMED)
    lack = f" {len(summary.incomplete)} boards lack pictures, by {summary.completeness}: {few}"
    return styled(("incomplete:", "yellow"), lack)


def _share(good: int, counted: int, of: str) -> str:
    """Write a share with its counts; "not known" if nothing was counted."""
    return f"{config.percent(good / counted)} ({good} of {counted} {of})" if counted else f"not known (no {of} decided)"


def _table(first: str, counted: Mapping[str, OutcomeCounts]) -> Table:
    absent = any(counts.absent for counts in counted.values())
    last = ("no picture", "verdict") if absent else ("verdict",)
    table = table_of(first, "images", "OK", "NG", "REVIEW", "errors", *last, left=[first])
    # The worst first if the table cannot list all; the report lists all.
    listed = list(counted.items())
    if len(listed) > _LISTED:
        listed = sorted(listed, key=lambda named: -named[1].verdict.severity)[:_LISTED]
    for name, counts in listed:
        table.add_row(name, *_cells(counts, absent))
    if len(counted) > len(listed):
        table.add_row(Text(f"... {len(counted) - len(listed)} more, see the report", "dim"))
    return table


def _cells(counts: OutcomeCounts, absent: bool) -> list[str | Text]:
    verdict = counts.verdict
    colour = _COLOURS[verdict]
    counted = (counts.ok, counts.ng, counts.review, counts.errors, *((counts.absent,) if absent else ()))
    numbers = [str(number) if number else "·" for number in counted]
    return [str(counts.images), *numbers, Text(verdict, colour)]
