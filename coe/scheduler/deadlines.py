"""When images and boards are due: who goes first by now, and which boards will miss.

A board is the images of one serial that are under way together, those without a due time too; an image without a serial
is a board of its own. Only this file says who is in a hurry.

Longer than other files because a board is in no hurry any more as soon as it is certain to miss: both are said here.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from coe.core import Request, Stage
from coe.scheduler.cases import Cases
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.executor import Executor
from coe.scheduler.pool import State

Doom = Callable[[Mapping[int, float], float], float]
"""Given when requests are due, and the time now: from when on it is certain, as things stand, that one is too late."""

_GROWN = 1.25
"""A board is looked at again once it has so many times the images, so that looking costs no more than its images."""
_PATIENCE = 0.05
"""The part of the time that a board has left after which it is looked at again."""
_SOON_S = 0.01
"""But no sooner than this."""
_CHANGED = 8
"""All images of a board are told of its due time once one in so many has come or gone, or the time left has doubled or
halved."""


@dataclass(slots=True, eq=False)
class Board:
    """The images of a board that are under way, and when each is due; the board is due with the earliest of them.

    `dues` is a heap of (due time, request id), answered ones among them. `fresh` are images that came since all were
    placed, which was by `placed_s`, infinity for no hurry, when there were `placed`. `needs_s` is what it needed at
    least when it was last looked at.
    """

    key: str
    name: str
    due_s: float = math.inf
    hurry_s: float = math.inf
    images: dict[int, float] = field(default_factory=dict)
    dues: list[tuple[float, int]] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    placed_s: float = math.inf
    placed: int = 0
    late: bool = False
    looked_at: int = 0
    needs_s: float = 0.0

    def dated(self) -> dict[int, float]:
        """Return when those of its images are due that have a due time."""
        return {request_id: due_s for request_id, due_s in self.images.items() if due_s < math.inf}

    def tidy(self) -> None:
        """Forget answered images once they are most of what is kept: a board may go on for as long as the line does."""
        most = 2 * len(self.images) + _CHANGED
        if len(self.fresh) > most:
            self.fresh = [request_id for request_id in self.fresh if request_id in self.images]
        if len(self.dues) > most:
            self.dues = sorted(due for due in self.dues if due[1] in self.images)


@dataclass(frozen=True, slots=True)
class Change:
    """A request that is due at another time than before; infinity is no hurry."""

    request_id: int
    due_s: float
    was_s: float


class Deadlines:
    """Puts requests into a hurry once half of their time is over, and tells of boards that will not be done in time.

    An image has `max_wait_s` from its submission. One with a due time has until then, less what it needs at least. All
    images of a board go by the earliest due time of those under way, also images that have none, until it is certain
    that an image of that board is too late: what is left of it then has all its time again, so that boards that can
    still be done in time are.

    Once the earliest is answered, the board is due with the next. Its images are told of that when it makes a
    difference (`_CHANGED`), so that thousands of images, each due a moment after the other, are not told each time.
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
        if request.due_s == math.inf and not request.serial:
            return
        # Two images of one name are not one board.
        key = f"serial {request.serial}" if request.serial else f"request {request.id}"
        name = request.serial or request.image or f"image {request.id}"
        board = self._board_of[request.id] = self._boards.setdefault(key, Board(key, name))
        board.images[request.id] = request.due_s
        board.fresh.append(request.id)
        if request.due_s < math.inf:
            heapq.heappush(board.dues, (request.due_s, request.id))
            board.due_s = min(board.due_s, request.due_s)
            board.hurry_s = min(board.hurry_s, (since_s + request.due_s) / 2)
        if board.due_s < math.inf:
            # Even if the others are in a hurry already: this one is to be, too.
            self._hurry_from(board, board.hurry_s)
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
            board.tidy()
            if not board.images:
                del self._boards[board.key]
            if now > request.due_s:
                self._miss(board)
            elif not board.late and request.due_s == board.due_s:
                self._due_with_next(board, now)

    def changes(self, now: float) -> Iterator[Change]:
        """Yield what has come into a hurry by now, or is in none any more."""
        while self._aging and (self._aging[0][2] not in self._arrived_s or self._is_old(self._aging[0][2], now)):
            yield from self._set(heapq.heappop(self._aging)[2], now)
        while self._to_look_at and self._to_look_at[0][0] <= now:
            _, _, board = heapq.heappop(self._to_look_at)
            if board.images and not board.late and board.due_s < math.inf:
                self._look_at(board, now)
        while self._to_hurry and self._to_hurry[0][0] <= now:
            _, _, board = heapq.heappop(self._to_hurry)
            for request_id in self._to_place(board, now) if not board.late else ():
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
        for board in self._boards.values():
            assert board.late or board.due_s == min(board.images.values()), f"{self!r}: when {board.name} is due"
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
        doomed_s = self._doom(board.dated(), now)
        if now > doomed_s:
            self._miss(board)
        else:
            board.needs_s = max(0.0, board.due_s - doomed_s)
            board.hurry_s = min(board.hurry_s, (now + doomed_s) / 2)
            self._hurry_from(board, board.hurry_s)
            again_s = now + max(_SOON_S, _PATIENCE * (board.due_s - now))
            heapq.heappush(self._to_look_at, (max(doomed_s, again_s), next(self._ties), board))

    def _hurry_from(self, board: Board, time_s: float) -> None:
        heapq.heappush(self._to_hurry, (time_s, next(self._ties), board))

    def _due_with_next(self, board: Board, now: float) -> None:
        """Let a board whose earliest image is answered be due with the next one, and in a hurry by that."""
        while board.dues and board.dues[0][1] not in board.images:
            heapq.heappop(board.dues)
        board.due_s, earliest = board.dues[0] if board.dues else (math.inf, None)
        if not board.images or not _differs(board, board.due_s, now):
            return
        if earliest is None:
            board.hurry_s, board.looked_at = math.inf, 0
        else:
            half_s = (self._arrived_s[earliest] + board.due_s) / 2
            board.hurry_s = min(half_s, (now + board.due_s - board.needs_s) / 2)
            self._hurry_from(board, board.hurry_s)
        self._hurry_from(board, now)

    def _to_place(self, board: Board, now: float) -> list[int]:
        """Return the images of a board that are to be due by now at another time than before, or may be."""
        due_s = board.due_s if board.hurry_s <= now else math.inf
        fresh, board.fresh = board.fresh, []
        if not _differs(board, due_s, now):
            return fresh
        board.placed_s, board.placed = due_s, len(board.images)
        return list(board.images)

    def _miss(self, board: Board) -> None:
        if not board.late:
            board.late = True
            self._missed.append(board)


def _differs(board: Board, due_s: float, now: float) -> bool:
    """Return whether it makes a difference to the images of a board that they are due then, not by `placed_s`."""
    if due_s == board.placed_s:
        return False
    left_s, was_s = max(_SOON_S, due_s - now), max(_SOON_S, board.placed_s - now)
    if left_s >= 2 * was_s or was_s >= 2 * left_s:
        return True
    return _CHANGED * abs(len(board.images) - board.placed) >= board.placed


class Least:
    """The least time that stages can still take by the cost table, in whatever order: what is late by it is late.

    It leaves out what cannot be known: what their findings will lead to.
    """

    def __init__(self, costs: CostTable, executors: Mapping[str, Executor], cases: Cases) -> None:
        self._costs, self._executors, self._cases = costs, executors, cases
        self._pools = {executor.pool.id: executor.pool for executor in executors.values()}

    def doomed_s(self, dues: Mapping[int, float], now: float) -> float:
        """Return from when on it is certain, as things stand, that one of these requests is not done when it is due.

        Each of their stages has to run, alone at best; and all of them together have to be loaded for and run by as
        many lanes and executors as there are.
        """
        ends_s = {
            stage: executor.busy_until_s
            for executor in self._executors.values()
            if executor.batch is not None
            for stage in executor.batch.stages
        }
        alone_s: dict[str, float] = {}
        waiting: Counter[str] = Counter()
        doomed_s = math.inf
        for request_id, due_s in dues.items():
            for expert in self._cases.awaits(request_id):
                end_s = ends_s.get(Stage(request_id, expert))
                if end_s is None:
                    waiting[expert] += 1
                    if expert not in alone_s:
                        alone_s[expert] = self._alone_s(expert, now)
                    doomed_s = min(doomed_s, due_s - alone_s[expert])
                else:
                    doomed_s = min(doomed_s, due_s - max(0.0, end_s - now))
        return min(doomed_s, max(dues.values()) - self._together_s(waiting))

    def _alone_s(self, expert: str, now: float) -> float:
        """Return the time until one stage that waits has run on the executor where that is soonest."""
        least_s = math.inf
        for executor in self._executors.values():
            cost = self._costs(executor.device, expert)
            busy_s = max(0.0, executor.busy_until_s - now) if executor.batch else 0.0
            load_s = 0.0 if executor.pool.state(expert) in (State.READY, State.LOADING) else cost.load_s
            least_s = min(least_s, max(busy_s, load_s) + cost.batch_s(1))
        return least_s

    def _together_s(self, waiting: Mapping[str, int]) -> float:
        """Return the time until all that waits has been loaded for and run, if nothing ever stood still."""
        loads_s = work_s = 0.0
        for expert, stages in waiting.items():
            costs = [self._costs(pool.device, expert) for pool in self._pools.values()]
            work_s += min(_batches_s(cost, stages) for cost in costs)
            if not any(expert in pool for pool in self._pools.values()):
                loads_s += min(cost.load_s for cost in costs)
        return max(loads_s / len(self._pools), work_s / len(self._executors))


def _batches_s(cost: Cost, stages: int) -> float:
    return cost.base_s * math.ceil(stages / cost.max_batch) + cost.per_image_s * stages
