"""What an expert was shown that must not pass, made from the pictures that taught it, and how often it passed.

Held-out pictures say how an expert judges defects like those that it was taught. The exam says how it judges a part
that is missing, turned, or of another kind, which a line fears and nobody photographs.
"""

from __future__ import annotations

from coe.core import Shown
from coe.rates import Rate
from coe.strict_model import Bytes, Count, StrictModel

MOST = 0.1
"""An expert is blind to an item of which, with a confidence of 95 %, more than this share passes."""


class ExamItem(StrictModel):
    """One row of an exam: of `shown` pictures `passed` were OK; `label` is that of `untaught`, "" of other items."""

    item: Shown
    shown: Count
    passed: Bytes
    label: str = ""

    @property
    def rate(self) -> Rate:
        """The share that passed, with its bounds."""
        return Rate(self.passed, self.shown)

    @property
    def is_blind(self) -> bool:
        """Whether more than a tenth passes, by the lower bound."""
        return self.rate.is_above(MOST)

    @property
    def is_passed(self) -> bool:
        """Whether at most a tenth passed."""
        return self.rate.share <= MOST

    @property
    def name(self) -> str:
        """The item as people and `accepts:` in a board file name it, such as `turned` or `untaught scratch`."""
        return f"{self.item} {self.label}" if self.label else str(self.item)


class Exam(StrictModel):
    """The exam of one expert.

    `is_surface` says that its pictures show no part before its surroundings, so that nothing could be shown as missing:
    such an expert needs bad pictures of each kind. `left_out` names pictures that were given as good, look bad, and
    were not learned from.
    """

    items: tuple[ExamItem, ...] = ()
    is_surface: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def blind(self) -> tuple[ExamItem, ...]:
        """The items of which more than a tenth passes."""
        return tuple(item for item in self.items if item.is_blind)

    @property
    def stops(self) -> dict[Shown, bool]:
        """Whether the expert stops an item (True) or is blind to it (False); neither, if too few were shown to tell.

        Items of one kind are taken together: it is blind if it is blind to one of them.
        """
        stops: dict[Shown, bool] = {}
        for item in self.items:
            if item.is_blind or item.is_passed:
                stops[item.item] = stops.get(item.item, True) and not item.is_blind
        return stops
