"""`coe-inspect`: inspect images with the experts of a board, and report the verdicts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from coe import config
from coe.board import rules
from coe.board.rules import Rules
from coe.cli.common import Exit, application, err, out, point_out, run
from coe.cli.console import COLOURS, styled, table_of
from coe.cli.options import OnLine, Options, WithinOption, add, option, seconds
from coe.cli.placing import Placing, expected_of, foreseen, notes, refuse_unanswerable, warnings_of
from coe.config import counted
from coe.core import FULL, Verdict
from coe.errors import ConfigError, list_few
from coe.inspector.line_options import Door, LineOptions
from coe.pictures import photographs
from coe.results.summary import OutcomeCounts, Summary
from coe.scheduler.strategies import check_hurry

if TYPE_CHECKING:
    from coe.pictures.photographs import Skipped
    from coe.placement.board_layout import Layout
    from coe.placement.run_source import Source
    from coe.runs.inspection import InspectionRun
    from coe.runs.watch import Watching

REPORT = "report.html"


class WatchOptions(Options):
    """The options of `--watch`."""

    watch: Path | None = option(
        "Instead of --images: inspect pictures as they arrive in this folder, until Ctrl-C. The same command "
        "resumes the run.",
        metavar="FOLDER",
    )
    settle: str = option(
        "With --watch: how long size and time of a file must stay unchanged before it is judged. A file "
        "renamed from an upload name (R1.png.part, .R1.png.x7) is judged at once.",
        "2s",
        hidden=True,
    )
    quiet_time: str = option(
        "With --watch: close an incomplete board after this long without a new picture of it. Boards that --parts "
        "or --expect shows to be complete are closed at once.",
        "30s",
        hidden=True,
    )
    done: Path | None = option("With --watch: move judged pictures to this folder.", metavar="FOLDER")
    until_idle: str | None = option(
        "With --watch: stop after this long without a new picture, e.g. 10min. Default: never.", hidden=True
    )

    def watching(self) -> Watching | None:
        """Return what to watch; None without `--watch`. Raises ConfigError."""
        from coe.runs.watch import Watching

        watch, done = self.watch, self.done
        if watch is None:
            if done is not None or self.until_idle is not None:
                raise ConfigError("--done and --until-idle need --watch FOLDER")
            return None
        if done is not None and done.resolve().is_relative_to(watch.resolve()):
            raise ConfigError(
                f"--done {done} lies in the watched folder, so it would be inspected again; choose another"
            )
        times = seconds(self.settle) or 0.0, seconds(self.quiet_time) or 0.0
        return Watching(watch, *times, done, seconds(self.until_idle))


class Inspect(Placing, WatchOptions, OnLine):
    """Inspect the images of a board; write verdicts, findings and a report with pictures.

    Each result is written to results.jsonl at once. The end of the run writes results.csv, summary.json and
    report.html.

    Exit status: 0 all OK; 1 some NG or REVIEW; 2 wrong usage or configuration; 3 some images could not be inspected; 4
    results could not be written; 130 interrupted (use --resume).

    Example: coe-inspect --board demo --images build/demo/images --memory 150MB
    """

    door = Door.INSPECT

    board: str = option("Board: a name (A, demo, ...) or a YAML file of rules.", ...)
    images_at: Path | None = option(
        "An image, images.csv (columns path, component, serial, refdes, reference, sha256), or a folder: "
        "<component>/<image> or <serial>/<refdes>__<component>.<ext>. With --recipe, the name of a picture is "
        "the serial of its board.",
        None,
        "--images",
    )
    bits: int | None = option(
        "Significant bits of 16-bit samples, e.g. 12. Default: `bits` of the board file, otherwise from the picture.",
        min=config.MIN_SAMPLE_BITS,
        max=config.MAX_SAMPLE_BITS,
        hidden=True,
    )
    out_dir: Path | None = option("Folder for the results. Default: runs/<board>/<date-time>.", None, "--out")
    within: WithinOption = None
    expect: str | None = option(
        "counts: a board is REVIEW if it has fewer pictures of a component than `count` in the board file.",
        metavar="counts",
    )
    resume: bool = option("Resume the run in --out: inspect only images without a verdict.", False)
    max_errors: int | None = option("Stop if more than this many images could not be inspected.", min=0, hidden=True)
    as_json: bool = option("Print the summary as JSON on standard output.", False, "--json")
    quiet: bool = option("No progress and no tables.", False, "--quiet", "-q")

    def run(self) -> Exit:  # noqa: PLR0915
        layout, watching = self.layout(), self.watching()
        at, resume = _place(self.images_at, watching), self.resume or watching is not None
        if resume and self.out_dir is None and watching is None:
            raise ConfigError("--resume needs the folder of the run: give it with --out")
        # Here, so that the help comes at once.
        from coe.cli.run_view import RunView
        from coe.inspector import weights_used
        from coe.placement.run_source import ArrivingSource
        from coe.results.records import ResultsFile
        from coe.results.report import write_report
        from coe.results.report_cards import PixelSource
        from coe.results.summary import RunFigures
        from coe.runs import inspection
        from coe.runs.inspection import InspectionRun
        from coe.runs.watch import WatchRun

        within_s, quiet = seconds(self.within), self.quiet or self.as_json
        board = rules.load(self.board)
        bits = board.bits if self.bits is None else self.bits
        expected = expected_of(board, layout, self.parts, self.expect)
        options = LineOptions.of(board.path, **self.line)
        options = options.but(parts=foreseen(expected, options))
        check_hurry(options.strategy, within_s=within_s)
        named, out_dir = _out(at, watching, board, self.out_dir)
        source = _source(at, watching, board, layout, bits)
        if watching is None:
            refuse_unanswerable(expected, source.items)
        if not quiet:
            _tell(layout, source.skipped)
        manifests = weights_used.manifests_of(board, options.store)
        identity = inspection.identity_of(board, options, manifests, named, layout, expected, bits)
        variants = inspection.variants_of(board, options, manifests, identity)
        placed = () if expected is None else expected.parts
        used = inspection.used_of(board, manifests, options.store, placed)
        with ResultsFile(out_dir, identity, resume=resume, used=used) as results:
            learned = () if layout or watching else photographs.learned_among(at, source.items)
            warnings = (*weights_used.warnings(board, manifests, placed), *warnings_of(layout), *learned)
            figures = RunFigures(board.board, options.strategy.name, precision=options.precision, warnings=warnings)
            view, most = RunView(quiet=quiet), self.max_errors
            if watching is not None and isinstance(source, ArrivingSource):
                run_: InspectionRun = WatchRun(figures, results, source, watching, view, expected, within_s, most)
            else:
                run_ = InspectionRun(
                    figures, results, source.items, partial(source.feed, within_s=within_s), view, most
                )
            results.writes.attempt(results.path, lambda: run_.go(options, variants))
            items, skipped = source.items, source.skipped
            summary = results.finish(
                items,
                run_.figures,
                expected=expected,
                empty=[entry.serial for entry in skipped if entry.serial],
                left_alone=[photographs.printable(entry.path.relative_to(at).as_posix()) for entry in skipped],
            )
            report = out_dir / REPORT
            references = inspection.references_of(items, board, options.store, identity.references, bits)
            pictures = PixelSource(results.unchanged(source.pixels, items), references, source.view)
            try:
                rendered = partial(write_report, report, board.board, results.results, summary, pictures, used=used)
                results.writes.attempt(report, rendered)
            finally:  # the verdicts are there, with or without files
                written = report if report in results.writes.written else None
                status = _ended(run_, summary, out_dir, written, as_json=self.as_json, quiet=quiet)
            results.writes.check()
        return status


app = application("")
add(app, Inspect)


def _place(images_at: Path | None, watching: Watching | None) -> Path:
    """Return where the images lie; raises ConfigError."""

    if images_at is not None and watching is None:
        return photographs.file_at(images_at.parent, images_at.name)
    if watching is None or images_at is not None:
        raise ConfigError("give --images PATH, or --watch FOLDER for a folder that fills")
    return watching.folder


def _out(at: Path, watching: Watching | None, board: Rules, out_dir: Path | None) -> tuple[Path, Path]:
    """Return by which path a run knows its images, and the run's folder; raises ConfigError."""
    from coe.results.run_file import RUN

    # A folder that fills may be away now, or lie elsewhere behind its link.
    named = at.resolve() if watching is None else Path(os.path.abspath(at))
    name = datetime.now().strftime("%Y%m%d-%H%M%S") if watching is None else named.name
    out_dir = out_dir or Path(config.RUNS_FOLDER, board.board, name)
    if watching is not None and not at.is_dir() and not (out_dir / RUN).exists():
        raise ConfigError(f"{at}: no such folder; --watch needs an existing folder")
    return named, out_dir


def _source(at: Path, watching: Watching | None, board: Rules, layout: Layout | None, bits: int | None) -> Source:
    """Return the images of a path, or of a folder that fills; raises ConfigError."""
    from coe.pictures.filling import WatchedFolder
    from coe.placement.run_source import ArrivingSource, source_of

    if watching is not None:
        return ArrivingSource(WatchedFolder(watching.folder, watching.done), board, layout, bits)
    return source_of(at, board, layout, bits)


def _ended(
    run_: InspectionRun, summary: Summary, folder: Path, report: Path | None, *, as_json: bool, quiet: bool
) -> Exit:
    """Tell how a run ended; `report` is None if it could not be written."""

    if as_json:
        # Directly to the stream: a console would wrap and colour text that a program reads.
        sys.stdout.write(json.dumps({**summary.to_json(), "report": report and str(report)}) + "\n")
    elif not quiet:
        show(summary, report)
    if run_.stopped:
        err.print(f"stopped early; resume with the same command and --out {folder} --resume")
    return Exit.INTERRUPTED if run_.interrupted else _status(summary)


def _tell(layout: Layout | None, skipped: Sequence[Skipped]) -> None:
    for note in [] if layout is None else notes(layout):
        err.print(note)
    if skipped:
        others = counted(len(skipped), "file that is not an image", "files that are not images")
        err.print(f"skipped: {others}, such as {skipped[0].path.name}")


def _status(summary: Summary) -> Exit:
    if summary.total.errors or summary.total.missing:
        return Exit.NOT_INSPECTED
    return Exit.OK if summary.verdict is Verdict.OK else Exit.NOT_GOOD


main = partial(run, app)


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
        f"{counted(total.images, 'image')} in {run_.wall_s:.1f} s ({run_.images_per_s:.1f} images/s): {total.ok} OK, "
        f"{total.ng} NG, {total.review} REVIEW, {total.errors} not inspected; {run_.switches} switches, peak "
        f"{config.format_bytes(run_.peak_reserved_bytes)} of {config.format_bytes(run_.budget_bytes)}"
    )
    out.print(_completeness(summary))
    boards = f"board FPY {_share(summary.boards_ok, summary.boards_decided, 'boards')}; " if summary.boards else ""
    bare = (
        f"; {counted(summary.without_serial, 'image')} without a serial, on no board" if summary.without_serial else ""
    )
    out.print(f"{boards}good images {_share(total.ok, total.images, 'images')}{bare}")
    if run_.precision != FULL or summary.looks.escalated:
        out.print(f"precision {run_.precision}: {summary.looks}")
    if skipped := summary.skipped_boards:
        names = list_few(skipped, _NAMED)
        sentence = f"not inspected because of bad marks: {counted(len(skipped), 'board')}, {names}"
        point_out("skipped", sentence, out)
    if summary.late:
        boards = f", of {counted(len(summary.late_boards), 'board')}" if summary.late_boards else ""
        late = f"{counted(summary.late, 'result')} after the due time{boards}"
        point_out("late", late, out)
    if run_.pace >= config.PACE_STEP:
        slower = (
            f"at the end batches took {run_.pace:.2g} times as long as measured: does another program use the cores?"
        )
        point_out("slower", slower, out)
    if drifted := [drift for drift in run_.drift if abs(drift.by) >= config.DRIFT]:
        shares = ", ".join(f"{drift.expert} {drift.estimated:.1%} ({drift.rules:.1%})" for drift in drifted)
        out.print(f"images need these experts more or less often than the rules expect (in brackets): {shares}")
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
    lack = f" pictures are missing of {counted(len(summary.incomplete), 'board')}, by {summary.completeness}: {few}"
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
    colour = COLOURS[verdict]
    counted = (counts.ok, counts.ng, counts.review, counts.errors, *((counts.absent,) if absent else ()))
    numbers = [str(number) if number else "·" for number in counted]
    return [str(counts.images), *numbers, Text(verdict, colour)]
