"""What the worker knows of a begun board. One thread at a time; a crash forgets it, and it is begun again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from coe.core import FailureKind, Result
from coe.serve.database.board_rows import Board
from coe.serve.worker.items import Item, Items
from coe.serve.worker.product import Product

UNSEEN_BY_LINE = (FailureKind.LINE, FailureKind.STOPPED)
"""Failures of the line itself: nobody has looked at the image, so it has no result."""


@dataclass(slots=True, eq=False)
class BoardRun:
    """A board under inspection; `due_s` is on the monotonic clock, and infinity without a due time.

    `product` is the recipe on the line that it is inspected by; None for a board that nobody looks at.
    """

    board: Board
    items: Items
    due_s: float = math.inf
    product: Product | None = None
    is_decided: bool = False
    results: dict[str, Result] = field(default_factory=dict)
    """By refdes, those that came in time."""
    afterwards: dict[str, Result] = field(default_factory=dict)
    """Results that came after the due time, or after the decision: they may raise its severity, and are never OK."""
    late: list[Result] = field(default_factory=list)
    """Those of them that are not written yet."""

    @property
    def waiting(self) -> list[Item]:
        """The components that have no result yet."""
        return [item for item in self.items.seen if item.refdes not in self.results | self.afterwards]

    @property
    def is_complete(self) -> bool:
        """Whether every component that can be seen has its result."""
        return len(self.results) + len(self.afterwards) == len(self.items.seen)

    def take(self, refdes: str, result: Result, at_s: float) -> None:
        """Take in a component's result, which came at a time of the monotonic clock; a second one changes nothing.

        The decision may be written long after the due time, as while the database is locked. It tells what was known
        then.
        """
        if refdes in self.results or refdes in self.afterwards:
            return
        if self.is_decided or at_s >= self.due_s:
            self.afterwards[refdes] = result
            self.late.append(result)
        else:
            self.results[refdes] = result
