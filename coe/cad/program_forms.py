"""Placement files in a form of one program alone, rewritten as the table that the other files are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from coe.text_table import TextLine

_PAIR_NAME = re.compile(r"Position \((\w+)\)(\s*)")
_PAIR = re.compile(r"\((-?[\d.]+) (-?[\d.]+)\)(\s*)")
_ALLEGRO_UNIT = re.compile(r"\s*UUNITS\s*=", re.IGNORECASE)
_ALLEGRO_ROW = re.compile(r"(\S+)\s+([-+]?[\d.]+)\s+([-+]?[\d.]+)\s+([-+]?[\d.]+)(?:\s+(m)(?=\s|$))?(?:\s+(\S.*))?")
_CHARMHIGH = re.compile(r"Table,No\.,ID,PHead,STNo\.,DeltX,DeltY,Angle,Height,Skip,Speed,Explain,")
_ALLEGRO_NAMES = "refdes!symbol_x!symbol_y!rotation!mirror!symbol_name"


def as_table(lines: Sequence[TextLine]) -> Sequence[TextLine]:
    """Return the lines of a placement file with one cell for each field, below the columns' names."""
    if (at := next((at for at, line in enumerate(lines) if _CHARMHIGH.match(line.text)), None)) is not None:
        table = [*takewhile(lambda line: line.text.startswith("EComponent"), lines[at + 1 :])]
        return [lines[at], *map(_of_charmhigh, table)]
    if any(_ALLEGRO_UNIT.match(line.text) for line in lines) and not any("!" in line.text for line in lines):
        return [TextLine(0, _ALLEGRO_NAMES), *map(_of_allegro, lines)]
    named = next((line for line in lines if _PAIR_NAME.search(line.text)), None)
    return lines if named is None else [_of_eagle(line, named.number) for line in lines]


def _of_charmhigh(line: TextLine) -> TextLine:
    """Return a row of the parts of a .dpv file whose cell Skip, a sum of bits, is that of skipped parts alone."""
    cells = line.text.split(",")
    skip = cells[9].strip() if len(cells) > 9 else ""
    return replace(
        line, text=",".join([*cells[:9], str(int(skip) & 1), *cells[10:]]) if skip.isdecimal() else line.text
    )


def _of_allegro(line: TextLine) -> TextLine:
    """Part a line of an old Allegro's place_txt, which has no names: an m before the symbol marks the bottom side."""
    row = _ALLEGRO_ROW.fullmatch(line.text.strip())
    return line if row is None else replace(line, text="!".join(cell or "" for cell in row.groups()))


def _of_eagle(line: TextLine, header: int) -> TextLine:
    """Give each of the two numbers in `Position (mm)` of Eagle's part list a column."""
    text = _PAIR_NAME.sub(lambda name: f"{f'X({name[1]})':<11}{f'Y({name[1]})':<{len(name[0]) - 11}}", line.text)
    if line.number > header:
        text = _PAIR.sub(lambda pair: f"{pair[1]:<11}{pair[2]:<{max(1, len(pair[0]) - 11)}}", text)
    return replace(line, text=text)
