"""Tables as people get them from CAD programs: text in any usual encoding, and spreadsheets, as lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from coe.bring.parts import packed_files, text_table
from coe.bring.parts.sheet_reader import OLE
from coe.bring.parts.spreadsheet import Table, read_sheet
from coe.bring.parts.text_table import TextLine, further_lines
from coe.errors import ConfigError

_ENCODINGS = ("cp1252", "gb18030", "cp1250", "cp1251", "cp932", "cp949", "big5", "euc_jp", "koi8_r", "cp866")
"""What programs write if they write no UTF-8, western first, as a value with a micro sign."""
_CHINESE = re.compile(rb"[\xa1-\xf7][\xa1-\xfe]")
"""A sign of GB2312; of the usual words, the first byte is no higher than 0xD7."""
_AS_TEXT = re.compile(r'(?<![^,;\t])(?:="([^",;\t]*)"|"=""([^"]*)""")(?=[,;\t]|$)')
"""="R1", with or without quotes around it, which keeps a spreadsheet from making a number or a date of it."""
_WRAPPED = re.compile(r'"((?:[^",;\t]|"")*+[,;\t](?:[^"]|"")*+)"[,;\t]*')
"""A row that has become one cell, as in a spreadsheet program that expects another separator."""
SPREADSHEETS = (packed_files.ZIP, OLE)
"""How the files of spreadsheet programs begin."""


def lines_of(path: Path, raw: bytes, noun: str, is_table: Callable[[Sequence[TextLine]], bool]) -> Table:
    """Return the lines of a text, or the rows of a spreadsheet as lines; raises ConfigError, which calls it `noun`.

    What is no UTF-8 is read in the first encoding in which `is_table` knows its columns.
    """
    if raw.startswith(SPREADSHEETS):
        return read_sheet(path, raw, is_table)
    readings: list[list[TextLine]] = []
    # Where all that is not ASCII comes in such pairs, columns that are named in English tell nothing of the words.
    is_chinese = re.search(rb"[\xb0-\xd7][\xa1-\xfe]", raw) and _CHINESE.sub(b"", raw).isascii()
    for encoding in ("gb18030", *_ENCODINGS) if is_chinese else _ENCODINGS:
        try:
            lines = [
                replace(line, text=_AS_TEXT.sub(r'"\1\2"', line.text)) if '="' in line.text else line
                for line in _unwrapped(text_table.parse(path, raw, noun, encoding))
            ]
        except ConfigError:
            if encoding == _ENCODINGS[-1] and not readings:
                raise
            continue
        if lines not in readings:
            if is_table(lines):
                return Table(lines)
            readings.append(lines)
    return Table(readings[0])


def _unwrapped(lines: list[TextLine]) -> list[TextLine]:
    """Return lines with the cells of a row where most rows have become one cell."""
    cells = [_WRAPPED.fullmatch(line.text) for line in lines]
    if 2 * sum(map(bool, cells)) <= len(lines):
        return lines
    return [
        replace(line, text=cell[1].replace('""', '"')) if cell else line
        for line, cell in zip(lines, cells, strict=True)
    ]


def expect_unstruck(path: Path, lines: Sequence[TextLine], fitted: Collection[int]) -> None:
    """Raise ConfigError if lines are struck out of which the parts are fitted, by their numbers."""
    if struck := [line.number for line in lines if line.is_struck and line.number in fitted]:
        raise ConfigError(
            f"{path}:{struck[0]}: cells of this row are struck out; take the row out, or their text, or say in a "
            f"column DNP that the part is not fitted{further_lines(struck)}"
        )
