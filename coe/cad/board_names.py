"""What the boards of CAD programs have in common, as the tables that are made of them."""

from __future__ import annotations

from collections.abc import Iterable

from coe.cad.vocabulary import plain
from coe.errors import list_few
from coe.not_fitted import FITTED, HOW, LEFT_OUT
from coe.visible import visible

BOARD_NAMES = ("Designator", "Value", "Footprint", "X (mm)", "Y (mm)", "Rotation", "Side", "DNP", "Fitted")
_FITTED = tuple(name for name in FITTED if name not in HOW)


def fitting_cells(fields: Iterable[tuple[str, str]], *, is_out: bool) -> list[str]:
    """Return the cells DNP and Fitted of a part that its program leaves out, or of which fields of these names say it.

    A field such as Mount, which may say how a part is mounted, says nothing here.
    """
    said = {plain(name): text for name, text in fields if text}
    out, fitted = (next((said[name] for name in names if name in said), "") for names in (LEFT_OUT, _FITTED))
    return ["DNP" if is_out else out, fitted]


def left_unread(names: Iterable[str], why: str) -> tuple[str, ...]:
    """Return a note on the parts of a board that no placement file of its program would have; none without a name."""
    few = list_few(map(visible, filter(None, dict.fromkeys(names))))
    return (f"not read, {why}: {few}",) if few else ()
