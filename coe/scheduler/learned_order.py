"""The order of a board's parts, learned from the boards that came before: a table by refdes."""

from __future__ import annotations

from dataclasses import dataclass

from coe.board.parts_list import PlacedPart

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
