"""The boards that wait for the worker, in the order of their acceptance.

A due time becomes a time of the monotonic clock when the worker first sees the board: the wall clock may jump later.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from coe.serve.clock import SECOND_US
from coe.serve.database import board_rows
from coe.serve.database.tables import Board

ALONE_FROM = 2
"""After so many attempts that ended with the worker, a board is inspected alone, so that it takes no other down."""
_TOGETHER = 500


@dataclass(frozen=True, slots=True)
class Queued:
    """A board that waits; `due_s` is on the monotonic clock, and infinity without a due time."""

    board: Board
    due_s: float


class Queue:
    """The undecided boards that the worker has not begun, as far as it has looked."""

    def __init__(self) -> None:
        self._waiting: dict[int, Queued] = {}
        # Due times with their boards, some of which have left: nobody looks at thousands of boards at each step.
        self._dues: list[tuple[float, int]] = []
        self._seen_id = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Queued]:
        """Yield the boards in their order."""
        return iter(list(self._waiting.values()))

    def look(self, connection: Connection, now_us: int, now_s: float) -> None:
        """Take in the boards that were accepted since the last look."""
        while True:
            new = board_rows.undecided(connection, after_id=self._seen_id, limit=_TOGETHER)
            for board in new:
                self._waiting[board.id] = queued = Queued(board, due_s(board, now_us, now_s))
                heapq.heappush(self._dues, (queued.due_s, board.id))
                self._seen_id = board.id
            if len(new) < _TOGETHER:
                return

    def first(self) -> Queued | None:
        """Return the board whose turn it is."""
        return next(iter(self._waiting.values()), None)

    def next_due(self) -> Queued | None:
        """Return the board that is due first."""
        while self._dues and self._dues[0][1] not in self._waiting:
            heapq.heappop(self._dues)
        return self._waiting[self._dues[0][1]] if self._dues else None

    def leave(self, id: int) -> None:
        """Take a board out: it was begun, decided or aborted."""
        self._waiting.pop(id, None)

    def come_back(self, boards_again: list[Queued]) -> None:
        """Put boards back that were begun, in their order before the others, because nobody has looked at them."""
        again = {queued.board.id: queued for queued in boards_again}
        self._waiting = dict(sorted((again | self._waiting).items()))
        for queued in boards_again:
            heapq.heappush(self._dues, (queued.due_s, queued.board.id))


def must_wait(board: Board, under_way: Sequence[Board]) -> bool:
    """Whether a board may not be inspected beside those that are under way."""
    return bool(under_way) and any(one.attempts >= ALONE_FROM for one in (board, *under_way))


def due_s(board: Board, now_us: int, now_s: float) -> float:
    """Return when a board is due on the monotonic clock.

    A clock that was set back must not give a board more time than it had at first.
    """
    if board.due_us is None:
        return math.inf
    left_us = min(board.due_us - now_us, board.due_us - board.accepted_us)
    return now_s + left_us / SECOND_US
