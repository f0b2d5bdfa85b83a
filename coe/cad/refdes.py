"""Reference designators in files of CAD programs: what is none, though it stands in their column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from coe.cad.placement_header import PlacementHeader
from coe.cad.placement_rows import PlacementRow
from coe.cad.vocabulary import plain
from coe.errors import ConfigError
from coe.text_table import further_lines

COMMA = "[,;\uff0c\uff1b\u3001]"
TO = r"(?:[-~\u2013\u2014\uff5e\u301c至到]|\.{2,3}|\b(?:to|thru|through|bis)\b)"
"""What stands between the first and the last of several parts."""
_MONTH = "jan|feb|m[aä]r|mrz|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz]"
_DATE = re.compile(
    rf"\d{{1,2}}[-./ ]{{1,2}}(?i:{_MONTH})[a-zä]*\.?(?:[- ]\d+)?|"
    rf"(?=[A-Z][a-zä])(?i:{_MONTH})-\d\d|\d{{4}}-\d\d-\d\d(?: 00:00:00)?|"
    r"\d{1,2}([-./])\d{1,2}\1\d{4}|\d(?:[.,]\d+)?E\+\d\d"
)
_REMARK = re.compile("//|;|~~|--")
_SEVERAL = re.compile(rf"[^\W_]\s*{COMMA}\s*[^\W_]|\d\s*&\s*[A-Za-z]|(?<!\w)([A-Za-z]+)(\d+)\s*{TO}\s*\1(?!\2$)\d+")
USUAL = re.compile(r"[A-Za-z]{1,4}[1-9]\d{0,3}")
"""What most designators look like, and few other cells."""


def is_date(refdes: str) -> bool:
    """Tell whether a cell is what a spreadsheet makes of MAR10 or 1E5."""
    return _DATE.fullmatch(refdes) is not None


def fault_of(refdes: str) -> str:
    """Return what is wrong with a designator, behind its name, and the way out; "" if nothing is."""
    if is_date(refdes):
        return "is a date or a number, as a spreadsheet makes of a designator; write the designator as text"
    if _REMARK.match(refdes):
        return "begins as a remark does; take the line out, or this sign"
    return "names several parts; give each part a line" if _SEVERAL.search(refdes) else ""


def expect_designators(path: Path, parts: Sequence[PlacementRow], header: PlacementHeader, *, is_said: bool) -> None:
    """Raise ConfigError for designators that are none, and if another column may hold them.

    Another column may if each of its cells is one as R1, as few are in that which was taken, unless this is called a
    designator. `is_said`: a person named it.
    """
    taken = header.columns["refdes"]
    designators = [(row.cells or {})["refdes"] for row in parts]
    divided = [refdes.partition("-") for refdes in designators]
    # In a panel P1-P2 is the part P2 of the board P1, of which P1-R1 is, too.
    boards = {board for board, dash, part in divided if board and dash and not fault_of(board + dash + part)}
    faults = [
        fault_of(part if board in boards and not is_date(refdes) else refdes)
        for refdes, (board, _, part) in zip(designators, divided, strict=True)
    ]
    if fault := next(filter(None, faults), ""):
        rows = [row for row, found in zip(parts, faults, strict=True) if found == fault]
        name = (rows[0].cells or {})["refdes"]
        lines = further_lines([row.number for row in rows])
        raise ConfigError(f"{path}:{rows[0].number}: '{name}' {fault}{lines}")
    if is_said or "des" in plain(header.names[taken]):
        return
    if 2 * sum(USUAL.fullmatch(refdes) is not None for refdes in designators) >= len(designators):
        return
    for index in {*range(len(header.names))} - {taken, header.columns.get("package"), header.columns.get("value")}:
        cells = [row.all_cells[index] if index < len(row.all_cells) else "" for row in parts]
        within = all(cell in refdes for cell, refdes in zip(cells, designators, strict=True))  # as R1 in Board_1-R1
        if all(map(USUAL.fullmatch, cells)) and len({*cells}) == len(cells) > 1 and not within:
            raise ConfigError(
                f"{path}:{header.number}: the designators may be in the column '{header.names[index]}' rather than in "
                f"'{header.names[taken]}'; say which, `columns: {{refdes: ...}}`, under placement_file of the recipe "
                "(--form, before there is one)"
            )
