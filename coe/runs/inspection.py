"""A run over images that are there: what it is known by, and its images through a line."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import coe
from coe import config
from coe.board import calibration_file
from coe.board.completeness import Expected
from coe.board.parts_list import PlacedPart
from coe.board.rules import Rules
from coe.core import FailureKind, Request, Result, Verdict
from coe.errors import LineClosed, StoreError, shortened
from coe.helpers.ending import EndingSignals
from coe.helpers.system import peak_resident_bytes
from coe.inspector.line_options import LineOptions
from coe.inspector.weights_used import exam_rows, expert_digests, manifests_of, reference_digests, usable_variants
from coe.pictures.decoding import decode
from coe.pictures.photographs import Photograph
from coe.pictures.picture_file import FileStamp
from coe.placement.board_layout import Layout
from coe.results.closing_boards import ClosedBoard
from coe.results.metrics import Metrics
from coe.results.records import ResultsFile
from coe.results.report_cards import ReferencePicture
from coe.results.run_file import RunIdentity, RunUsed, UsedVersion
from coe.results.summary import RunFigures, is_skipped
from coe.scheduler.events import Command, Event, Late, Lost, PaceChanged
from coe.store.manifest import Manifest
from coe.store.reference_reader import ReferenceReader
from coe.store.store_reader import StoreReader

if TYPE_CHECKING:
    from coe.inspector.inspector import Picture
    from coe.inspector.line import Line


def identity_of(
    board: Rules,
    options: LineOptions,
    manifests: Mapping[str, Manifest],
    images_at: Path,
    layout: Layout | None,
    expected: Expected | None,
    bits: int | None,
) -> RunIdentity:
    """Return what must be the same for a run to go on."""
    return RunIdentity(
        board.board,
        board.digest,
        str(images_at),
        options.strategy.name,
        options.precision,
        expert_digests(board, manifests, options.precision),
        reference_digests(board, options.store),
        layout.digest if layout is not None else "",
        expected.digest if expected is not None and layout is None else "",
        bits,
    )


def used_of(
    board: Rules, manifests: Mapping[str, Manifest], store: StoreReader, parts: Sequence[PlacedPart] = ()
) -> RunUsed:
    """Return what a run is made with; `parts` are those that are asked for, if it is known."""
    references = [ReferenceReader(store).manifest(id) for id in reference_digests(board, store)]
    return RunUsed(
        str(board.path),
        board.path.read_text(encoding="utf-8", errors="replace"),
        (calibration_file.content(board.path) or b"").decode(errors="replace"),
        tuple(UsedVersion(m.id, m.version, m.checksum, m.created, m.source) for _, m in sorted(manifests.items())),
        tuple(UsedVersion(f"references/{m.id}", m.version, m.checksum, m.created, m.source) for m in references),
        coe.__version__,
        exam_rows(board, manifests, parts),
    )


def variants_of(
    board: Rules, options: LineOptions, manifests: Mapping[str, Manifest], identity: RunIdentity
) -> Callable[[Collection[str]], Collection[str]]:
    """Return a function that gives the variants for devices, once nothing has changed since the identity was made."""

    def variants(devices: Collection[str]) -> Collection[str]:
        experts = expert_digests(board, manifests_of(board, options.store), options.precision)
        identity.refuse_changes(board.path, experts, reference_digests(board, options.store))
        return usable_variants(board, manifests, options.precision, options.experiment.label_floor, devices)

    return variants


def references_of(
    items: Sequence[Photograph], board: Rules, store: StoreReader, checksums: Mapping[str, str], bits: int | None = None
) -> Callable[[Result], ReferencePicture | None]:
    """Return a function that gives the reference that an image was compared with.

    `checksums` are those of the references that the run used, by id; `bits` of 16-bit samples count. A reference that
    was replaced meanwhile is not shown: no picture was compared with it.
    """
    by_name, references = {item.name: item for item in items}, ReferenceReader(store)

    def reference(result: Result) -> ReferencePicture | None:
        item = by_name[result.request.image]
        ids = board.components[item.component].references
        if item.reference is not None:
            return ReferencePicture(decode(item.reference, bits=bits))
        if not ids:
            return None
        id = next((one.reference for one in result.findings if one.reference in ids), ids[0])
        manifest = references.manifest(id)
        if manifest.checksum != checksums[id]:
            raise StoreError(f"reference '{id}' was replaced after the run began")
        encoded = references.read(manifest)
        image, spread = decode(encoded.image), decode(encoded.spread)[:, :, 0]
        return ReferencePicture(image, spread, f"{id}, version {manifest.version}", manifest.checksum)

    return reference


Variants = Callable[[Collection[str]], Collection[str]]
"""Returns the variants in which experts may run on devices of these names."""


Feed = Callable[[Sequence[Photograph]], Iterable["Picture | Result"]]
"""Returns for each item its picture, or its result if no expert can inspect it; a sequence if all are known at once."""


class RunProgress(Protocol):
    """How far a run is, for people."""

    def expect(self, more: int) -> None:
        """Raise the number of images that are to come."""

    def advance(self, *, ng: bool) -> None:
        """Count one result."""


class RunView(Protocol):
    """Where a run says what happens."""

    def say(self, sentence: str) -> None:
        """Say how the run goes on."""

    def point_out(self, word: str, sentence: str) -> None:
        """Say a sentence behind a word that says what it is about."""

    def closed(self, board: ClosedBoard) -> None:
        """Say that a board is closed."""

    def progress(self, total: int, metrics: Callable[[], Metrics]) -> AbstractContextManager[RunProgress]:
        """Show how far a run of so many images is, while it lasts."""


class InspectionRun:
    """One run: feeds the line, writes results, and stops properly on a signal or after too many errors."""

    def __init__(
        self,
        figures: RunFigures,
        results: ResultsFile,
        items: Sequence[Photograph],
        feed: Feed,
        view: RunView,
        max_errors: int | None = None,
    ) -> None:
        """`max_errors` is after how many images that could not be inspected the run ends; None: never."""
        self._results, self._max_errors, self._view = results, max_errors, view
        self._feed, self._notices = feed, Notices()
        # Looked at before any file is read: one that is replaced meanwhile is inspected again when the run goes on.
        self._stamps = {item.name: stamp for item in items if (stamp := item.stamp()) is not None}
        self._items = results.left_of(items, self._stamps)
        self._line: Line | None = None
        self._progress: RunProgress | None = None
        self._answered = self._errors = 0
        self.stopped = False
        self.interrupted = False
        self._signals = EndingSignals()
        self.figures = replace(figures, started=datetime.now().astimezone().isoformat(timespec="seconds"))

    def go(self, line_options: LineOptions, variants: Variants) -> None:
        """Inspect the images that have no result yet, on a line with this configuration."""
        budget = line_options.memory or config.parse_bytes(config.MEMORY)
        self.figures = replace(self.figures, budget_bytes=budget)
        todo = [item for item in self._items if item.failure is None]
        line = self._opened(line_options, variants) if todo else None
        for item in self._items:
            if item.failure is not None:
                self._write(Result(request_of(item), None, (), 0.0, item.failure))
        if line is not None:
            self._work(line, len(todo), lambda: self._inspect(line, todo))

    def _opened(self, line_options: LineOptions, variants: Variants) -> Line:
        from coe.inspector.line import Line

        # Before the first result is written, so that a wrong set-up leaves no trace in the run's folder.
        line = self._line = Line(line_options.but(watchers=[self._notices], say=self._view.say))
        self.figures = replace(self.figures, budget_bytes=line.budget_bytes)
        try:
            self._results.bind(variants({executor.device for executor in line.plan.executors}))
        except BaseException:
            line.close()
            raise
        return line

    def _work(self, line: Line, total: int, work: Callable[[], None]) -> None:
        """Do `work` on a line while signals stop it properly, and close the line."""
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with line, self._view.progress(total, line.metrics) as self._progress:
                work()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        metrics = line.metrics()
        self.figures = replace(
            self.figures,
            answered=self._answered,
            stages=metrics.stages,
            switches=metrics.switches,
            peak_reserved_bytes=metrics.peak_reserved_bytes,
            peak_rss_bytes=peak_resident_bytes(),
            wall_s=metrics.wall_s,
            drift=tuple(line.drift()),
            pace=metrics.pace,
            interrupted=self.interrupted,
        )

    def _inspect(self, line: Line, todo: Sequence[Photograph]) -> None:
        for result in self._stream(line, todo):
            if result.failure is None or result.failure.kind is not FailureKind.STOPPED:
                self._write(result)
                self._answered += 1
            self._show_notices()

    def _show_notices(self) -> None:
        for about, sentence in self._notices.fetch():
            self._view.point_out(about, sentence)

    def _stream(self, line: Line, todo: Sequence[Photograph]) -> Iterator[Result]:
        found = self._feed(todo)

        def pictures() -> Iterator[Picture]:
            for fed in found:
                if self.stopped:
                    return
                if isinstance(fed, Result):
                    self._write(fed)
                else:
                    yield fed

        try:
            # Only a sequence is known as a whole.
            yield from line.stream(list(pictures()) if isinstance(found, Sequence) else pictures())
        except LineClosed:
            # The line stopped between two pictures; --resume inspects the images that have no result.
            return

    def _write(self, result: Result, taken: FileStamp | None = None) -> None:
        self._results.write(result, taken or self._stamps.get(result.request.image))
        if self._progress is not None:
            self._progress.advance(ng=result.verdict is Verdict.NG)
        if result.error is not None and not is_skipped(result):
            self._errors += 1
            error = shortened(result.error, config.SHOWN_ERROR)
            self._view.point_out("not inspected", f"{result.request.image}: {error}")
            if self._max_errors is not None and self._errors > self._max_errors:
                self._stop()

    def _stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            if self._line is not None:
                self._line.stop()

    def _on_signal(self, number: int, frame: object) -> None:
        which = self._signals.take()
        if which == 1:
            self._end_properly()
        elif which > 1:
            raise KeyboardInterrupt

    def _end_properly(self) -> None:
        self.interrupted = True
        self._view.say("stopping after the running batches (press Ctrl-C again to stop at once)")
        self._stop()


def request_of(item: Photograph) -> Request:
    """Return the request of an image that no line was asked for."""
    return Request(-1, item.component, item.name, item.serial, item.refdes)


class Notices:
    """A watcher: it collects sentences for the user, each behind a word that says what it is about.

    It does so on the control thread; another thread fetches them.
    """

    def __init__(self) -> None:
        self._notices: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Note what the commands report, and devices or boxes that are lost."""
        if isinstance(event, Lost):
            sentence = f"{event.box or event.device} no longer answers ({event.reason}); the rest of the line continues"
            self._notices.put(("lost", sentence))
        for command in commands:
            match command:
                case Late():
                    left_s = command.due_s - now
                    late = (
                        f"is due in {left_s:.1f} s and cannot be done by then" if left_s > 0 else "was not done in time"
                    )
                    self._notices.put(("late", f"{command.board} {late}"))
                case PaceChanged():
                    times = f"batches on {command.where} take {command.pace:.2g} times as long as measured"
                    self._notices.put(("pace", f"{times}; decisions now allow for it"))

    def fetch(self) -> Iterator[tuple[str, str]]:
        """Yield word and sentence of each notice since the last call."""
        while not self._notices.empty():
            yield self._notices.get()
