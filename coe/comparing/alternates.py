"""Which of several references a picture is compared with: good parts may look in several ways, as of two suppliers.

The picture as a whole decides, so that a defect that looks like a place of another alternate stays a defect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from coe.comparing.alignment import same_shape
from coe.comparing.comparison import LEAST_SIDE, Comparison, compare
from coe.comparing.motion import Pixels


class Alternate(Protocol):
    """A reference: `image` (H, W, 3) and its `spread` (H, W), both uint8."""

    @property
    def image(self) -> Pixels:
        """Its picture."""

    @property
    def spread(self) -> Pixels:
        """By how many grey levels good parts vary."""


A = TypeVar("A", bound=Alternate)


def best_of(image: Pixels, alternates: Sequence[A]) -> A:
    """Return the reference that a picture (h, w, 3) uint8 RGB fits best, the first of equals.

    Of those with which it can be compared that is the one from which it differs least, on average over the whole
    reference; if there is none, the one with the highest correlation after the alignment.
    """
    if len(alternates) == 1:
        return alternates[0]
    return min(alternates, key=lambda one: _misfit(compare(image, one.image, one.spread)))


def alike_in_size(one: Pixels, other: Pixels) -> bool:
    """Tell whether two references are near enough in size that one picture may be compared with both."""
    sides = sorted(min(pixels.shape[:2]) for pixels in (one, other))
    return same_shape(one, other) and sides[0] >= LEAST_SIDE * sides[1]


def _misfit(comparison: Comparison) -> tuple[bool, float]:
    if comparison.difference is not None:
        return False, float(comparison.difference.mean())
    return True, 1.0 if comparison.alignment is None else -comparison.alignment.fit
