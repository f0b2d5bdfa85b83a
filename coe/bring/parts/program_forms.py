"""Placement files in a form of one program alone, rewritten as the table that the other files are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from coe.bring.parts.text_table import TextLine

_PAIR_NAME = re.compile(r"Position \((\w+)\)(\s*)")
_PAIR = re.compile(r"\((-?[\d.]+) (-?[\d.]+)\)(\s*)")
_ALLEGRO_UNIT = re.compile(r"\s*UUNITS\s*=", re.IGNORECASE)
_ALLEGRO_ROW = re.compile(r"(\S+)\s+([-+]?[\d.]+)\s+([-+]?[\d.]+)\s+([-+]?[\d.]+)(?:\s+(m)(?=\s|$))?(?:\s+(\S.*))?")
_CHARMHIGH = re.compile(r"Table,No\.,ID,PHead,STNo\.,DeltX,DeltY,Angle,Height,Skip,Speed,Explain,")
_XYRS = re.compile(
    r"\S+(?:\t *-?[\d.]+ *){3}\t *(?:[12]|top|bottom) *\t *\d? *(?:\t *[\d.]+ *){2}(?:\t.*)?", re.IGNORECASE
)
"""A row of MacroFab's XYRS, which needs no names: behind the side are the kind (SMD or not) and the size."""
_XYRS_NAMES = ("Designator", "X", "Y", "Rotation", "Side", "Type", "X-Size", "Y-Size", "Value", "Footprint", "Populate")
_EXTRACTED = re.compile("A!.*!REFDES!|A!REFDES!", re.IGNORECASE)
"""The names in what Allegro extracts (Fabmaster): rows begin with S, and a line about the file with J."""
_UNIT_OF_J = re.compile(r"J!.*!((?:milli|centi)meters|microns|mils|inches)!.*", re.IGNORECASE)
_ALLEGRO_NAMES = "refdes!symbol_x!symbol_y!rotation!mirror!symbol_name"


def as_table(lines: Sequence[TextLine]) -> Sequence[TextLine]:
    """Return the lines of a placement file with one cell for each field, below the columns' names."""
    if not lines:
        return lines
    if (at := next((at for at, line in enumerate(lines) if _CHARMHIGH.match(line.text)), None)) is not None:
        table = [*takewhile(lambda line: line.text.startswith("EComponent"), lines[at + 1 :])]
        return [lines[at], *map(_of_charmhigh, table)]
    if any(_ALLEGRO_UNIT.match(line.text) for line in lines) and not any("!" in line.text for line in lines):
        return [TextLine(0, _ALLEGRO_NAMES), *map(_of_allegro, lines)]
    if _EXTRACTED.match(lines[0].text):
        return [replace(line, text=_UNIT_OF_J.sub(r"Units: \1", line.text)) for line in lines]
    if all(_XYRS.fullmatch(line.text) or (line.is_remark and "rot" not in line.text.casefold()) for line in lines):
        more = max(line.text.count("\t") for line in lines) + 1 - len(_XYRS_NAMES)
        return [TextLine(0, "\t".join([*_XYRS_NAMES, *["MPN"] * more])), *lines]
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
