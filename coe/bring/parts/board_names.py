"""What the boards of CAD programs have in common, as the tables that are made of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from coe.bring.parts.vocabulary import FITTED, HOW, LEFT_OUT, plain
from coe.errors import ConfigError, list_few
from coe.helpers.visible import visible

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


def without_numbers(path: Path, name: str) -> ConfigError:
    """Return the error for a part of a board whose place or angle is no number."""
    return ConfigError(f"{path}: the component '{visible(name)}' lacks a place or an angle in numbers; export it again")


def only_board(
    path: Path, noun: str, with_parts: Iterable[str], panels: Collection[str]
) -> tuple[str, tuple[str, ...]]:
    """Return the name of the one board of a file that has components and is no panel, and notes; raises ConfigError."""
    boards = [name for name in with_parts if name not in panels]
    if len(boards) != 1:
        what = f"several boards ({list_few(map(visible, boards))})" if boards else "no components"
        raise ConfigError(f"{path}: this {noun} has {what}; export it for the assembly of one board")
    few = list_few(map(visible, sorted(panels)))
    return boards[0], (f"the places are those of one board, which the panel {few} repeats",) if few else ()
