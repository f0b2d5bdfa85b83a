"""Arithmetic whose results are the same on every version of Python, and numbers that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Iterable


def added(numbers: Iterable[float]) -> float:
    """Return the sum of numbers, rounded once; inf if it is too large for a float.

    The built-in `sum` rounds differently from Python 3.12 on. A different rounding can break a tie differently, and the
    run then takes another course.
    """
    try:
        return math.fsum(numbers)
    except OverflowError:
        return math.inf


def finite(value: float | None, digits: int) -> float | None:
    """Round a number for JSON, which has neither NaN nor infinity: they become None."""
    return round(float(value), digits) if value is not None and math.isfinite(value) else None
