"""What is foreseen on a line of several boards: each board has its own order, and all places count on one scale.

On a line of one board this is the foresight of that board.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from coe.board.parts_list import PlacedPart
from coe.board.router import Router
from coe.scheduler.foresight import Foresight
from coe.scheduler.history import HistoryWatcher, ImageView

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
