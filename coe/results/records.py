"""A run's folder. A result that was written is never lost.

`results.jsonl` grows by one line for each result; a kill loses at most the line being written. `finish` puts the lines
into the order of the images, and writes `results.csv` and `summary.json`. `run.json` says which run the results are of.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from coe import config
from coe.board.completeness import Expected, is_absent
from coe.core import Request, Result
from coe.errors import ConfigError, ImageError, readable, shortened
from coe.helpers import system
from coe.helpers.files import (
    DiskFull,
    FolderLock,
    NoLocks,
    NotWritten,
    Writes,
    append,
    replacing,
    write_atomically,
    writing,
)
from coe.pictures.photographs import Photograph
from coe.pictures.picture_file import FileStamp
from coe.results import csv_table, run_file
from coe.results.result_lines import from_line, taken_of, to_line
from coe.results.run_file import RunFile, RunIdentity, RunUsed
from coe.results.summary import NOBODY_ASKED, RunFigures, Summary, is_skipped, summarise

T = TypeVar("T")
RESULTS, TABLE, SUMMARY = "results.jsonl", "results.csv", "summary.json"


class ResultsFile:
    """The results of one run while they come in. Only this class writes into a run's folder; one thread at a time.

    The folder is locked until `close`: a second process gets a ConfigError. Raises ConfigError too if the folder cannot
    be written, if it holds results and `resume` is not set, or if its results are of another run (see
    `coe.results.run_file`); DiskFull if there is no room. Image names are unique; a second result of an image replaces
    the first.
    """

    def __init__(
        self, folder: Path, identity: RunIdentity, *, resume: bool = False, used: RunUsed | None = None
    ) -> None:
        self.folder = folder
        self.path = folder / RESULTS
        self._fd = -1
        self._lock: FolderLock | None = None
        self._run = RunFile(identity, used=used)
        self.writes = Writes(self._must_be_there)
        """What is written at the end, and what of it could not be written."""
        try:
            with writing(self.path):
                folder.mkdir(parents=True, exist_ok=True)
                self._lock = _lock(folder)
                self._fd = self._open()
            self._taken: dict[str, FileStamp] = {}
            self._results = self._take_up(resume)
            self._run.write(folder)
        except DiskFull:
            self.close()
            raise
        except NotWritten as error:  # nothing is lost yet: the user only has to give another folder
            self.close()
            raise ConfigError(str(error)) from error
        except BaseException:
            self.close()
            raise

    @property
    def results(self) -> list[Result]:
        """The newest result of every image, in the order of the images' first results."""
        return list(self._results.values())

    @property
    def taken(self) -> Mapping[str, FileStamp]:
        """Of which file each verdict is, by the image's name, where that was said."""
        return {name: stamp for name, stamp in self._taken.items() if name in self._results}

    def unchanged(self, pixels: Callable[[str], T], items: Iterable[Photograph]) -> Callable[[str], T]:
        """Return a function that gives pixels by an image's name; it raises ImageError if its file is another now."""
        by_name = {item.name: item for item in items}

        def checked(name: str) -> T:
            now = by_name[name].stamp() if name in by_name else None
            if now is not None and now != self._taken.get(name, now):
                raise ImageError("was changed after its verdict")
            return pixels(name)

        return checked

    def drop(self, image: str) -> None:
        """Forget the result of an image whose file is another now: it counts as missing until it has a new one."""
        self._results.pop(image, None)
        self._taken.pop(image, None)

    @property
    def done(self) -> frozenset[str]:
        """The names of the images that have a verdict or are skipped; those with an error are to be inspected again."""
        return frozenset(name for name, result in self._results.items() if result.error is None or is_skipped(result))

    def left_of(self, items: Sequence[Photograph], stamps: Mapping[str, FileStamp]) -> list[Photograph]:
        """Return the items that are still to be inspected, in their order; `stamps` are their files, by name.

        If an item now has another component, serial or refdes than when it was inspected, as after a correction of the
        table, or if its file is another, its result no longer holds and is dropped.
        """
        for item in items:
            before, now = self._results.get(item.name), stamps.get(item.name)
            is_another = now is not None and now != self._taken.get(item.name, now)
            if before is not None and (is_another or _place(before.request) != _place(item)):
                self.drop(item.name)
        done = self.done
        return [item for item in items if item.name not in done]

    def bind(self, variants: Collection[str]) -> None:
        """Note the variants in which experts may run, once they are known; raises ConfigError if they ran in others."""
        variants = tuple(sorted(variants))
        self._run.refuse_variants(self.folder, variants)
        if variants != self._run.variants:
            self._run = replace(self._run, variants=variants)
            self._run.write(self.folder)

    def write(self, result: Result, taken: FileStamp | None = None) -> None:
        """Append a result; once this returns, a kill of the process cannot lose it.

        `taken` says of which file it is: the image's name may have several one after another. An error of more than
        `config.MAX_ERROR` characters is cut. Raises DiskFull, or NotWritten for another reason, such as a folder that
        was removed during the run.
        """
        self._must_be_there()
        if (failure := result.failure) is not None:
            result = replace(result, failure=replace(failure, reason=shortened(failure.reason, config.MAX_ERROR)))
        with writing(self.path):
            append(self._fd, to_line(result, taken).encode(errors="backslashreplace"))
        self.drop(result.request.image)
        self._results[result.request.image] = result
        if taken is not None:
            self._taken[result.request.image] = taken

    def finish(
        self,
        items: Sequence[Photograph],
        part: RunFigures,
        *,
        expected: Expected | None = None,
        empty: Sequence[str] = (),
        left_alone: Sequence[str] = (),
    ) -> Summary:
        """Put the results into the order of `items`, and write the table and the summary.

        `part` holds the figures since this object was made; the summary adds those of earlier parts of the run. Results
        of images that are not among `items` are kept, at the end; items without a result count as missing. With
        `expected`, each place of a board that has no picture gets a result that says so; `empty` are the serials of
        boards without any image. `left_alone` goes into the summary. Each file is replaced as a whole or not at all;
        `writes` says what could not be written.
        """
        rest = dict(self._results)
        ordered = [rest.pop(item.name) for item in items if item.name in rest]
        ordered += rest.values()
        self._run = replace(self._run, figures=part.after(self._run.figures))
        assert self._run.figures is not None
        missing = [item for item in items if item.name not in self._results]
        by, unchecked = "", NOBODY_ASKED
        if expected is not None:
            seen: list[Request | Photograph] = [*(result.request for result in ordered), *missing]
            ordered += expected.results(seen, empty)
            if empty or any(image.serial or image.refdes for image in seen):
                by = expected.by
            else:
                unchecked = "no image has a serial or a reference designator"
        summary = summarise(ordered, self._run.figures, missing)
        summary = replace(summary, completeness=by, unchecked=unchecked, left_alone=tuple(left_alone))
        text = json.dumps(summary.to_json(), ensure_ascii=False, allow_nan=False, indent=2)
        table, at = self.folder / TABLE, self.folder / SUMMARY
        self.writes.attempt(self.folder / run_file.RUN, lambda: self._run.write(self.folder))
        self.writes.attempt(self.path, lambda: self._replace(ordered))
        self.writes.attempt(table, lambda: write_atomically(table, csv_table.rows(ordered)))
        self.writes.attempt(at, lambda: write_atomically(at, [text + "\n"]))
        self._results = {result.request.image: result for result in ordered}
        return summary

    def close(self) -> None:
        """Unlock the folder; calling it again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ResultsFile {self.path} {len(self._results)} images, {len(self.done)} done>"

    def _open(self) -> int:
        """Open the file of results to append to it; raises OSError, or ConfigError if it is a pipe."""
        number = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | system.OPEN_FLAGS, 0o644)
        if stat.S_ISFIFO(os.fstat(number).st_mode):
            os.close(number)
            raise ConfigError(f"{self.path} is a pipe, not a file; give another folder with --out")
        return number

    def _must_be_there(self) -> None:
        """Raise NotWritten if the open file is no longer the file in the run's folder: another run may be there."""
        try:
            if os.path.samestat(os.fstat(self._fd), self.path.stat()):
                return
        except OSError:
            pass
        raise NotWritten(
            f"{self.path} was removed or replaced while this run wrote into it; start again with another --out"
        )

    def _replace(self, results: Sequence[Result]) -> None:
        """Write the results again, in order."""
        with writing(self.path):
            try:
                with replacing(self.path) as file:
                    lines = (to_line(result, self._taken.get(result.request.image)) for result in results)
                    file.writelines(line.encode("utf-8", "backslashreplace") for line in lines)
                    # Windows does not replace an open file.
                    os.close(self._fd)
                    self._fd = -1
            finally:
                if self._fd < 0:
                    self._fd = self._open()

    def _take_up(self, resume: bool) -> dict[str, Result]:
        """Read the results of an earlier process, and cut off a torn last line; refuse results of another run."""
        if not os.fstat(self._fd).st_size:
            return {}
        if not resume:
            raise ConfigError(
                f"{self.folder} holds the results of a run; resume it (--resume) or give another folder (--out)"
            )
        before = run_file.read(self.folder, self._run.identity)
        self._run = replace(before, identity=self._run.identity, used=self._run.used or before.used)
        results, sound = _parse(self.path, self._taken)
        os.ftruncate(self._fd, sound)
        # Whether a place has a picture is asked again at the end.
        return {result.request.image: result for result in results if not is_absent(result)}


def read(path: Path) -> list[Result]:
    """Read a `results.jsonl`, without a torn last line.

    Request ids are line numbers from 0. Raises ConfigError with the line number if any other line is damaged.
    """
    return _parse(path)[0]


def _place(image: Request | Photograph) -> tuple[str, str, str]:
    return image.component, image.serial, image.refdes


def _lock(folder: Path) -> FolderLock | None:
    """Lock a run's folder; None on a file system without locks. Raises OSError, ConfigError if another run has it."""
    try:
        lock = FolderLock.take(folder, wait=False)
    except NoLocks:
        return None
    if lock is None:
        raise ConfigError(f"{folder}: another run is writing here; wait for it or give another --out")
    return lock


def _parse(path: Path, taken: dict[str, FileStamp] | None = None) -> tuple[list[Result], int]:
    with readable(path):
        *lines, tail = path.read_bytes().split(b"\n")
    results: list[Result] = []
    sound = 0
    for number, line in enumerate(lines, 1):
        try:
            results.append(result := from_line(line, number - 1))
            if taken is not None:
                taken.pop(result.request.image, None)
                if (stamp := taken_of(line)) is not None:
                    taken[result.request.image] = stamp
        except ValueError as error:
            if number == len(lines) and not tail:  # after a power cut the last line may have its end and be torn
                break
            raise ConfigError(
                f"{path}:{number}: not a result ({error}); correct or remove that line, or start again with "
                "another --out"
            ) from error
        sound += len(line) + 1
    return results, sound
