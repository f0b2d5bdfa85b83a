"""What the line knows of a board that it has begun. One thread at a time; a crash forgets it, and it is begun again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from coe.core import FailureKind, Result
from coe.serve.database.boards import Board
from coe.serve.line.items import Item, Items
from coe.serve.line.product import Product

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
    late: list[Result] = field(default_factory=list)
    """Results that came after the decision, and are not written yet."""

    @property
    def waiting(self) -> list[Item]:
        """The components that have no result yet."""
        return [item for item in self.items.seen if item.refdes not in self.results]

    @property
    def is_complete(self) -> bool:
        """Whether every component that can be seen has its result."""
        return len(self.results) == len(self.items.seen)

    def take(self, refdes: str, result: Result) -> None:
        """Take in a component's result; a second one changes nothing."""
        if refdes in self.results:
            return
        self.results[refdes] = result
        if self.is_decided:
            self.late.append(result)
