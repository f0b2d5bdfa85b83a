"""When images and boards are due: who goes first by now, and which boards will miss.

A board is the images of one serial that are under way together; an image without one is a board of its own. Only this
file says who is in a hurry.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from coe.core import Request

Doom = Callable[[Mapping[int, float], float], float]
"""Given when requests are due, and the time now: from when on it is certain, as things stand, that one is too late."""

_GROWN = 1.25
"""A board is looked at again once it has so many times the images, so that looking costs no more than its images."""
_PATIENCE = 0.05
"""The part of the time that a board has left after which it is looked at again."""


_SOON_S = 0.01
"""But no sooner than this."""


@dataclass(slots=True, eq=False)
class Board:
    """The images of a board that are under way, and when each is due; the board is due with the first that it had."""

    key: str
    name: str
    due_s: float = math.inf
    hurry_s: float = math.inf
    images: dict[int, float] = field(default_factory=dict)
    late: bool = False
    looked_at: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A request that is due at another time than before; infinity is no hurry."""

    request_id: int
    due_s: float
    was_s: float


class Deadlines:
    """Puts requests into a hurry once half of their time is over, and tells of boards that will not be done in time.

    An image has `max_wait_s` from its submission. One with a due time has until then, less what it needs at least, and
    goes by the earliest due time of its board, until it is certain that an image of that board is too late: what is
    left of it then has all its time again, so that boards that can still be done in time are.
    """

    def __init__(self, max_wait_s: float, doom: Doom) -> None:
        self._max_wait_s, self._doom = max_wait_s, doom
        self._arrived_s: dict[int, float] = {}
        self._aging: list[tuple[float, int, int]] = []
        self._hurried: dict[int, float] = {}
        self._boards: dict[str, Board] = {}
        self._board_of: dict[int, Board] = {}
        self._to_hurry: list[tuple[float, int, Board]] = []
        self._to_look_at: list[tuple[float, int, Board]] = []
        self._missed: list[Board] = []
        self._ties = count()

    def __repr__(self) -> str:
        return f"<Deadlines of {len(self._arrived_s)} images, {len(self._hurried)} in a hurry>"

    def arrived(self, request: Request, now: float) -> None:
        """Take in an image."""
        since_s = self._arrived_s[request.id] = request.since_s(now)
        # Pictures are decoded side by side: who was handed in first need not arrive first.
        heapq.heappush(self._aging, (since_s, next(self._ties), request.id))
        if request.due_s == math.inf:
            return
        # Two images of one name are not one board.
        key = f"serial {request.serial}" if request.serial else f"request {request.id}"
        name = request.serial or request.image or f"image {request.id}"
        board = self._board_of[request.id] = self._boards.setdefault(key, Board(key, name))
        board.images[request.id] = request.due_s
        board.due_s = min(board.due_s, request.due_s)
        board.hurry_s = min(board.hurry_s, (since_s + request.due_s) / 2)
        # Even if the others are in a hurry already: this one is to be, too.
        heapq.heappush(self._to_hurry, (board.hurry_s, next(self._ties), board))
        if len(board.images) >= _GROWN * board.looked_at:
            heapq.heappush(self._to_look_at, (now, next(self._ties), board))

    def due_s(self, request_id: int) -> float:
        """Return when a request in a hurry is due; infinity for one that is in none."""
        return self._hurried.get(request_id, math.inf)

    def replied(self, request: Request, now: float) -> None:
        """Forget a request that has its reply."""
        if self._arrived_s.pop(request.id, None) is None:
            return
        self._hurried.pop(request.id, None)
        board = self._board_of.pop(request.id, None)
        if board is not None:
            del board.images[request.id]
            if not board.images:
                del self._boards[board.key]
            if now > request.due_s:
                self._miss(board)

    def changes(self, now: float) -> Iterator[Change]:
        """Yield what has come into a hurry by now, or is in none any more."""
        while self._aging and (self._aging[0][2] not in self._arrived_s or self._is_old(self._aging[0][2], now)):
            yield from self._set(heapq.heappop(self._aging)[2], now)
        while self._to_look_at and self._to_look_at[0][0] <= now:
            _, _, board = heapq.heappop(self._to_look_at)
            if board.images and not board.late:
                self._look_at(board, now)
        while self._to_hurry and self._to_hurry[0][0] <= now:
            _, _, board = heapq.heappop(self._to_hurry)
            for request_id in board.images if not board.late else ():
                yield from self._set(request_id, now)
        for board in self._missed:
            for request_id in board.images:
                yield from self._set(request_id, now)

    def missed(self) -> list[Board]:
        """Return the boards of which it has become certain that they miss, each once."""
        missed, self._missed = self._missed, []
        return missed

    def check(self, *, idle: bool = False) -> None:
        """Prove the books; raises AssertionError."""
        assert self._hurried.keys() <= self._arrived_s.keys(), f"{self!r}: who has a reply is in a hurry"
        dated = {request_id for board in self._boards.values() for request_id in board.images}
        assert dated == self._board_of.keys() <= self._arrived_s.keys(), f"{self!r}: boards"
        assert not idle or not self._arrived_s, f"{self!r} at idle"

    def _is_old(self, request_id: int, now: float) -> bool:
        return self._arrived_s[request_id] + self._max_wait_s / 2 <= now

    def _set(self, request_id: int, now: float) -> Iterator[Change]:
        """Work out anew when a request is due, and yield that if it is another time than before."""
        if request_id not in self._arrived_s:
            return
        was_s, due_s = self.due_s(request_id), math.inf
        if self._is_old(request_id, now):
            due_s = self._arrived_s[request_id] + self._max_wait_s
        board = self._board_of.get(request_id)
        if board is not None and not board.late and board.hurry_s <= now:
            due_s = min(due_s, board.due_s)
        if due_s != was_s:
            self._hurried[request_id] = due_s
            if due_s == math.inf:
                del self._hurried[request_id]
            yield Change(request_id, due_s, was_s)

    def _look_at(self, board: Board, now: float) -> None:
        board.looked_at = len(board.images)
        doomed_s = self._doom(board.images, now)
        if now > doomed_s:
            self._miss(board)
        else:
            board.hurry_s = min(board.hurry_s, (now + doomed_s) / 2)
            heapq.heappush(self._to_hurry, (board.hurry_s, next(self._ties), board))
            again_s = now + max(_SOON_S, _PATIENCE * (min(board.images.values()) - now))
            heapq.heappush(self._to_look_at, (max(doomed_s, again_s), next(self._ties), board))

    def _miss(self, board: Board) -> None:
        if not board.late:
            board.late = True
            self._missed.append(board)
