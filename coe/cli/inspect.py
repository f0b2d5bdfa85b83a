"""`coe-inspect`: images in, verdicts and pictures of defects out."""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coe import config, images, rules
from coe.cli.common import Exit, application, err, run
from coe.cli.inspect_out import show
from coe.cli.late import LateBoards
from coe.cli.options import (
    AllowKindOption,
    DeviceMemoryOption,
    HostMemoryOption,
    LabelFloorOption,
    MaxWaitOption,
    StoreOption,
    WithinOption,
    times,
)
from coe.cli.progress import RunProgress
from coe.core import Request, Result, Verdict
from coe.errors import ConfigError, LineClosed
from coe.images import Item
from coe.policies.strategies import check_hurry
from coe.policies.strategies import strategy as named_strategy
from coe.precision import check_precision
from coe.report import write_report
from coe.results import ResultsFile
from coe.settings import AUTO
from coe.summary import RunFigures, Summary

if TYPE_CHECKING:
    from coe.inspector import Inspector

app = application("")
REPORT = "report.html"


@app.command()
def inspect(
    board: Annotated[str, typer.Option(help="Board: a name (A, demo, ...) or a YAML file of routing rules.")],
    images_at: Annotated[
        Path,
        typer.Option(
            "--images",
            help="Folder, single image or images.csv. Layouts: <component>/<image>, "
            "<serial>/<refdes>__<component>.<ext>, or a table with the columns path, component, serial, refdes.",
        ),
    ],
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results. Default: runs/<board>/<date-time>.")
    ] = None,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
    strategy: Annotated[
        str, typer.Option(help="How experts are scheduled and evicted: line, coserve, samba, ...; docs/strategies.md")
    ] = config.STRATEGY,
    precision: Annotated[
        str, typer.Option(help="fp32, half, or mixed: for each expert what is quickest. See docs/precision.md.")
    ] = config.PRECISION,
    label_floor: LabelFloorOption = config.LABEL_FLOOR,
    executors: Annotated[
        str | None,
        typer.Option(
            help=f"Workers by device, as cpu=2 or cuda=2,cpu=1. Default: the profile's, else {config.EXECUTORS}."
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help=f"For experts and activations, as 1.5GiB. Default: the profile's, else {config.MEMORY}."),
    ] = None,
    device_memory: DeviceMemoryOption = None,
    host_memory: HostMemoryOption = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each worker. Default: the profile's, else an equal part.")
    ] = None,
    loaded: Annotated[
        float | None,
        typer.Option(
            help="Keep so much memory for experts, as a number of experts of mean size (a memory score); batches have "
            "the rest. Default: the profile's split."
        ),
    ] = None,
    profile: Annotated[
        str, typer.Option(metavar="FILE|none", help="What coe-profile found out. Default: where it puts it.")
    ] = AUTO,
    within: WithinOption = None,
    max_wait: MaxWaitOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out: only what has no result yet is inspected.")
    ] = False,
    max_errors: Annotated[
        int | None, typer.Option(min=0, help="Stop when more images than this could not be inspected.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")] = False,
) -> None:
    """Inspect the images of a board: verdicts, findings and a report with pictures.

    Writes results.jsonl as results come, and results.csv, summary.json and report.html at the end.

    Exit status: 0 all OK; 1 something is NG or to REVIEW; 2 wrong usage or configuration; 3 some images could not
    be inspected; 4 results could not be written; 130 interrupted (go on with --resume).

    Example: coe-inspect --board demo --images build/demo/images --memory 150MB
    """
    if resume and out_dir is None:
        raise ConfigError("--resume needs the folder of the run: give it with --out")
    check_precision(precision, label_floor)
    allowed = times(within, max_wait)
    check_hurry(named_strategy(strategy), max_wait_s=allowed.max_wait_s, within_s=allowed.within_s)
    quiet = quiet or as_json
    known = rules.load(board)
    items, skipped = images.find(images_at, known.components)
    if skipped and not quiet:
        err.print(f"left alone: {len(skipped)} files that are no images, such as {skipped[0].path.name}")
    out_dir = out_dir or Path(config.RUNS_FOLDER, known.board, datetime.now().strftime("%Y%m%d-%H%M%S"))
    source = str(images_at.resolve())
    with ResultsFile(out_dir, board=known.board, fingerprint=known.digest, source=source, resume=resume) as results:
        figures = RunFigures(known.board, strategy, precision=precision)
        run_ = _Run(figures, results, items, max_errors=max_errors, within_s=allowed.within_s, quiet=quiet)
        run_.go(
            known.path,
            store=store,
            memory=memory,
            executors=executors,
            device_memory=device_memory,
            host_memory=host_memory,
            threads=threads,
            loaded=loaded,
            label_floor=label_floor,
            max_wait_s=allowed.max_wait_s,
            allow_kinds=allow_kind or (),
            profile=None if profile == "none" else profile,
        )
        summary = results.finish(items, run_.figures)
        report = out_dir / REPORT
        paths = {item.name: item.path for item in items}
        write_report(report, known.board, results.results, summary, lambda name: images.decode(paths[name]))
    if as_json:
        # Through the stream itself: a console would wrap and colour what a program reads.
        sys.stdout.write(json.dumps({**summary.to_json(), "report": str(report)}) + "\n")
    elif not quiet:
        show(summary, report)
    if run_.stopped:
        err.print(f"stopped before the end; go on with the same command and --out {out_dir} --resume", soft_wrap=True)
    if run_.interrupted:
        raise typer.Exit(Exit.INTERRUPTED)
    raise typer.Exit(_status(summary))


class _Run:
    """One run: feeds the line, writes results, and stops in order when it is told to."""

    def __init__(
        self,
        figures: RunFigures,
        results: ResultsFile,
        items: Sequence[Item],
        *,
        max_errors: int | None,
        within_s: float | None,
        quiet: bool,
    ) -> None:
        self._results, self._max_errors, self._quiet = results, max_errors, quiet
        self._within_s, self._late = within_s, LateBoards()
        self._items = [item for item in items if item.name not in results.done]
        self._line: Inspector | None = None
        self._errors = 0
        self.stopped = False
        self.interrupted = False
        self.figures = replace(figures, started=datetime.now().astimezone().isoformat(timespec="seconds"))

    def go(self, board: Path, *, memory: str | None, **settings: Any) -> None:
        """Inspect what has no result yet, on a line with these settings (see Inspector)."""
        budget = config.parse_bytes(memory or config.MEMORY)
        self.figures = replace(self.figures, budget_bytes=budget)
        todo = [item for item in self._items if item.error is None]
        if todo:
            from coe.inspector import Inspector

            # Before the first result is written: what is wrong with the set-up leaves no trace in the run's folder.
            self._line = Inspector(
                board,
                memory=memory,
                strategy=self.figures.strategy,
                precision=self.figures.precision,
                watchers=[self._late],
                say=self._say,
                **settings,
            )
            self.figures = replace(self.figures, budget_bytes=self._line.budget_bytes)
        for item in self._items:
            if item.error is not None:
                self._write(Result(_request(item), None, (), 0.0, item.error))
        if self._line is not None:
            self._inspect(self._line, todo)

    def _inspect(self, line: Inspector, todo: Sequence[Item]) -> None:
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with line, RunProgress(len(todo), line.metrics, quiet=self._quiet) as progress:
                for result in self._stream(line, todo):
                    if result.error != config.STOPPED:
                        self._write(result)
                        progress.advance(ng=result.verdict is Verdict.NG)
                    for sentence in self._late.sentences():
                        if not self._quiet:
                            err.print(f"[yellow]late:[/] {sentence}", soft_wrap=True)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        seen = line.metrics()
        self.figures = replace(
            self.figures,
            images_per_s=seen.images_per_s,
            switches=seen.switches,
            hit_ratio=seen.hit_ratio,
            peak_reserved_bytes=seen.peak_reserved_bytes,
            peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            wall_s=seen.wall_s,
            drift=tuple(line.drift()),
            interrupted=self.interrupted,
        )

    def _stream(self, line: Inspector, todo: Sequence[Item]) -> Iterator[Result]:
        from coe.inspector import Picture

        def pictures() -> Iterator[Picture]:
            for item in todo:
                if self.stopped:
                    return
                yield Picture(item.path, item.component, item.serial, item.refdes, item.name, within_s=self._within_s)

        try:
            yield from line.stream(pictures())
        except LineClosed:
            # Told to stop between two pictures; what was under way has been answered and is picked up on resume.
            return

    def _write(self, result: Result) -> None:
        self._results.write(result)
        if result.error is not None:
            self._errors += 1
            if not self._quiet:
                err.print(f"[yellow]not inspected:[/] {result.request.image}: {result.error}", soft_wrap=True)
            if self._max_errors is not None and self._errors > self._max_errors:
                self._stop()

    def _stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            if self._line is not None:
                self._line.stop()

    def _on_signal(self, number: int, frame: object) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self._say("stopping: the batch that runs is finished first (once more to stop at once)")
        self._stop()

    def _say(self, sentence: str) -> None:
        if not self._quiet:
            err.print(f"[dim]{sentence}[/]", soft_wrap=True)


def _request(item: Item) -> Request:
    return Request(-1, item.component, item.name, item.serial, item.refdes)


def _status(summary: Summary) -> Exit:
    if summary.total.errors or summary.total.missing:
        return Exit.NOT_INSPECTED
    return Exit.OK if summary.verdict is Verdict.OK else Exit.NOT_GOOD


def main() -> None:
    """Run the command."""
    run(app)
