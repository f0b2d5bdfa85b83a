"""The thread that looks for components in pictures of whole boards, one board ahead of the experts.

Law: the loop never waits for a picture, and one picture at a time is looked at. A picture is held from then until the
feeder has handed its crops in, so two pictures are in memory at most: the board that is fed, and the board after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coe.serve import failpoints
from coe.serve.database import board_rows
from coe.serve.database.board_rows import Board
from coe.serve.database.connecting import Database
from coe.serve.worker.board_batches import Hang
from coe.serve.worker.hangs import Hangs, picture_hang
from coe.serve.worker.items import Items, Whole
from coe.serve.worker.located import Located, located
from coe.serve.worker.write_report import WorkerReport

if TYPE_CHECKING:
    from coe.inspector.line import Line


@dataclass(slots=True, eq=False)
class _Attempt:
    """A board that is being located, or that is located; `is_noted` says that its end is written."""

    board: Board
    future: Future[Located]
    is_noted: bool = False


class Locating:
    """Locates one board at a time; the loop's thread alone uses it."""

    def __init__(self, database: Database, ring: Callable[[], None], report: WorkerReport, hangs: Hangs) -> None:
        self._database, self._ring, self._report = database, ring, report
        self._hangs_after_s, self._since_s = hangs.after_s, math.inf
        hangs.watch(self)
        self._thread = ThreadPoolExecutor(1, "coe-locating")
        self._attempt: _Attempt | None = None

    def look_at(self, board: Board, items_of: Callable[[Board], Items]) -> bool:
        """Begin to locate a whole board, unless another is being located; return whether nothing is left to locate.

        The attempt is counted before, because a picture may end the process. Raises DatabaseError.
        """
        attempt = self._attempt
        if board.request.get("whole") is None:
            return True
        if attempt is not None and attempt.board.id == board.id:
            if attempt.future.done() and not attempt.is_noted:
                self._note(attempt)
            return attempt.future.done()
        if attempt is not None and not attempt.future.done():
            return False
        self._attempt = None  # two pictures would be held
        items = items_of(board)
        if items.whole is None:
            return True
        with self._database.writing() as connection:
            if not board_rows.take_up(connection, board.id):
                return True  # it was aborted, and will not begin
        self._attempt = _Attempt(board, self._thread.submit(self._located, items.whole, items))
        self._attempt.future.add_done_callback(lambda _: self._ring())
        return False

    def of(self, board: Board) -> Located | None:
        """Return a board that was located; None if it was not."""
        attempt = self._attempt
        is_it = attempt is not None and attempt.board.id == board.id and attempt.future.done()
        return attempt.future.result() if attempt is not None and is_it else None

    def hanging(self, line: Line | None) -> Hang | None:
        """Return a picture that is looked at for ever: no other whole board would be located."""
        return picture_hang(time.monotonic() - self._since_s, self._hangs_after_s)

    def forget(self, board: Board) -> None:
        """Let a board go that was begun, decided or aborted."""
        if self._attempt is not None and self._attempt.board.id == board.id:
            self._attempt = None

    def _note(self, attempt: _Attempt) -> None:
        """Write that a board is located, or that its picture is gone."""
        board, found = attempt.board, attempt.future.result()
        if found.is_registered:
            with self._database.writing() as connection:
                board_rows.located(connection, board.id)
            failpoints.reached(failpoints.Failpoint.LOCATED)
        if found.lost is not None:
            self._report.picture_gone(board.id, f"board {board.id}", found.lost)
        attempt.is_noted = True

    def close(self) -> None:
        """End the thread; the picture that it looks at comes to its end."""
        self._attempt = None
        self._thread.shutdown()

    def _located(self, whole: Whole, items: Items) -> Located:
        self._since_s = time.monotonic()
        try:
            failpoints.reached(failpoints.Failpoint.LOCATING)
            return located(whole, items)
        finally:
            self._since_s = math.inf
