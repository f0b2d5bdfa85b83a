"""`coe-inspect`: inspects images, and writes verdicts and pictures of defects."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from coe import config, plugins
from coe.board import rules
from coe.board.router import GIVEN
from coe.board.rules import Rules
from coe.cli.common import Exit, application, err, run
from coe.cli.expecting import ExpectOption, PartsOption, expected_of, foreseen, refuse_unanswerable
from coe.cli.inspect_out import show
from coe.cli.inspect_run import InspectionRun
from coe.cli.inspect_source import source_of
from coe.cli.options import (
    AllowKindOption,
    DeviceMemoryOption,
    HostMemoryOption,
    LabelFloorOption,
    MaxWaitOption,
    SearchKernelsOption,
    StoreOption,
    WithinOption,
    above_zero,
    times,
)
from coe.cli.placing import (
    BottomAngleOption,
    BottomXOption,
    DialectOption,
    PlacementsOption,
    RecipeOption,
    UnitsOption,
    layout_of,
    notes,
    warnings_of,
)
from coe.core import Verdict
from coe.errors import ConfigError, StoreError
from coe.inspector import fitting
from coe.inspector.line_config import AUTO, AskedSettings, LineConfig
from coe.inspector.weights_used import expert_digests, manifests_of, reference_digests, usable_variants
from coe.pictures import finding, table_paths
from coe.pictures.finding import FoundImage
from coe.results.records import ResultsFile
from coe.results.report import PixelSource, ReferencePicture, write_report
from coe.results.run_file import RunIdentity
from coe.results.summary import RunFigures, Summary
from coe.scheduler.strategies import check_hurry
from coe.scheduler.strategies import strategy as named_strategy
from coe.store.references import References
from coe.store.store import Store

app = application("")
REPORT = "report.html"


@app.command()
def inspect(  # noqa: PLR0913
    board: Annotated[str, typer.Option(help="Board: a name (A, demo, ...) or a YAML file of routing rules.")],
    images_at: Annotated[
        Path,
        typer.Option(
            "--images",
            help="A folder, a single image or images.csv. Layouts of a folder: <component>/<image>, "
            "<serial>/<refdes>__<component>.<ext>. Columns of images.csv: path, component, serial, refdes, reference, "
            "sha256. With --placements each picture is a whole board, and its name is the serial.",
        ),
    ],
    placements: PlacementsOption = None,
    dialect: DialectOption = None,
    units: UnitsOption = None,
    recipe: RecipeOption = None,
    bottom_x: BottomXOption = None,
    bottom_angle: BottomAngleOption = None,
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
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
    strategy: Annotated[
        str,
        typer.Option(help="How experts are scheduled and evicted: line, coserve, samba, ... See docs/strategies.md."),
    ] = config.STRATEGY,
    precision: Annotated[
        str, typer.Option(help="fp32, half, or mixed (for each expert the quickest precision). See docs/precision.md.")
    ] = config.PRECISION,
    label_floor: LabelFloorOption = config.LABEL_FLOOR,
    executors: Annotated[
        str | None,
        typer.Option(
            help=f"Parallel workers by device, as cpu=2 or cuda=2,cpu=1. Default: the profile's, or {config.EXECUTORS}."
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help=f"Memory for experts and activations, as 1.5GiB. Default: the profile's, or {config.MEMORY}."
        ),
    ] = None,
    device_memory: DeviceMemoryOption = None,
    host_memory: HostMemoryOption = None,
    search_kernels: SearchKernelsOption = True,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=config.MAX_THREADS,
            help="Threads of each worker. Default: the profile's, or an equal share of the cores that are free.",
        ),
    ] = None,
    loaded: Annotated[
        float | None,
        typer.Option(
            max=config.MAX_LOADED,
            callback=above_zero,
            help="Memory for experts, as a number of experts of mean size; batches have the rest. "
            "Default: the profile's split.",
        ),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            metavar="FILE|none",
            help="The file that coe-profile wrote, or none. Default: the file where coe-profile writes.",
        ),
    ] = AUTO,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="auto|HOST:PORT",
            help="Inspect on all machines of a Ray cluster that this machine is a part of: auto, or the address of its "
            "head node. See docs/cluster.md. Default: this machine alone.",
        ),
    ] = None,
    within: WithinOption = None,
    max_wait: MaxWaitOption = None,
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
    if resume and out_dir is None:
        raise ConfigError("--resume needs the folder of the run: give it with --out")
    allowed = times(within, max_wait)
    quiet = quiet or as_json
    loaded_board = rules.load(board)
    bits = loaded_board.bits if bits is None else bits
    layout = layout_of(placements, dialect, units, recipe, bottom_x, bottom_angle)
    expected = expected_of(loaded_board, layout, parts, expect)
    line_config = LineConfig(
        board=loaded_board.path,
        store=Store(store),
        asked=AskedSettings.parsed(
            memory=memory,
            executors=executors,
            threads=threads,
            loaded=loaded,
            device_memory=device_memory,
            host_memory=host_memory,
            search_kernels=search_kernels,
            profile=None if profile == "none" else profile,
        ),
        strategy=named_strategy(strategy),
        precision=precision,
        label_floor=label_floor,
        max_wait_s=allowed.max_wait_s,
        parts=foreseen(expected, strategy, cluster),
        allowed_kinds=plugins.packages(allow_kind or ()),
        cluster=cluster,
    )
    check_hurry(line_config.strategy, within_s=allowed.within_s)
    images_at = table_paths.at(images_at.parent, images_at.name)
    source = source_of(images_at, loaded_board, layout, bits)
    items, skipped = source.items, source.skipped
    refuse_unanswerable(expected, items)
    for note in [] if layout is None or quiet else notes(layout):
        err.print(note, soft_wrap=True)
    if skipped and not quiet:
        err.print(f"skipped: {len(skipped)} files that are not images, such as {skipped[0].path.name}")
    out_dir = out_dir or Path(config.RUNS_FOLDER, loaded_board.board, datetime.now().strftime("%Y%m%d-%H%M%S"))
    manifests = manifests_of(loaded_board, line_config.store)
    identity = RunIdentity(
        loaded_board.board,
        loaded_board.digest,
        str(images_at.resolve()),
        strategy,
        precision,
        label_floor,
        expert_digests(loaded_board, manifests, precision),
        reference_digests(loaded_board, line_config.store),
        layout.digest if layout is not None else "",
        expected.digest if expected is not None and layout is None else "",
        bits,
    )

    def variants(devices: Collection[str]) -> Collection[str]:
        identity.refuse_changes(
            loaded_board.path,
            expert_digests(loaded_board, manifests_of(loaded_board, line_config.store), precision),
            reference_digests(loaded_board, line_config.store),
        )
        return usable_variants(loaded_board, manifests, precision, label_floor, devices)

    with ResultsFile(out_dir, identity, resume=resume) as results:
        warnings = (*fitting.unproven(loaded_board, manifests), *warnings_of(layout))
        figures = RunFigures(loaded_board.board, strategy, precision=precision, warnings=warnings)
        feed = partial(source.feed, within_s=allowed.within_s)
        run_ = InspectionRun(figures, results, items, max_errors=max_errors, feed=feed, quiet=quiet)
        run_.go(line_config, variants)
        empty = [entry.serial for entry in skipped if entry.serial]
        left_alone = [finding.printable(entry.path.relative_to(images_at).as_posix()) for entry in skipped]
        summary = results.finish(items, run_.figures, expected=expected, empty=empty, left_alone=left_alone)
        report = out_dir / REPORT
        pictures = PixelSource(
            source.pixels, _references(items, loaded_board, store, identity.references, bits), source.view
        )
        write_report(report, loaded_board.board, results.results, summary, pictures)
    if as_json:
        # Directly to the stream: a console would wrap and colour text that a program reads.
        sys.stdout.write(json.dumps({**summary.to_json(), "report": str(report)}) + "\n")
    elif not quiet:
        show(summary, report)
    if run_.stopped:
        err.print(f"stopped before the end; go on with the same command and --out {out_dir} --resume", soft_wrap=True)
    if run_.interrupted:
        raise typer.Exit(Exit.INTERRUPTED)
    raise typer.Exit(_status(summary))


def _references(
    items: Sequence[FoundImage], board: Rules, store: Path | None, checksums: Mapping[str, str], bits: int | None = None
) -> Callable[[str], ReferencePicture | None]:
    """Return a function that gives an image's reference.

    `checksums` are those of the references that the run used, by id; `bits` of 16-bit samples count. A reference that
    was replaced meanwhile is not shown: no picture was compared with it.
    """
    by_name, references = {item.name: item for item in items}, References(Store(store))

    def reference(name: str) -> ReferencePicture | None:
        item = by_name[name]
        id = board.components[item.component].reference
        if item.reference is not None:
            return ReferencePicture(finding.decode(item.reference, bits=bits))
        if not id or id == GIVEN:
            return None
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


def main() -> None:
    """Run the command."""
    run(app)
