"""The boards that a user asks a line for: one, several, or several in a mix, each perhaps with its parts list."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coe.board import parts_list as parts_lists
from coe.board.parts_list import PlacedPart
from coe.errors import ConfigError, did_you_mean
from coe.helpers import values

PartsList = Sequence[PlacedPart] | Path | str
Parts = PartsList | Mapping[str, PartsList]
"""The parts list of the only board; or of some boards, by the words that ask for the boards."""


@dataclass(frozen=True, slots=True)
class AskedBoard:
    """A board as a user asks for it: its name or path, its mix, and its parts list; () without a list.

    `name` is its name on the line; "" means the name that its file says. Versions of one board on a line need different
    names.
    """

    source: str | Path
    mix: float = 1.0
    parts: tuple[PlacedPart, ...] = ()
    name: str = ""


Boards = str | Path | Sequence[str | Path] | Mapping[str, float] | Sequence[AskedBoard]
"""A board, by name or path; several; several with their relative frequencies; or with all that is asked."""


def asked_boards(board: object, parts: object = None) -> tuple[AskedBoard, ...]:
    """Return the boards that a user asks for; raises ConfigError if `board` or `parts` is of another form."""
    if isinstance(board, Sequence) and board and all(isinstance(asked, AskedBoard) for asked in board):
        return tuple(board)
    mixes = _mixes(board)
    lists = _lists(parts, mixes)
    return tuple(AskedBoard(source, mix, lists.get(str(source), ())) for source, mix in mixes.items())


def _mixes(board: object) -> dict[str | Path, float]:
    boards = [board] if isinstance(board, str | Path) else board
    if not isinstance(boards, Sequence | Mapping) or not boards or not all(map(_is_name, boards)):
        raise ConfigError(
            f"board={values.shown(board)}: give the name of a board or the path of its file, a list of them, or a "
            "mapping from each to its relative frequency"
        )
    sources = list(boards)
    if len({str(source) for source in sources}) < len(sources):
        raise ConfigError(f"board={values.shown(board)}: a board occurs twice; remove one of them")
    if not isinstance(boards, Mapping):
        return dict.fromkeys(sources, 1.0)
    for source, mix in boards.items():
        if isinstance(mix, bool) or not isinstance(mix, int | float) or not 0 < mix < math.inf:
            raise ConfigError(f"board '{source}' cannot have the mix {values.shown(mix)}; give a number above 0")
    return {source: float(mix) for source, mix in boards.items()}


def _is_name(source: object) -> bool:
    return isinstance(source, str | Path) and bool(str(source))


def _lists(parts: object, boards: Mapping[str | Path, float]) -> dict[str, tuple[PlacedPart, ...]]:
    if parts is None or parts == ():
        return {}
    names = [str(source) for source in boards]
    if isinstance(parts, Mapping):
        for name in map(str, parts):
            if name not in names:
                raise ConfigError(f"parts: '{name}' is not a board of this line{did_you_mean(name, names)}")
        return {str(name): _parts(listed) for name, listed in parts.items()}
    if len(names) > 1:
        raise ConfigError(f"parts: the line has {len(names)} boards; give a mapping from a board to its parts list")
    return {names[0]: _parts(parts)}


def _parts(parts: object) -> tuple[PlacedPart, ...]:
    """Return a parts list; raises ConfigError for anything but a path or a list of PlacedPart."""
    if isinstance(parts, str | Path) and str(parts):
        return parts_lists.read(Path(parts))
    if not isinstance(parts, Sequence) or not parts or not all(isinstance(part, PlacedPart) for part in parts):
        raise ConfigError(f"parts={values.shown(parts)}: give the path of a parts list, or a list of PlacedPart")
    return tuple(parts)
