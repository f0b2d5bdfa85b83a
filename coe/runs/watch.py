"""A run over a folder that fills: each picture is judged once it is whole, each board once it is complete."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from coe.board.completeness import Expected
from coe.core import Failure, FailureKind, Result
from coe.errors import ImageError, LineClosed
from coe.inspector.line_options import LineOptions
from coe.pictures.filling import FillingFolder
from coe.pictures.folder import EntryKind, FolderEntry
from coe.pictures.photographs import Photograph
from coe.pictures.picture_file import FileStamp
from coe.results.closing_boards import BoardsFile, ClosingBoards
from coe.results.records import ResultsFile
from coe.results.summary import RunFigures
from coe.runs.inspection import InspectionRun, RunView, Variants, request_of

if TYPE_CHECKING:
    from coe.inspector.line import Line
    from coe.placement.run_source import ArrivingSource

UNDER_WAY = 64
"""The most files whose pictures are on the line at a time."""
_PAUSE_S = 0.05
_SHARE = 0.2
"""The most of the time that listings of the folder take."""
MOVE_AGAIN_S = 5.0
"""After this time what could not be moved is tried again."""


@dataclass(frozen=True, slots=True)
class Watching:
    """What `--watch` and its options say; times in seconds."""

    folder: Path
    settle_s: float
    quiet_s: float
    done: Path | None
    idle_s: float | None


@dataclass(slots=True)
class _OnLine:
    """A file whose pictures are on the line."""

    name: str
    stamp: FileStamp
    items: Sequence[Photograph]
    results: dict[str, Result] = field(default_factory=dict)


class WatchRun(InspectionRun):
    """A run over a folder that fills; it ends by a signal, or once nothing came for `idle_s`."""

    def __init__(
        self,
        figures: RunFigures,
        results: ResultsFile,
        source: ArrivingSource,
        watching: Watching,
        view: RunView,
        expected: Expected | None,
        within_s: float | None,
        max_errors: int | None = None,
    ) -> None:
        super().__init__(figures, results, [], partial(source.feed, within_s=within_s), view, max_errors)
        self._source, self._watching, self._watched = source, watching, source.watched
        self._taken_up(results)
        done = self._done_files(results)
        self._judged, self._to_move = set(done), set(done)
        self._not_moved, self._move_at = set[str](), 0.0
        self._boards_file = BoardsFile(results.folder)
        self._boards = ClosingBoards(expected, watching.quiet_s, self._boards_file.boards)
        self._is_counted = expected is not None
        self._folder = FillingFolder(source.watched, watching.settle_s, self._boards.open, source.serials_of, done)
        for result in results.results:
            self._boards.take(result, time.monotonic())
        self._under_way: dict[str, _OnLine] = {}
        self._answers: queue.SimpleQueue[tuple[str, Result]] = queue.SimpleQueue()
        self._ending, self._away = False, False
        self._named = set[str]()
        """What cannot be inspected, or was not, and has its error."""

    def go(self, line_options: LineOptions, variants: Variants) -> None:
        """Inspect what comes, on a line with this configuration, until the watch ends."""
        line = self._opened(line_options, variants)
        self._work(line, 0, lambda: self._watch(line))
        for name in set(self._folder.arrivals.open()) - self._named:  # no verdict holds for what lies there now
            for item in self._source.images_of(name) or self._arrived(name):
                self._results.drop(item.name)

    def _watch(self, line: Line) -> None:
        look_at, last_s, idle_s = 0.0, time.monotonic(), self._watching.idle_s
        while not self.stopped and not (self._ending and not self._under_way):
            now = time.monotonic()
            if now >= look_at and not self._ending:
                if self._look(now):
                    last_s = now
                look_at = now + max(self._watching.settle_s / 4, (time.monotonic() - now) / _SHARE, _PAUSE_S)
                for name in [] if self._away else self._folder.ready(now, self._room):
                    self._hand_in(line, name)
            if self._take_answers() or self._under_way or self._awaited:
                last_s = time.monotonic()
            self._put_away()
            self._close_boards()
            self._show_notices()
            if idle_s is not None and time.monotonic() - last_s >= idle_s:
                self._ending = True
            time.sleep(_PAUSE_S)
        listing = self._folder.listing
        files = dict.fromkeys([*listing.uploads, *self._folder.arrivals.open()])
        entries = {name: FolderEntry(self._watched.file(name), EntryKind.FILE) for name in files}
        self._name(entries | {name: odd for name, odd in listing.odd.items() if name not in self._named})
        self._close_boards(at_end=True)

    @property
    def _room(self) -> int:
        return UNDER_WAY - len(self._under_way)

    @property
    def _awaited(self) -> list[str]:
        """The names of files that lie there and have no answer yet."""
        return [name for name in self._folder.arrivals.open() if name in self._folder.listing.files]

    def _look(self, now: float) -> bool:
        """List the folder; return whether something changed in it, or it cannot be seen, which is said once."""
        seen = self._folder.look(now)
        if (seen is None) is not self._away:
            self._away = seen is None
            self._view.say(self._folder.away or f"{self._watching.folder} answers again")
        if seen is None:
            self._to_move |= self._judged  # one that could not be seen for a moment lies there still
            return True
        lasting = {name: odd for name, odd in seen.odd.items() if name in self._folder.listing.odd}
        changed = self._folder.take_in(seen, now)
        self._name({name: odd for name, odd in lasting.items() if name not in self._named})
        self._to_move |= self._judged.intersection(changed)
        return bool(changed)

    def _hand_in(self, line: Line, name: str) -> None:
        """Give the pictures of a file to the line; what cannot be inspected has its results at once."""
        stamp = self._folder.arrivals.stamp(name)
        self._judged.discard(name)
        self._named.discard(name)
        for before in self._source.images_of(name):
            self._results.drop(before.name)
            self._boards.drop(before.serial, before.name)
        items = self._arrived(name)
        if not items:  # a note
            self._folder.holds(name, time.monotonic())
            return
        self._under_way[name] = _OnLine(name, stamp, items)
        if self._progress is not None:
            self._progress.expect(len(items))
        try:
            self._watched.check_end(name)
        except ImageError as error:
            torn = Failure(FailureKind.of(error, FailureKind.IMAGE), str(error))
            items = [replace(item, failure=torn) for item in items]
        for item in items:
            if item.failure is not None:
                self._answers.put((name, Result(request_of(item), None, (), 0.0, item.failure)))
        todo = [item for item in items if item.failure is None]
        try:
            for fed in self._feed(todo) if todo else ():
                if isinstance(fed, Result):
                    self._answers.put((name, fed))
                else:
                    line.submit_picture(fed).add_done_callback(partial(self._answered_by_line, name))
        except LineClosed:
            self._stop()

    def _arrived(self, name: str) -> Sequence[Photograph]:
        source = self._source.arrive(name)
        return [] if source is None else source.items

    def _answered_by_line(self, name: str, future: Future[Result]) -> None:
        self._answers.put((name, future.result()))

    def _take_answers(self) -> bool:
        """Take the answers that are there; write those of files all of whose pictures have one."""
        some = False
        while not self._answers.empty():
            some = True
            name, result = self._answers.get()
            file = self._under_way[name]
            file.results[result.request.image] = result
            if len(file.results) == len(file.items):
                del self._under_way[name]
                self._finish(file)
        return some

    def _finish(self, file: _OnLine) -> None:
        """Write the results of a file, if they hold; else its pictures are inspected again."""
        now, name = time.monotonic(), file.name
        kinds = {result.failure.kind for result in file.results.values() if result.failure is not None}
        if is_stopped := FailureKind.STOPPED in kinds:
            self._folder.arrivals.put_back(name)
        if is_stopped or not self._folder.holds(name, now, torn=any(kind.is_of_picture for kind in kinds)):
            if self._progress is not None:
                self._progress.expect(-len(file.items))
            return
        if not kinds:
            self._judged.add(name)
            self._to_move.add(name)
        for result in file.results.values():
            self._write(result, file.stamp)
            self._answered += 1
            self._boards.take(result, now)

    def _put_away(self) -> None:
        """Move what has its verdict; what cannot be moved stays, is told once, and is tried again."""
        if self._watching.done is None or self._away or time.monotonic() < self._move_at:
            return
        for name in self._to_move & self._folder.listing.files.keys():
            self._to_move.discard(name)
            stamp = self._folder.listing.files[name].stamp
            if not self._folder.arrivals.is_done(name, stamp):
                continue
            try:
                if self._watched.put_away(name, stamp):
                    self._source.moved(name)
            except OSError as error:
                self._to_move.add(name)
                self._move_at = time.monotonic() + MOVE_AGAIN_S
                if name not in self._not_moved:
                    self._view.point_out("not moved", f"{name}: {error.strerror or error}; it will be retried")
                self._not_moved.add(name)

    def _close_boards(self, *, at_end: bool = False) -> None:
        if self._away:
            return
        uploads = [] if self._is_counted else self._folder.listing.uploads  # else a board that lacks a part is REVIEW
        waiting = [name for name in [*self._awaited, *uploads] if name not in self._named]
        awaited = {serial for name in waiting for serial in self._source.serials_of(name)}
        for board in self._boards.close(time.monotonic(), awaited, at_end=at_end):
            self._boards_file.write(board)
            self._view.closed(board)

    def _name(self, entries: Mapping[str, FolderEntry]) -> None:
        """Give what is no file, and at the end what is not whole, its errors, as a run over a whole folder does."""
        for name, entry in entries.items():
            self._named.add(name)
            source = self._source.arrive(name, entry)
            for item in [] if source is None else source.items:
                reason = entry.reason or "was incomplete, had just arrived or was waiting when the watch ended"
                if entry.kind is EntryKind.FILE and name not in self._folder.listing.files:
                    reason = "was deleted before its verdict"
                result = Result(request_of(item), None, (), 0.0, item.failure or Failure(FailureKind.IMAGE, reason))
                self._write(result)
                self._boards.take(result, time.monotonic())

    def _taken_up(self, results: ResultsFile) -> None:
        """Take up the results of an earlier process; those that do not say of which file they are do not hold."""
        for result in results.results:
            request = result.request
            if request.image not in results.taken:
                results.drop(request.image)
        requests = [result.request for result in results.results]
        self._source.resume(
            Photograph(self._watched.path, r.component, r.serial, r.refdes, name=r.image) for r in requests
        )

    def _done_files(self, results: ResultsFile) -> dict[str, FileStamp]:
        """Return the files of which all pictures have a verdict or are skipped."""
        done, stamps = results.done, results.taken
        files: dict[str, list[str]] = {}
        for image in done & stamps.keys():
            files.setdefault(self._source.file_of(image), []).append(image)
        return {
            name: stamps[images[0]]
            for name, images in files.items()
            if len(images) == self._source.images_per_file and len({stamps[image] for image in images}) == 1
        }

    def _end_properly(self) -> None:
        self._ending = True
        self._view.say("ending after the pictures under way (press Ctrl-C again to stop at once)")
