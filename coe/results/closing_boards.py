"""Boards of a folder that fills: each is closed once it is complete, or once nothing of it came for a while.

`boards.jsonl` in the run's folder has a line for each board that was closed; if a board is closed again, because a
picture of it was taken again, its last line counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from coe.board.completeness import Expected, place_of
from coe.core import Result, Verdict
from coe.helpers.files import append, write_atomically, writing
from coe.pictures.filling import QuietBoards
from coe.results.summary import RunFigures, summarise

BOARDS = "boards.jsonl"
COMPLETE, QUIET, ENDED = "complete", "quiet", "ended"


@dataclass(frozen=True, slots=True)
class ClosedBoard:
    """The verdict of a board: of so many `pictures`, `closed` as it is `complete` or `quiet`, or at the end (`ended`).

    `lacking` are places that no picture shows, `not_inspected` images without a verdict.
    """

    serial: str
    verdict: Verdict
    closed: str
    pictures: int
    lacking: tuple[str, ...] = ()
    not_inspected: int = 0


class ClosingBoards:
    """The boards whose pictures come in; times are seconds of one clock.

    With `expected` a board is complete once it lacks nothing, else once no picture of it came for `quiet_s`; `open` are
    the boards that are neither. `closed` are those of an earlier process by serial: they get another line only if it
    differs.
    """

    def __init__(self, expected: Expected | None, quiet_s: float, closed: Iterable[ClosedBoard] = ()) -> None:
        self._expected, self.open = expected, QuietBoards[str](quiet_s)
        self._closed = {board.serial: board for board in closed}
        self._results: dict[str, dict[str, Result]] = {}

    def take(self, result: Result, now: float) -> None:
        """Note the result of an image of a board; the board is open now."""
        serial = result.request.serial
        if serial:
            self._results.setdefault(serial, {})[result.request.image] = result
            if serial not in self.open:
                self.open.come(serial, now)

    def drop(self, serial: str, image: str) -> None:
        """Forget the result of an image that is taken again."""
        self._results.get(serial, {}).pop(image, None)

    def close(self, now: float, awaited: Collection[str], *, at_end: bool = False) -> Iterator[ClosedBoard]:
        """Yield the boards that are to be closed now; `awaited` are serials of which pictures have no result yet."""
        for serial in self.open:
            results = self._results.get(serial, {})
            if serial in awaited or not results:
                continue
            whole = self._expected is not None and not self._expected.lacking(r.request for r in results.values())
            quiet = self.open.is_quiet(serial, now)
            if whole or quiet or at_end:
                self.open.close(serial)
                board = self._judge(serial, list(results.values()), COMPLETE if whole else QUIET if quiet else ENDED)
                if board != self._closed.get(serial):
                    self._closed[serial] = board
                    yield board

    def _judge(self, serial: str, results: list[Result], closed: str) -> ClosedBoard:
        absent = [] if self._expected is None else list(self._expected.results([r.request for r in results]))
        counts = summarise([*results, *absent], RunFigures("")).boards[serial]
        lacking = tuple(place_of(result) for result in absent)
        return ClosedBoard(serial, counts.verdict, closed, len(results), lacking, counts.errors)


def read(folder: Path) -> list[ClosedBoard]:
    """Read the boards of a run's folder, the last line of each; lines that a kill tore are passed over."""
    boards: dict[str, ClosedBoard] = {}
    try:
        lines = (folder / BOARDS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            row = json.loads(line)
            row["lacking"], row["verdict"] = tuple(row["lacking"]), Verdict(row["verdict"])
            board = ClosedBoard(**row)
        except (ValueError, TypeError, KeyError):
            continue
        boards[board.serial] = board
    return list(boards.values())


class BoardsFile:
    """`boards.jsonl` of a run's folder while boards are closed; a torn line is cut off at the start.

    Raises DiskFull or NotWritten.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / BOARDS
        self.boards = read(folder)
        write_atomically(self._path, map(_line, self.boards))

    def write(self, board: ClosedBoard) -> None:
        """Append a board; once this returns, a kill of the process cannot lose it. Raises DiskFull, NotWritten."""
        with writing(self._path):
            number = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                append(number, _line(board).encode("utf-8", "backslashreplace"))
            finally:
                os.close(number)


def _line(board: ClosedBoard) -> str:
    return json.dumps(asdict(board), ensure_ascii=False) + "\n"
