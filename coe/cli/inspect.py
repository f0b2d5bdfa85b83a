"""`coe-inspect`: inspects images, and writes verdicts and pictures of defects."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coe import config
from coe.board import rules
from coe.board.rules import Rules
from coe.cli.common import Exit, application, err, run
from coe.cli.options import WithinOption, seconds, takes, takes_line_options
from coe.cli.placing import (
    ExpectOption,
    PartsOption,
    expected_of,
    foreseen,
    layout_of,
    notes,
    refuse_unanswerable,
    warnings_of,
)
from coe.cli.watching import Watching, watching_of
from coe.config import counted
from coe.core import Result, Verdict
from coe.errors import ConfigError, StoreError
from coe.inspector.line_arguments import LineArguments
from coe.inspector.line_options import LineOptions
from coe.inspector.option import Door
from coe.scheduler.strategies import check_hurry
from coe.store.store_reader import StoreReader

if TYPE_CHECKING:
    from coe.cli.inspect_run import InspectionRun
    from coe.cli.inspect_source import Source
    from coe.pictures.finding import FoundImage, Skipped
    from coe.placement.board_layout import Layout
    from coe.results.report_forms import ReferencePicture
    from coe.results.summary import Summary

app = application("")
REPORT = "report.html"


@app.command()
@takes("layout", layout_of)
@takes("watching", watching_of)
@takes_line_options(Door.INSPECT)
def inspect(  # noqa: PLR0913, PLR0915
    board: Annotated[str, typer.Option(help="Board: a name (A, demo, ...) or a YAML file of routing rules.")],
    images_at: Annotated[
        Path | None,
        typer.Option(
            "--images",
            help="A folder, a single image or images.csv. Layouts of a folder: <component>/<image>, "
            "<serial>/<refdes>__<component>.<ext>. Columns of images.csv: path, component, serial, refdes, reference, "
            "sha256. With --placements each picture is a whole board, and its name is the serial.",
        ),
    ] = None,
    *,
    layout: Layout | None,
    watching: Watching | None,
    bits: Annotated[
        int | None,
        typer.Option(
            min=config.MIN_SAMPLE_BITS,
            max=config.MAX_SAMPLE_BITS,
            help="How many low bits count of 16-bit samples: 12 for a camera of 12 bits. Default: `bits` of the board "
            "file, else what a picture says.",
        ),
    ] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results. Default: runs/<board>/<date-time>.")
    ] = None,
    line: LineArguments,
    within: WithinOption = None,
    parts: PartsOption = None,
    expect: ExpectOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out: inspect only images that have no result yet.")
    ] = False,
    max_errors: Annotated[
        int | None, typer.Option(min=0, help="Stop when more than so many images could not be inspected.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")] = False,
) -> None:
    """Inspect the images of a board; write verdicts, findings and a report with pictures.

    Writes results.jsonl as results come, and results.csv, summary.json and report.html at the end.

    Exit status: 0 all OK; 1 some verdicts are NG or REVIEW; 2 wrong usage or configuration; 3 some images could not
    be inspected; 4 results could not be written; 130 interrupted (go on with --resume).

    Example: coe-inspect --board demo --images build/demo/images --memory 150MB
    """
    at, resume = _place(images_at, watching), resume or watching is not None
    if resume and out_dir is None and watching is None:
        raise ConfigError("--resume needs the folder of the run: give it with --out")
    # Here, so that the help comes at once.
    from coe.cli import inspect_identity
    from coe.cli.arriving_source import ArrivingSource
    from coe.cli.inspect_run import InspectionRun, RunManner
    from coe.cli.inspect_watch import WatchRun
    from coe.inspector import weights_used
    from coe.pictures import finding, photo_split
    from coe.results.records import ResultsFile
    from coe.results.report_forms import PixelSource, write_reports, writers
    from coe.results.summary import RunFigures

    within_s = seconds(within)
    quiet = quiet or as_json
    loaded_board = rules.load(board)
    bits = loaded_board.bits if bits is None else bits
    expected = expected_of(loaded_board, layout, parts, expect)
    options = LineOptions.of(loaded_board.path, **line)
    options = options.but(parts=foreseen(expected, options))
    check_hurry(options.strategy, within_s=within_s)
    named, out_dir = _out(at, watching, loaded_board, out_dir)
    source = _source(at, watching, loaded_board, layout, bits)
    if watching is None:
        refuse_unanswerable(expected, source.items)
    if not quiet:
        _tell(layout, source.skipped)
    manifests = weights_used.manifests_of(loaded_board, options.store)
    identity = inspect_identity.identity_of(loaded_board, options, manifests, named, layout, expected, bits)
    variants = inspect_identity.variants_of(loaded_board, options, manifests, identity)
    forms = writers()
    placed = () if expected is None else expected.parts
    used = inspect_identity.used_of(loaded_board, manifests, options.store, placed)
    with ResultsFile(out_dir, identity, resume=resume, used=used) as results:
        learned = () if layout or watching else photo_split.learned_among(at, source.items)
        warnings = (*weights_used.warnings(loaded_board, manifests, placed), *warnings_of(layout), *learned)
        figures = RunFigures(loaded_board.board, options.strategy.name, precision=options.precision, warnings=warnings)
        shown = RunManner(max_errors=max_errors, quiet=quiet)
        if watching is not None and isinstance(source, ArrivingSource):
            run_: InspectionRun = WatchRun(figures, results, source, watching, shown, expected, within_s)
        else:
            run_ = InspectionRun(figures, results, source.items, partial(source.feed, within_s=within_s), shown)
        results.writes.attempt(results.path, lambda: run_.go(options, variants))
        items, skipped = source.items, source.skipped
        left_alone = [finding.printable(entry.path.relative_to(at).as_posix()) for entry in skipped]
        summary = results.finish(
            items,
            run_.figures,
            expected=expected,
            empty=[entry.serial for entry in skipped if entry.serial],
            left_alone=left_alone,
        )
        report = out_dir / REPORT
        pictures = PixelSource(
            source.pixels, _references(items, loaded_board, options.store, identity.references, bits), source.view
        )
        try:
            write_reports(forms, out_dir, loaded_board.board, results.results, summary, pictures, used, results.writes)
        finally:  # the verdicts are there, with or without files
            written = report if report in results.writes.written else None
            status = _ended(run_, summary, out_dir, written, as_json=as_json, quiet=quiet)
        results.writes.check()
    raise typer.Exit(status)


def _place(images_at: Path | None, watching: Watching | None) -> Path:
    """Return where the images lie; raises ConfigError."""
    from coe.pictures import image_table

    if images_at is not None and watching is None:
        return image_table.file_at(images_at.parent, images_at.name)
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
        raise ConfigError(f"{at}: there is no such folder; --watch needs a folder that is there when a run begins")
    return named, out_dir


def _source(at: Path, watching: Watching | None, board: Rules, layout: Layout | None, bits: int | None) -> Source:
    """Return the images of a path, or of a folder that fills; raises ConfigError."""
    from coe.cli.arriving_source import ArrivingSource
    from coe.cli.inspect_source import source_of
    from coe.pictures.watched_folder import WatchedFolder

    if watching is not None:
        return ArrivingSource(WatchedFolder(watching.folder, watching.done), board, layout, bits)
    return source_of(at, board, layout, bits)


def _ended(
    run_: InspectionRun, summary: Summary, folder: Path, report: Path | None, *, as_json: bool, quiet: bool
) -> Exit:
    """Tell how a run ended; `report` is None if it could not be written."""
    from coe.cli.inspect_out import show

    if as_json:
        # Directly to the stream: a console would wrap and colour text that a program reads.
        sys.stdout.write(json.dumps({**summary.to_json(), "report": report and str(report)}) + "\n")
    elif not quiet:
        show(summary, report)
    if run_.stopped:
        err.print(f"stopped before the end; go on with the same command and --out {folder} --resume")
    return Exit.INTERRUPTED if run_.interrupted else _status(summary)


def _tell(layout: Layout | None, skipped: Sequence[Skipped]) -> None:
    for note in [] if layout is None else notes(layout):
        err.print(note)
    if skipped:
        others = counted(len(skipped), "file that is no image", "files that are no images")
        err.print(f"skipped: {others}, such as {skipped[0].path.name}")


def _references(
    items: Sequence[FoundImage], board: Rules, store: StoreReader, checksums: Mapping[str, str], bits: int | None = None
) -> Callable[[Result], ReferencePicture | None]:
    """Return a function that gives the reference that an image was compared with."""
    # `checksums` are those of the references that the run used, by id; `bits` of 16-bit samples count. A reference that
    # was replaced meanwhile is not shown: no picture was compared with it.
    from coe.pictures import finding
    from coe.results.report_forms import ReferencePicture
    from coe.store.reference_reader import ReferenceReader

    by_name, references = {item.name: item for item in items}, ReferenceReader(store)

    def reference(result: Result) -> ReferencePicture | None:
        item = by_name[result.request.image]
        ids = board.components[item.component].references
        if item.reference is not None:
            return ReferencePicture(finding.decode(item.reference, bits=bits))
        if not ids:
            return None
        id = next((one.reference for one in result.findings if one.reference in ids), ids[0])
        manifest = references.manifest(id)
        if manifest.checksum != checksums[id]:
            raise StoreError(f"reference '{id}' was replaced after the run began")
        encoded = references.read(manifest)
        image, spread = finding.decode(encoded.image), finding.decode(encoded.spread)[:, :, 0]
        return ReferencePicture(image, spread, f"{id}, version {manifest.version}", manifest.checksum)

    return reference


def _status(summary: Summary) -> Exit:
    if summary.total.errors or summary.total.missing:
        return Exit.NOT_INSPECTED
    return Exit.OK if summary.verdict is Verdict.OK else Exit.NOT_GOOD


main = partial(run, app)
