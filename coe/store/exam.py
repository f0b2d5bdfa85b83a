"""What an expert was shown that must not pass, made from the pictures that taught it, and how often it passed.

Held-out pictures say how an expert judges defects like those that it was taught. The exam says how it judges a part
that is missing, turned, or of another kind, which a line fears and nobody photographs.
"""

from __future__ import annotations

from enum import StrEnum

from coe.rates import Rate
from coe.strict_model import Bytes, Count, StrictModel

MOST = 0.1
"""An expert is blind to an item of which, with a confidence of 95 %, more than this share passes."""


class Shown(StrEnum):
    """What an expert is shown in its exam."""

    MISSING = "missing"
    """A piece of the part's surroundings lies over the part."""
    TURNED = "turned"
    """A good part, turned by 180 degrees."""
    NEIGHBOUR = "neighbour"
    """Another part of the same board in the window."""
    UNTAUGHT = "untaught"
    """Bad pictures of one label, judged by an expert that learned without this label."""


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
        return self.rate.lower() > MOST

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
