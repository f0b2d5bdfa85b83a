"""Files that are no table, by how they begin: those that a converter makes one, and those that are not read."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from coe.bring.parts import eagle_board, gerber_parts, ipc_2581, kicad_board, odb_plus_plus, openpnp_board
from coe.bring.parts.text_table import Table, in_utf8
from coe.errors import ConfigError

Converter: TypeAlias = Callable[[Path, bytes], Table]
"""Returns the table of the parts in a file's bytes, as `cad_files.table_of` makes it; raises ConfigError."""
CONVERTERS: dict[bytes, Converter] = {
    rb"\s*\(kicad_pcb\b": kicad_board.board_table,
    rb"\s*(<\?xml[^>]*>\s*)?<export\b": kicad_board.bom_table,
    rb"<\?xml[^>]*>\s*<!DOCTYPE eagle\b(?=[\s\S]*<board>)": eagle_board.board_table,
    rb"\s*<[\s\S]{,4096}?(?<=<)(\w+:)?IPC-2581[\s>]": ipc_2581.board_table,
    rb"\s*<[\s\S]{,4096}?(?<=<)openpnp-(board|panel|job)\b": openpnp_board.board_table,
    rb"[\s\S]{,16384}?(FileFunction,Component|,ComponentMain\*)": gerber_parts.board_table,
    rb"\x1f\x8b|[\s\S]{257}ustar": odb_plus_plus.board_table,
    rb"(?i)PK\x03\x04[\s\S]*(?<![\w.])steps[/\\][^/\\]{1,99}[/\\]layers[/\\]": odb_plus_plus.board_table,
}
"""Which converter reads files that begin so, behind a byte-order mark."""
_NOT_READ = {
    rb"\A(\x1f\x8b|7z\xbc\xaf|Rar!|BZh\d|\xfd7zXZ)": "an archive, as of ODB++",
    rb"\A%PDF-": "a PDF",
    rb"\A\s*<(!doctype|html)": "a web page",
    rb"\A\s*\$HEADER\b": "a GenCAD file",
    rb"^P\s+(UNITS\s+CUST|JOB|VER|IMAGE)\b": "a netlist for tests (IPC-D-356)",
    rb"^CMP \d+ [-\d.]+ [-\d.]+ ": "a part of an ODB++ folder (its .tgz or .zip is)",
    rb"\A\s*(G04|%[A-Z]{2}|G75\*)": "a Gerber file without components",
    rb"\A\s*\((kicad_pcb|module|footprint|kicad_sch)\b": "a file of KiCad",
    rb"\APCBNEW-BOARD": "a board of KiCad before version 4 (a later KiCad saves it as .kicad_pcb)",
    rb"\A\x10[\x00\x80]": "a board of Eagle before version 6 (a later Eagle, or Fusion, saves it as XML)",
    rb"\A.[\x00-\x20]\x14\x00[\x01-\x09]\x00\x00\x00": "a board of Allegro (Export > Placement writes its placement "
    "list)",
    rb"^\$(BeginDESCRIPTION|MODULE)\b": "a report of KiCad",
    rb"\A\.HEADER\b": "an IDF file",
    rb"urn:schemas-microsoft-com:office:spreadsheet": "a spreadsheet as XML",
    rb"<eagle\b": "a file of Eagle",
    rb"\A\s*(\xef\xbb\xbf)?\s*<[?!\w]": "XML of another program",
    rb"\A\s*\{\s*\"": "a JSON file",
}


def converter_of(raw: bytes) -> Converter | None:
    """Return the converter of a file's bytes, if there is one."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    return next((converter for start, converter in CONVERTERS.items() if re.match(start, raw)), None)


def read_board_file(path: Path, raw: bytes, wanted: str) -> Table | None:
    """Return the table that a converter makes of bytes; None for bytes that may be a table themselves.

    Raises ConfigError for a file that cannot be read, and says that `wanted` is to be exported.
    """
    raw = in_utf8(raw)
    if converter := converter_of(raw):
        return converter(path, raw)
    for mark, what in _NOT_READ.items():
        if re.search(mark, raw[:4096], re.MULTILINE | re.IGNORECASE | re.DOTALL):
            raise ConfigError(f"{path}: {what}, which is not supported; export {wanted} of the board as CSV")
    return None
