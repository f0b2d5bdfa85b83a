"""When images and boards are due, which images are in a hurry, and which boards will miss.

A board is all images of one serial and one version of a board file that are under way, with or without a due time; an
image without a serial is a board by itself. Only this file puts images into a hurry. `LeastTime` tells what no decision
can save: what is late by the least time that its waiting stages can still take.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Generic, TypeVar

from sortedcontainers import SortedDict

from coe.core import Request, Stage
from coe.scheduler.cases import Cases
from coe.scheduler.costs import Cost, Tier
from coe.scheduler.events import Late
from coe.scheduler.policies.base import World
from coe.scheduler.pool import State

_SPARE = 8
"""So many entries are kept beside twice as many as there are things: to sort a few again and again would cost more."""

T = TypeVar("T", bound=Hashable)


class WakeTimes(Generic[T]):
    """The earliest time, in seconds, that was asked for each thing; things of one time wake as they were asked for."""

    def __init__(self) -> None:
        self._times_s: dict[T, float] = {}
        # Later entries of a thing, and those of forgotten things, are passed over.
        self._entries: list[tuple[float, int, T]] = []
        self._ties = count()
        self.next_s = math.inf
        """No thing wakes before this time."""

    def __len__(self) -> int:
        return len(self._entries)

    def wake(self, thing: T, time_s: float) -> None:
        """Wake a thing at this time, or earlier if that was asked for."""
        if time_s < self._times_s.get(thing, math.inf):
            self._times_s[thing] = time_s
            heapq.heappush(self._entries, (time_s, next(self._ties), thing))
            self.next_s = self._entries[0][0]

    def due(self, now: float) -> Iterator[T]:
        """Yield the things whose time has come, the earliest first; each wakes once, unless it is asked for again."""
        while self._entries and self._entries[0][0] <= now:
            time_s, _, thing = heapq.heappop(self._entries)
            self.next_s = self._entries[0][0] if self._entries else math.inf
            if self._times_s.get(thing) == time_s:
                del self._times_s[thing]
                yield thing

    def forget(self, thing: T) -> None:
        """Wake a thing no more. Entries to pass over go once they are the majority: they may be due in a day."""
        self._times_s.pop(thing, None)
        if len(self._entries) > 2 * len(self._times_s) + _SPARE:
            self._entries = sorted(entry for entry in self._entries if self._times_s.get(entry[2]) == entry[0])


class LeastTime:
    """The least time that stages can still take in any order, by the cost table: a board that is late by it is late.

    It leaves out stages that the findings will lead to, because they are not known yet.
    """

    def __init__(self, world: World, cases: Cases) -> None:
        self._cases = cases
        self.follow(world)

    def follow(self, world: World) -> None:
        """Go on by another world, of other rules."""
        self._world, self._costs, self._executors = world, world.costs, world.executors
        self._pools = {executor.pool.id: executor.pool for executor in world.executors.values()}

    def too_late_s(self, dues: Mapping[int, float], now: float) -> float:
        """Return the time after which one of these requests is certain to miss its due time, as things stand.

        Two bounds count: each stage must run, at best alone; and the lanes and executors together must load and run all
        of them.
        """
        ends_s = {
            stage: flight.until_s
            for executor in self._executors.values()
            for flight in executor.flights
            for stage in flight.batch.stages
        }
        alone_s: dict[str, float] = {}
        waiting: Counter[str] = Counter()
        too_late_s = math.inf
        for request_id, due_s in dues.items():
            for expert in self._cases.awaits(request_id):
                end_s = ends_s.get(Stage(request_id, expert))
                if end_s is None:
                    waiting[expert] += 1
                    if expert not in alone_s:
                        alone_s[expert] = self._alone_s(expert, now)
                    too_late_s = min(too_late_s, due_s - alone_s[expert])
                else:
                    too_late_s = min(too_late_s, due_s - max(0.0, end_s - now))
        return min(too_late_s, max(dues.values()) - self._together_s(waiting))

    def _alone_s(self, expert: str, now: float) -> float:
        """Return the time until a waiting stage has run, alone, on the executor that would be done first."""
        least_s = math.inf
        for executor in self._executors.values():
            cost = self._costs(executor.device, expert)
            busy_s = executor.idle_from_s(now) - now
            here = executor.pool.state(expert) in (State.READY, State.LOADING)
            load_s = 0.0 if here else self._world.switch_s(executor.pool, expert)
            least_s = min(least_s, max(busy_s, load_s) + cost.batch_s(1))
        return least_s

    def _together_s(self, waiting: Mapping[str, int]) -> float:
        """Return the time until all waiting stages have been loaded for and run, if nothing ever pauses."""
        reads_s = copies_s = work_s = 0.0
        for expert, stages in waiting.items():
            costs = [self._costs(pool.device, expert) for pool in self._pools.values()]
            work_s += min(cost.batches_s(stages) for cost in costs)
            if not any(expert in pool for pool in self._pools.values()):
                # Bodies count for nothing, because many of these experts may share one.
                copies_s += min(cost.copy_s for cost in costs)
                reads = zip(self._pools.values(), costs, strict=True)
                reads_s += min(self._read_s(pool.device, expert, cost) for pool, cost in reads)
        return max(max(reads_s, copies_s) / len(self._pools), work_s / len(self._executors))

    def _read_s(self, device: str, expert: str, cost: Cost) -> float:
        return 0.0 if self._world.source(device, expert) is Tier.HOST else cost.load_s - cost.copy_s


TooLateFrom = Callable[[Mapping[int, float], float], float]
"""A function of the due times by request and of the time now; see `LeastTime.too_late_s`."""

BoardKey = tuple[str, str] | int
"""The board's key on the line (`Request.board_key`) and the serial; the id of the request if it has no serial."""

_GROWN = 1.25
"""A board is checked again once its number of images has grown by this factor, so that checks cost little an image."""
_PATIENCE = 0.05
"""A board is checked again after this part of the time that it has left,"""
_SOON_S = 0.01
"""but no sooner than after this time."""
_CHANGED = 8
"""The images of a board are moved to its due time once one in this many has come or gone, or the time left has doubled
or halved."""


@dataclass(slots=True, eq=False)
class DueBoard:
    """The images of a board that are under way, and when each is due; the board is due with the earliest of them.

    `dues` holds the images by due time, the earliest first, and `missed` those whose due time is certain to be missed:
    these count no more. The board last missed a due time at `told_s`. At the last placement all `placed` images got the
    due time `placed_s` (infinity: no hurry); `fresh` holds the images that came since. `needs_s` is the least time that
    the board needed when it was last checked, with `checked` images.
    """

    key: BoardKey
    name: str
    hurry_s: float = math.inf
    images: dict[int, float] = field(default_factory=dict)
    dues: dict[float, set[int]] = field(default_factory=dict)
    missed: dict[float, set[int]] = field(default_factory=dict)
    told_s: float = math.inf
    fresh: list[int] = field(default_factory=list)
    placed_s: float = math.inf
    placed: int = 0
    checked: int = 0
    needs_s: float = 0.0

    @property
    def due_s(self) -> float:
        """The earliest due time that can still be met; infinity if there is none."""
        return next(iter(self.dues)) if self.dues else math.inf

    def dated(self) -> dict[int, float]:
        """Return the due times of the images that can still be in time."""
        return {request_id: due_s for due_s, images in self.dues.items() for request_id in images}

    def add(self, request: Request) -> None:
        """Take in an image."""
        self.images[request.id] = request.due_s
        self.fresh.append(request.id)
        if request.due_s < math.inf:
            # Sorted from the first due time on: most boards are never due.
            self.dues = self.dues or SortedDict()
            book = self.missed if request.due_s in self.missed else self.dues
            book.setdefault(request.due_s, set()).add(request.id)

    def remove(self, request: Request) -> None:
        """Forget an answered image, and the list of fresh images once most are answered: a board may go on for ever."""
        del self.images[request.id]
        for book in (self.dues, self.missed):
            if request.due_s in book:
                book[request.due_s].remove(request.id)
                if not book[request.due_s]:
                    del book[request.due_s]
        if len(self.fresh) > 2 * len(self.images) + _CHANGED:
            self.fresh = [request_id for request_id in self.fresh if request_id in self.images]


@dataclass(frozen=True, slots=True)
class DueChange:
    """A new due time of a request, and its previous due time; infinity means no hurry."""

    request_id: int
    due_s: float
    was_s: float


class Deadlines:
    """Puts requests into a hurry once half of their time is over, and names boards that will not be done in time.

    An image has the time `max_wait_s` from its submission. An image with a due time has the time until then, less the
    least time that its work takes. All images of a board have the earliest due time of those under way, even images
    without a due time.

    Once it is certain that an image is too late, all images of the board with its due time are in no hurry any more, so
    that others can be done in time; those that are due later go on by their own due times, because a serial may go on
    for as long as the line does. A board is named when it misses, and again only after an image of it that came
    since was in time.

    Once the earliest image is answered, the board is due with the next. Its images are moved only when that makes a
    difference (`_CHANGED`), so that thousands of images, each due a moment after the other, do not move each time.
    """

    def __init__(self, max_wait_s: float, too_late_from: TooLateFrom) -> None:
        self._max_wait_s, self._too_late_from = max_wait_s, too_late_from
        self._arrived_s: dict[int, float] = {}
        self._aging: list[tuple[float, int, int]] = []
        self._hurried: dict[int, float] = {}
        self._boards: dict[BoardKey, DueBoard] = {}
        self._board_of: dict[int, DueBoard] = {}
        self._to_hurry: WakeTimes[DueBoard] = WakeTimes()
        self._to_check: WakeTimes[DueBoard] = WakeTimes()
        self._too_late: list[int] = []
        self.missed: list[Late] = []
        """The boards that are newly certain to miss a due time; whoever tells of them empties it."""
        self._ties = count()

    def __repr__(self) -> str:
        return f"<Deadlines of {len(self._arrived_s)} images, {len(self._hurried)} in a hurry>"

    def arrived(self, request: Request, now: float) -> None:
        """Take in an image."""
        since_s = self._arrived_s[request.id] = request.since_s(now)
        # Pictures are decoded in parallel: the image that was handed in first need not arrive first.
        heapq.heappush(self._aging, (since_s, next(self._ties), request.id))
        if request.due_s == math.inf and not request.serial:
            return
        # Two images with the same name and no serial are two boards. So are images of two versions of a board: one that
        # the old version judges too late must not take the hurry from a board that passes again.
        key: BoardKey = (request.board_key, request.serial) if request.serial else request.id
        board = self._boards.get(key)
        if board is None:
            board = self._boards[key] = DueBoard(key, request.serial or request.name)
        self._board_of[request.id] = board
        board.add(request)
        if request.due_s in board.dues:
            board.hurry_s = min(board.hurry_s, (since_s + request.due_s) / 2)
        if board.dues:
            # Needed even if the other images are in a hurry already: this image must join them.
            self._to_hurry.wake(board, board.hurry_s)
            if len(board.images) >= _GROWN * board.checked:
                self._to_check.wake(board, now)

    def due_s(self, request_id: int) -> float:
        """Return when a request in a hurry is due; infinity for a request in no hurry."""
        return self._hurried.get(request_id, math.inf)

    def replied(self, request: Request, now: float) -> None:
        """Forget a request that has its reply."""
        since_s = self._arrived_s.pop(request.id, None)
        if since_s is None:
            return
        self._hurried.pop(request.id, None)
        if len(self._aging) > 2 * len(self._arrived_s) + _CHANGED:
            self._aging = sorted(entry for entry in self._aging if entry[2] in self._arrived_s)
        board = self._board_of.pop(request.id, None)
        if board is None:
            return
        is_earliest = request.due_s < math.inf and request.due_s == board.due_s
        board.remove(request)
        if not board.images:
            del self._boards[board.key]
            self._to_hurry.forget(board)
            self._to_check.forget(board)
        if now > request.due_s:
            self._miss(board, [*takewhile(now.__gt__, board.dues)], request.due_s, now)
        elif since_s > board.told_s and request.due_s < math.inf:
            board.told_s = math.inf
        if is_earliest and board.due_s != request.due_s:
            self._due_with_next(board, now)

    def has_changes(self, now: float) -> bool:
        """Return whether `changes` or `missed` may tell anything by now: at most events they do not."""
        if self._too_late or self.missed or min(self._to_check.next_s, self._to_hurry.next_s) <= now:
            return True
        return bool(self._aging) and self._aging[0][0] + self._max_wait_s / 2 <= now

    def changes(self, now: float) -> Iterator[DueChange]:
        """Yield the requests that have come into a hurry by now, or out of it, with their new due times."""
        # An answered image is passed over.
        while self._aging and self._aging[0][0] + self._max_wait_s / 2 <= now:
            yield from self._set(heapq.heappop(self._aging)[2], now)
        for board in self._to_check.due(now):
            self._check(board, now)
        for board in self._to_hurry.due(now):
            if now < board.hurry_s < math.inf:
                self._to_hurry.wake(board, board.hurry_s)
            for request_id in self._to_place(board, now):
                yield from self._set(request_id, now)
        too_late, self._too_late = self._too_late, []
        for request_id in too_late:
            yield from self._set(request_id, now)

    def check(self, *, idle: bool = False) -> None:
        """Prove the books; raises AssertionError."""
        assert self._hurried.keys() <= self._arrived_s.keys(), f"{self!r}: an answered request is in a hurry"
        dated = {request_id for board in self._boards.values() for request_id in board.images}
        assert dated == self._board_of.keys() <= self._arrived_s.keys(), f"{self!r}: boards"
        for board in self._boards.values():
            books = [*board.dues.items(), *board.missed.items()]
            kept = {request_id: due_s for due_s, images in books for request_id in images}
            assert kept == {id: due_s for id, due_s in board.images.items() if due_s < math.inf}, (
                f"{self!r}: {board.name}"
            )
            assert not board.dues.keys() & board.missed.keys(), f"{self!r}: what {board.name} misses"
        assert len(self._aging) <= 2 * len(self._arrived_s) + _CHANGED + 1, f"{self!r} keeps answered images"
        assert not idle or not self._arrived_s, f"{self!r} at idle"

    def _set(self, request_id: int, now: float) -> Iterator[DueChange]:
        """Set when a request is due, and yield the change if the time is not the same as before."""
        if request_id not in self._arrived_s:
            return
        was_s, due_s = self.due_s(request_id), math.inf
        if self._arrived_s[request_id] + self._max_wait_s / 2 <= now:
            due_s = self._arrived_s[request_id] + self._max_wait_s
        board = self._board_of.get(request_id)
        if board is not None and board.hurry_s <= now and board.images[request_id] not in board.missed:
            due_s = min(due_s, board.due_s)
        if due_s != was_s:
            self._hurried[request_id] = due_s
            if due_s == math.inf:
                del self._hurried[request_id]
            yield DueChange(request_id, due_s, was_s)

    def _check(self, board: DueBoard, now: float) -> None:
        """Look for due times that are certain to be missed, and when the next would be."""
        while board.dues:
            too_late_s = self._too_late_from(board.dated(), now)
            if now <= too_late_s:
                board.checked = len(board.images)
                board.needs_s = max(0.0, board.due_s - too_late_s)
                board.hurry_s = min(board.hurry_s, (now + too_late_s) / 2)
                self._to_hurry.wake(board, board.hurry_s)
                again_s = now + max(_SOON_S, _PATIENCE * (board.due_s - now))
                self._to_check.wake(board, max(too_late_s, again_s))
                return
            alone = [(due_s, dict.fromkeys(images, due_s)) for due_s, images in board.dues.items()]
            gone = [due_s for due_s, dues in alone if now > self._too_late_from(dues, now)]
            # Each due time could be met by itself: together their images need longer than the last of them has left.
            gone = gone or list(board.dues)
            self._miss(board, gone, gone[0], now)

    def _due_with_next(self, board: DueBoard, now: float) -> None:
        """Give a board whose earliest due time counts no more the next due time, and hurry by that."""
        if not board.dues:
            board.hurry_s, board.checked = math.inf, 0
        if not board.images or not _differs(board, board.due_s, now):
            return
        if board.dues:
            half_s = (self._arrived_s[min(board.dues[board.due_s])] + board.due_s) / 2
            board.hurry_s = min(half_s, (now + board.due_s - board.needs_s) / 2)
            self._to_hurry.wake(board, board.hurry_s)
        self._to_hurry.wake(board, now)

    def _to_place(self, board: DueBoard, now: float) -> list[int]:
        """Return the images of a board whose due times may have changed by now."""
        due_s = board.due_s if board.hurry_s <= now else math.inf
        fresh, board.fresh = board.fresh, []
        if not _differs(board, due_s, now):
            return fresh
        board.placed_s, board.placed = due_s, len(board.images)
        return list(board.images)

    def _miss(self, board: DueBoard, dues: Sequence[float], missed_s: float, now: float) -> None:
        """Let these due times of a board count no more; name it, with the due time `missed_s`, unless it is named."""
        for due_s in dues:
            board.missed[due_s] = board.dues.pop(due_s)
            self._too_late += board.missed[due_s]
        if board.told_s == math.inf:
            self.missed.append(Late(board.name, missed_s))
        board.told_s = now
        self._due_with_next(board, now)


def _differs(board: DueBoard, due_s: float, now: float) -> bool:
    """Return whether a due time differs enough from `placed_s` to move the images of a board."""
    if due_s == board.placed_s:
        return False
    left_s, was_s = max(_SOON_S, due_s - now), max(_SOON_S, board.placed_s - now)
    if left_s >= 2 * was_s or was_s >= 2 * left_s:
        return True
    return _CHANGED * abs(len(board.images) - board.placed) >= board.placed
