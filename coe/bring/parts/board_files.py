"""Boards of CAD programs, told by how they begin, as the tables of their parts: as a placement file, and as a BOM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from coe.bring.parts import eagle_board, ipc_2581, kicad_board, odb_plus_plus
from coe.bring.parts.s_expression import Numbered, read_board
from coe.bring.parts.spreadsheet import Table


class BoardFile(NamedTuple):
    """The parts of a board, and for one of KiCad its lists."""

    table: Table
    drawn: Sequence[Numbered] = ()


def read_board_file(path: Path, raw: bytes) -> BoardFile | None:
    """Return the parts of a board; None for bytes that are of none. Raises ConfigError."""
    if kicad_board.is_board(raw):
        drawn = read_board(path, raw)
        return BoardFile(kicad_board.board_table(path, drawn), drawn)
    board = next((one for one in (eagle_board, ipc_2581, odb_plus_plus) if one.is_board(raw)), None)
    return None if board is None else BoardFile(board.board_table(path, raw))
