"""Files of CAD programs, told by how they begin: boards, each as the table of its parts, and what is not read.

A converter is a module with `is_board(raw)` and `board_table(path, raw)`, which returns the names of columns, as
`BOARD_NAMES`, and a line for each part; what reads tables does the rest.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from coe.bring.parts import eagle_board, ipc_2581, kicad_board, odb_plus_plus
from coe.bring.parts.text_table import Table
from coe.errors import ConfigError


class Converter(Protocol):
    """A module that reads the boards of one program."""

    def is_board(self, raw: bytes) -> bool:
        """Tell whether bytes are those of a board."""

    def board_table(self, path: Path, raw: bytes) -> Table:
        """Return the names of columns, and a line for each part; raises ConfigError."""


CONVERTERS: list[Converter] = [kicad_board, eagle_board, ipc_2581, odb_plus_plus]
_LOOKED_AT = 4096
"""So many first bytes are enough."""
_MARKS = {
    rb"\A(\x1f\x8b|7z\xbc\xaf|Rar!|BZh\d|\xfd7zXZ)": "an archive, as of ODB++",
    rb"\A%PDF-": "a PDF",
    rb"\A\s*<(!doctype|html)": "a web page",
    rb"\A\s*\$HEADER\b": "a GenCAD file",
    rb"^P\s+(UNITS\s+CUST|JOB|VER|IMAGE)\b": "a netlist for tests (IPC-D-356)",
    rb"^CMP \d+ [-\d.]+ [-\d.]+ ": "a part of an ODB++ folder (its .tgz or .zip is)",
    rb"\A(?![\s\S]*(?:FileFunction,Component|,ComponentMain\*))\s*(G04|%[A-Z]{2}|G75\*)": "a Gerber file",
    rb"\A\s*\((kicad_pcb|module|footprint|kicad_sch)\b": "a file of KiCad",
    rb"\APCBNEW-BOARD": "a board of KiCad before version 4 (a later KiCad saves it as .kicad_pcb)",
    rb"\A\x10[\x00\x80]": "a board of Eagle before version 6 (a later Eagle, or Fusion, saves it as XML)",
    rb"\A.[\x00-\x20]\x14\x00[\x01-\x09]\x00\x00\x00": "a board of Allegro (Export > Placement writes its list)",
    rb"^\$(BeginDESCRIPTION|MODULE)\b": "a report of KiCad",
    rb"\A\.HEADER\b": "an IDF file",
    rb"urn:schemas-microsoft-com:office:spreadsheet": "a spreadsheet as XML",
    rb"<IPC-2581\b": "an IPC-2581 file",
    rb"<eagle\b": "a file of Eagle",
    rb"\A\s*\{\s*\"": "a JSON file",
}


def expect_list(path: Path, raw: bytes, wanted: str) -> None:
    """Raise ConfigError for bytes that are no table, nor XML that is read, and say that `wanted` is to be exported."""
    start = raw[:_LOOKED_AT]
    for mark, what in _MARKS.items():
        if re.search(mark, start, re.MULTILINE | re.IGNORECASE | re.DOTALL):
            raise ConfigError(f"{path}: it is {what}, which is not read; export {wanted} of the board as CSV")


def read_board_file(path: Path, raw: bytes) -> Table | None:
    """Return the parts of a board; None for bytes that are of none. Raises ConfigError."""
    converter = next((one for one in CONVERTERS if one.is_board(raw)), None)
    return None if converter is None else converter.board_table(path, raw)
