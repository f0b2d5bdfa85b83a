"""Which expert is needed at which place ahead: from a parts list, or learned from the boards that came before.

A place counts the parts that the camera reaches, over all boards: on the second board the places go on. So an image
changes the next place of the experts of its part alone, and a ranking by place moves nothing else. No clock and no
file: the same images give the same places.

Each board of a line has its own order (`Foresight`), from its parts list or learned (`LearnedOrder`); `LineForesight`
counts the places of all boards on one scale.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coe import config
from coe.board.parts_list import PlacedPart
from coe.board.router import Router
from coe.core import rule_of
from coe.helpers.arithmetic import added
from coe.scheduler.history import HistoryWatcher, ImageView

_WEIGHT = 0.5
"""How much the last board weighs in the place of a part, against all boards before it."""
_MISSED_BOARDS = 3
"""A part that has not come on so many boards in turn is forgotten."""
_SAME_PRODUCT = 0.5
"""The share of a board's parts that must be known, else it is another product and all before it is forgotten."""
_MOST_PARTS = 50_000
"""A board has no more parts than this; further names of parts, as of files, are not kept."""


@dataclass(slots=True)
class _Known:
    """A part that came before: its place, on how many boards in turn it was missing, and a new component seen once."""

    component: str
    place: float
    missed: int = 0
    other: str = ""


class LearnedOrder:
    """Takes in the parts of a board as they come; `finish` returns the parts that the next board will have.

    A part that was left out, came early or late, or had another component on one board changes little: places are
    means, and a component counts once it has come twice in turn. Until then nobody can know which of the two is the
    exception: the next board may have either (`other`).
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._board: dict[str, str] = {}

    def __len__(self) -> int:
        """Return how many parts of the present board have come."""
        return len(self._board)

    def __contains__(self, refdes: object) -> bool:
        """Return whether a part of the present board has come."""
        return refdes in self._board

    def saw(self, part: PlacedPart) -> None:
        """Take in a part of the present board; a part that comes again keeps its place."""
        if len(self._board) < _MOST_PARTS or part.refdes in self._board:
            self._board[part.refdes] = part.component

    def other(self, refdes: str) -> str:
        """Return the component that a part had on its last board, if another component counts; "" if it agreed."""
        known = self._known.get(refdes)
        return known.other if known is not None else ""

    def finish(self) -> tuple[PlacedPart, ...]:
        """End the present board; return the parts that the next board is expected to have, in their order."""
        board, self._board = self._board, {}
        same = sum(refdes in self._known and self._known[refdes].component == board[refdes] for refdes in board)
        if board and same < _SAME_PRODUCT * len(board):
            self._known = {}
        # The k-th known part of this board takes the k-th of the places that these parts had: parts that were left out
        # must not move all parts behind them.
        places = iter(sorted(self._known[refdes].place for refdes in board if refdes in self._known))
        place = -1.0
        for known in self._known.values():
            known.missed += 1
        for refdes, component in board.items():
            entry = self._known.get(refdes)
            if entry is None:
                # A new part stands behind the part that came before it: sorting keeps the order of equal places.
                self._known[refdes] = _Known(component, place)
                continue
            place = next(places)
            entry.place += _WEIGHT * (place - entry.place)
            entry.missed = 0
            if component in (entry.component, entry.other):
                entry.component, entry.other = component, ""
            else:
                entry.other = component
        kept = {refdes: known for refdes, known in self._known.items() if known.missed < _MISSED_BOARDS}
        order = sorted(kept, key=lambda refdes: kept[refdes].place)
        for place, refdes in enumerate(order):
            kept[refdes].place = float(place)
        self._known = kept
        return tuple(PlacedPart(kept[refdes].component, refdes) for refdes in order)


LATE_PARTS = 80
"""A part that has not come when this many later parts have is taken as left out."""
_HARDLY_BEGUN = 8
"""A board that begins before one part in so many of the last board has come is inspected together with it."""
_JUDGED = 32
"""The last images that tell whether the boards still are what is foreseen, and how fast images come."""
_AGREEING = 0.5
"""The share of these that must be what was foreseen, else nothing is foreseen until the next board."""


@dataclass(slots=True)
class _Board:
    """The place at which a board begins (None if it began before this order was known), and its last image's number."""

    begin: int | None
    last: int


class Foresight:
    """Foresees the experts of a board's parts to come: those that at least half of the images of a component need.

    `parts` is the list of a board, in the order of the camera; without it the order is learned, and known from the
    second board on. A board begins with a new serial, or when a refdes of the present serial comes again half a board
    later. An image without a refdes, or with a refdes that is not known, says nothing. `changed` is called with
    each expert whose next place changes. `board_key` is that of the board's images.
    """

    def __init__(
        self,
        router: Router,
        changed: Callable[[str], None] = lambda expert: None,
        parts: Sequence[PlacedPart] = (),
        board_key: str = "",
    ) -> None:
        self._router, self._changed, self._board_key = router, changed, board_key
        self._learned = None if parts else LearnedOrder()
        self.head = 0
        """The place after the furthest part so far."""
        self._passed = 0
        """All parts before this place have come, or are taken as left out."""
        self._came = 0
        """How many images of known parts have come since the last board began that does not share its places."""
        self._seen: set[int] = set()
        self._serial: str | None = None
        self._images = 0
        """How many images with a refdes have come."""
        self._boards: OrderedDict[str, _Board] = OrderedDict()
        """The boards whose images still come, by serial; the board whose last image is oldest stands first."""
        self.next_places: dict[str, int] = {}
        """The next place of each expert that is foreseen; a place before `head` is that of a part that is late."""
        self._gaps_s: deque[float] = deque(maxlen=_JUDGED)
        self._last_s: float | None = None
        self._agreed: deque[bool] = deque(maxlen=_JUDGED)
        self._follow(parts)

    def __repr__(self) -> str:
        return f"<Foresight at place {self.head}, {len(self.next_places)} experts foreseen on {len(self._parts)} parts>"

    def horizon(self) -> int:
        """Return the place that is reached in `config.AHEAD_S` at the present pace; `head` before there is a pace."""
        if not self._gaps_s:
            return self.head
        # A mean, because images may come in groups; without the longest, which may be the pause between two boards.
        counted = max(1, len(self._gaps_s) - 1)
        gap_s = added(sorted(self._gaps_s)[:counted]) / counted
        return self.head + int(config.AHEAD_S / max(gap_s, 1e-3))

    def follow(self, router: Router) -> None:
        """Go on by another router, which has the same rules for this board."""
        self._router = router

    def arrived(self, image: ImageView) -> None:
        """Take note of an image: of the pace and, by its serial and refdes, of the place."""
        request = image.request
        if self._last_s is not None:
            self._gaps_s.append(image.arrived_s - self._last_s)
        self._last_s = image.arrived_s
        if not request.refdes:
            return
        self._images += 1
        self._forget_boards()
        if self._is_new_board(request.serial, request.refdes):
            self._begin(request.serial)
        board = self._boards[request.serial]
        board.last = self._images
        self._boards.move_to_end(request.serial)
        if self._learned is not None and request.serial == self._serial:
            self._learned.saw(PlacedPart(request.component, request.refdes))
        index = self._index.get(request.refdes)
        if board.begin is not None and index is not None:
            self._came += 1
            self._judge(request.component in self._components[index])
            self._reach(board.begin + index)

    # Boards

    def _is_new_board(self, serial: str, refdes: str) -> bool:
        if serial != self._serial or serial not in self._boards:
            return serial not in self._boards
        begin, index = self._boards[serial].begin, self._index.get(refdes)
        if begin is not None and index is not None:
            place = begin + index
            has_come = place < self._passed or place in self._seen
            return has_come and place < self.head - len(self._parts) // 2
        return not serial and not self._parts and self._learned is not None and refdes in self._learned

    def _begin(self, serial: str) -> None:
        """Begin a board; with it, the order that was learned from the boards before comes into force."""
        if not self._is_shared():
            learned = self._learned.finish() if self._learned is not None and self._serial is not None else ()
            if learned:
                for board in self._boards.values():
                    board.begin = None
                self._follow(learned)
            elif self._parts:
                self._begin_lap()
        self._serial = serial
        self._boards[serial] = _Board(self._lap if self._parts else None, self._images)

    def _forget_boards(self) -> None:
        """Forget boards whose images have not come for half a board: what comes then is another board."""
        oldest = self._images - max(LATE_PARTS, len(self._parts) // 2)
        while self._boards and next(iter(self._boards.values())).last < oldest:
            self._boards.popitem(last=False)

    def _is_shared(self) -> bool:
        """Return whether a new board shares the places of the last, which has hardly begun and is what was foreseen."""
        # It has hardly begun if few images or few parts of it have come: then boards whose images take turns cost no
        # more than boards one after another, even if each image has its own serial.
        begun = min(self._came, self.head - self._lap)
        return _HARDLY_BEGUN * begun < len(self._parts) and len(self.next_places) == len(self._places)

    def _begin_lap(self) -> None:
        laps = -(-(self.head - self._origin) // len(self._parts))
        self._lap, self._came = self._origin + laps * len(self._parts), 0
        if len(self.next_places) < len(self._places):
            # Nothing was foreseen for the rest of the last board.
            self.head = self._lap
            self._follow(self._parts)

    def _judge(self, agrees: bool) -> None:
        """Foresee nothing for the rest of a board that is another product than the list or the boards before."""
        self._agreed.append(agrees)
        if len(self._agreed) == _JUDGED and sum(self._agreed) < _AGREEING * _JUDGED and self.next_places:
            gone, self.next_places = self.next_places, {}
            for expert in gone:
                self._changed(expert)

    # Places

    def _follow(self, parts: Sequence[PlacedPart]) -> None:
        """Foresee boards of these parts from now on, one after another."""
        self._parts, self._came = tuple(parts), 0
        self._origin = self._lap = self._passed = self.head
        self._index = {part.refdes: index for index, part in enumerate(parts)}
        self._components = [self._components_of(part) for part in parts]
        self._needs = [self._experts_of(components) for components in self._components]
        self._places: dict[str, list[int]] = {}
        for index, experts in enumerate(self._needs):
            for expert in experts:
                self._places.setdefault(expert, []).append(index)
        self._at = dict.fromkeys(self._places, 0)
        gone, self.next_places = (
            self.next_places,
            {expert: self._origin + places[0] for expert, places in self._places.items()},
        )
        self._seen.clear()
        self._agreed.clear()
        for expert in {**gone, **self.next_places}:
            self._changed(expert)

    def _components_of(self, part: PlacedPart) -> tuple[str, ...]:
        """Return the components that may come at a part: two if the last boards do not agree."""
        other = self._learned.other(part.refdes) if self._learned is not None else ""
        return (part.component, other) if other else (part.component,)

    def _experts_of(self, components: Sequence[str]) -> tuple[str, ...]:
        """Return the likely experts of components, each once; none for a component that the board does not have."""
        rules = [rule_of(self._board_key, component) for component in components]
        known = self._router.components
        return tuple(dict.fromkeys(expert for rule in rules if rule in known for expert in self._router.likely(rule)))

    def _reach(self, place: int) -> None:
        """Take note of a part that has come; parts far behind it are taken as left out."""
        if place < self._passed:
            return
        self._seen.add(place)
        self._go_on(place)
        if place < self.head:
            return
        self.head = place + 1
        while self._passed < self.head - LATE_PARTS:
            if self._passed in self._seen:
                self._seen.discard(self._passed)
            else:
                self._go_on(self._passed)
            self._passed += 1

    def _go_on(self, place: int) -> None:
        """Let the experts whose next place this is go on to the place after it."""
        for expert in self._needs[(place - self._origin) % len(self._parts)]:
            if self.next_places.get(expert) == place:
                self.next_places[expert] = self._place_after(expert)
                self._changed(expert)

    def _place_after(self, expert: str) -> int:
        places = self._places[expert]
        while True:
            self._at[expert] += 1
            laps, index = divmod(self._at[expert], len(places))
            place = self._origin + laps * len(self._parts) + places[index]
            if place not in self._seen:
                return place


AWAY_IMAGES = 32
"""After so many images of other boards nothing is foreseen for a board, until its next image comes."""
_OUT_OF_STEP = 16
"""By how many places a board may lag behind before its places are moved: a move ranks all its experts again."""


class LineForesight(HistoryWatcher):
    """A `Foresight` for each board, by its key (`Request.board_key`); images of one never spoil the order of another.

    Boards whose images come in turn go on side by side: a place on the line is a place of each board that is present,
    moved so that its next part stands at the head. `parts` holds the parts list of each board that has one.
    """

    def __init__(
        self,
        router: Router,
        changed: Callable[[str], None] = lambda expert: None,
        parts: Mapping[str, Sequence[PlacedPart]] | None = None,
    ) -> None:
        self._router, self._changed = router, changed
        self._parts: dict[str, tuple[PlacedPart, ...]] = {}
        self._boards: dict[str, Foresight] = {}
        self._moved: dict[str, int] = {}
        """By board: what its places are moved by."""
        self._others: dict[str, int] = {}
        """By board that is present: how many images of other boards have come since its last image."""
        self._last: str | None = None
        self.head = 0
        """The place after the furthest part so far."""
        for board, listed in (parts or {}).items():
            self._open(board, listed)

    def __repr__(self) -> str:
        return f"<LineForesight at place {self.head}, {len(self._boards)} boards, {len(self._others)} present>"

    # Anybody may read these

    def foresees(self) -> bool:
        """Return whether any expert is foreseen."""
        return any(self._boards[board].next_places for board in self._others)

    def next_place(self, expert: str) -> int | None:
        """Return the next place that needs an expert; None if none is foreseen."""
        next_place = None
        for board in self._others:
            place = self._boards[board].next_places.get(expert)
            if place is not None:
                place += self._moved[board]
                next_place = place if next_place is None else min(next_place, place)
        return next_place

    def images_until(self, expert: str) -> int | None:
        """Return at which image from now an expert is needed, 1 for the next image; None if none is foreseen."""
        place = self.next_place(expert)
        return None if place is None else max(1, place + 1 - self.head)

    def in_order(self) -> list[str]:
        """Return the experts that are foreseen, the next first."""
        places = {
            expert: self.next_place(expert) for board in self._others for expert in self._boards[board].next_places
        }
        return sorted(places, key=lambda expert: (places[expert] or 0, expert))

    def horizon(self) -> int:
        """Return the place that is reached in `config.AHEAD_S` at the pace of the board whose image came last."""
        if self._last is None:
            return self.head
        present = self._boards[self._last]
        return self.head + present.horizon() - present.head

    # The history calls this

    def arrived(self, image: ImageView) -> None:
        """Take note of an image: of its board, and there of its place."""
        board = image.request.board_key
        if board not in self._boards:
            self._open(board, ())
        if self._last not in (None, board):
            self._turn_to(board)
        self._last, self._others[board] = board, 0
        for other in [other for other in self._others if other != board]:
            self._others[other] += 1
            if self._others[other] >= AWAY_IMAGES:
                del self._others[other]
                self._tell(other)
        self._boards[board].arrived(image)
        self.head = max(self.head, self._boards[board].head + self._moved[board])

    # The controller calls this

    def follow(self, router: Router, parts: Mapping[str, Sequence[PlacedPart]]) -> None:
        """Go on with the boards of `parts` alone, by another router; boards that were here before keep their order.

        A board with another list begins with that; one without a list has an empty list.
        """
        self._router = router
        for board in list(self._boards):
            if board not in parts or self._parts[board] != tuple(parts[board]):
                del self._boards[board], self._parts[board], self._moved[board]
                self._others.pop(board, None)
                self._last = None if self._last == board else self._last
        for foresight in self._boards.values():
            foresight.follow(router)
        for board, listed in parts.items():
            if board not in self._boards:
                self._open(board, listed)

    def _open(self, board: str, parts: Sequence[PlacedPart]) -> None:
        self._parts[board], self._moved[board] = tuple(parts), self.head
        self._others[board] = 0
        self._boards[board] = Foresight(self._router, self._changed, parts, board)

    def _turn_to(self, board: str) -> None:
        """Move the places of a board that was away, or that lags far behind the others, to the head."""
        step = self.head - (self._boards[board].head + self._moved[board])
        if board not in self._others or step >= _OUT_OF_STEP:
            self._moved[board] += step
            self._tell(board)

    def _tell(self, board: str) -> None:
        for expert in self._boards[board].next_places:
            self._changed(expert)
