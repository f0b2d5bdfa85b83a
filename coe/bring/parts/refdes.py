"""Reference designators in files of CAD programs: what is none, though it stands in their column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from coe.bring.parts.placement_header import PlacementHeader
from coe.bring.parts.text_table import fault
from coe.bring.parts.vocabulary import COLUMNS, Row, plain

_COMMA = "[,;\uff0c\uff1b\u3001]"
_TO = r"(?:[-~\u2013\u2014\uff5e\u301c至到]|,?\s*(?:\.{2,3}|\u2026)\s*,?|\b(?:to|thru|through|bis)\b)"
"""What stands between the first and the last of several parts."""
_MONTH = "jan|feb|m[aä]r|mrz|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz]"
_DATE = re.compile(
    rf"\d{{1,2}}[-./ ]{{1,2}}(?i:{_MONTH})[a-zä]*\.?(?:[- ]\d+)?|"
    rf"(?=[A-Z][a-zä])(?i:{_MONTH})-\d\d|\d{{4}}-\d\d-\d\d(?: 00:00:00)?|"
    r"\d{1,2}([-./])\d{1,2}\1\d{4}|\d(?:[.,]\d+)?E\+\d\d"
)
_REMARK = re.compile("//|;|~~|--")
_SEVERAL = re.compile(rf"[^\W_]\s*{_COMMA}\s*[^\W_]|\d\s*&\s*[A-Za-z]|(?<!\w)([A-Za-z]+)(\d+)\s*{_TO}\s*\1(?!\2$)\d+")
_RANGE = re.compile(rf"(?<![A-Za-z_])([A-Za-z_]++)(\d++)\s*{_TO}\s*([A-Za-z_]*)(\d+)", re.IGNORECASE)
_BETWEEN = re.compile(rf"(?:\s|{_COMMA}|(?<!\b[A-Za-z])&)+")  # S&H1 is one part, and R1&R2 are two
JOINED = re.compile(r"([A-Za-z_]+)\d+(?:[/+]\1\d+)+", re.IGNORECASE)
"""R1/R2 are two parts if no part has this name; 1/R1 and A1/R1 are a part of a board of a panel."""
_AND_NUMBER = rf"\s*(?:{_COMMA}|&)\s*(?=\d)"
_SHORT = re.compile(rf"\b([A-Za-z_]+)\d+(?:{_AND_NUMBER}\d+(?![\w/.]))+")
"""C1,2,3 are three parts, and C1-3,5-7 are six."""
_COUNT = re.compile(
    r"(?P<space>\s*)[(\[\uff08]\s*[x×]?\s*(?P<n>\d+)\s*(?:[x×个只]|pcs?\.?|pieces?|st(?:k|ück)?\.?|ea)?\s*[)\]\uff09]\s*$",
    re.IGNORECASE,
)
"""R1,R2 (2) are two parts."""
_NO_NAMES = {"and", "und", "et", "n/a", "none"}
_MOST_IN_RANGE = 1000
USUAL = re.compile(r"[A-Za-z]{1,4}[1-9]\d{0,3}")
"""What most designators look like, and few other cells."""


def is_date(refdes: str) -> bool:
    """Tell whether a cell is what a spreadsheet makes of MAR10 or 1E5."""
    return _DATE.fullmatch(refdes) is not None


def fault_of(refdes: str) -> str:
    """Return what is wrong with a designator, behind its name, and the way out; "" if nothing is."""
    if is_date(refdes):
        return "is a date or a number, probably changed by a spreadsheet; format the designator as text"
    if _REMARK.match(refdes):
        return "begins like a comment; remove the line, or this sign"
    return "names several parts; give each part a line" if _SEVERAL.search(refdes) else ""


def expect_designators(path: Path, parts: Sequence[Row], header: PlacementHeader, *, is_said: bool) -> None:
    """Raise ConfigError for designators that are none, and if another column may hold them.

    Another column may if each of its cells is one as R1, as few are in that which was taken, unless this is called a
    designator. `is_said`: a person named it.
    """
    taken = header.columns["refdes"]
    designators = [row.cells["refdes"] for row in parts]
    divided = [refdes.partition("-") for refdes in designators]
    # In a panel P1-P2 is the part P2 of the board P1, of which P1-R1 is, too.
    boards = {board for board, dash, part in divided if board and dash and not fault_of(board + dash + part)}
    faults = [
        fault_of(part if board in boards and not is_date(refdes) else refdes)
        for refdes, (board, _, part) in zip(designators, divided, strict=True)
    ]
    if what := next(filter(None, faults), ""):
        rows = [row for row, found in zip(parts, faults, strict=True) if found == what]
        raise fault(path, [row.number for row in rows], f"'{rows[0].cells['refdes']}' {what}")
    if is_said or "des" in plain(header.names[taken]):
        return
    if 2 * sum(USUAL.fullmatch(refdes) is not None for refdes in designators) >= len(designators):
        return
    # A value or package as SOT23 looks like a designator; a column called Name may hold either.
    others = {header.columns[field] for field in ("package", "value") if field in header.columns}
    others = {taken, *(index for index in others if plain(header.names[index]) not in COLUMNS["refdes"])}
    for index in {*range(len(header.names))} - others:
        cells = [row.all_cells[index] if index < len(row.all_cells) else "" for row in parts]
        within = all(cell in refdes for cell, refdes in zip(cells, designators, strict=True))  # as R1 in Board_1-R1
        if all(map(USUAL.fullmatch, cells)) and len({*cells}) == len(cells) > 1 and not within:
            what = f"designators may be in the column '{header.names[index]}' rather than '{header.names[taken]}'"
            raise fault(path, [header.number], f"{what}; state which, `columns: {{refdes: ...}}`, in answers.yaml")


def designators(text: str) -> list[str]:
    """Return the reference designators of a cell.

    A number in brackets behind them is how many they are; without a space before it may be of a name.
    Example: `designators("R1-R2, C7/C8 (4)")` is `["R1", "R2", "C7", "C8"]`.
    """
    text = " ".join(text.split())
    count = _COUNT.search(text)
    counted = [] if count is None else _names_in(text[: count.start()])
    is_count = count is not None and counted and (count["space"] or int(count["n"]) == len(counted))
    return counted if is_count else _names_in(text)


def _names_in(text: str) -> list[str]:
    def range_of(match: re.Match[str]) -> str:
        prefix, first, other, last = match.groups()
        low, high = int(first), int(last)
        if other not in ("", prefix) or not 0 < high - low < _MOST_IN_RANGE:
            return match[0]
        return " ".join(f"{prefix}{number:0{len(first)}}" for number in range(low, high + 1))

    text = _RANGE.sub(range_of, text)
    text = _SHORT.sub(lambda match: re.sub(_AND_NUMBER, f",{match[1]}", match[0]), text)
    words = [word for word in _BETWEEN.split(_RANGE.sub(range_of, text)) if re.search(r"[^\W_]", word)]
    names = [re.split("[/+]", word) if JOINED.fullmatch(word) else [word] for word in words]
    return [*dict.fromkeys(name for found in names for name in found if name.casefold() not in _NO_NAMES)]
