"""What the boards of CAD programs have in common, as the tables that are made of them."""

from __future__ import annotations

from collections.abc import Iterable

from coe.errors import list_few
from coe.visible import visible

BOARD_NAMES = ("Designator", "Value", "Footprint", "X (mm)", "Y (mm)", "Rotation", "Side", "DNP")


def left_unread(names: Iterable[str], why: str) -> tuple[str, ...]:
    """Return a note on the parts of a board that no placement file of its program would have; none without a name."""
    few = list_few(map(visible, filter(None, dict.fromkeys(names))))
    return (f"not read, {why}: {few}",) if few else ()
