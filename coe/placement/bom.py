"""Bills of materials (BOM): value and package of each part, and which parts are not fitted, beside a placement file.

A line is of one kind of part, with all its designators: "R1,R2", "R1-R4", "C1 C2".
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coe import text_table
from coe.errors import ConfigError
from coe.placement.placement_rows import PlacementHeader, find_header
from coe.placement.placements import Placement, lines_of

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "refdes": (
        "designator",
        "designators",
        "reference",
        "references",
        "refdes",
        "ref",
        "refs",
        "parts",
        "part reference",
    ),
    "value": ("value", "val", "comment", "designation", "name", "part value"),
    "package": ("footprint", "package", "pcb footprint", "pattern"),
    "left_out": ("dnp", "dni", "dnf", "do not populate", "do not place", "do not fit", "no stuff", "not fitted"),
    "fitted": ("fitted", "populate", "populated", "placed", "mounted", "assembly", "fit"),
}
_NOUN = "the BOM"
_YES = ("1", "x", "y", "yes", "true", "dnp", "dni", "dnf", "excluded from bom")
_NOT_FITTED = re.compile(
    r"\b(dnp|dni|dnf|nofit|not fitted|do not (?:populate|place|fit)|no stuff|unpopulated)\b", re.IGNORECASE
)
_NO = ("0", "n", "no", "false", "not fitted", "dnp", "dni")
_RANGE = re.compile(r"([A-Za-z_]+)(\d+)\s*(?:-|\.\.\.?|\u2013)\s*([A-Za-z_]*)(\d+)")
_MOST_IN_RANGE = 1000


@dataclass(frozen=True, slots=True)
class BomPart:
    """What a BOM says of a part; `line` is its line in the file."""

    value: str
    package: str
    is_fitted: bool
    line: int


@dataclass(frozen=True, slots=True)
class BomJoin:
    """Placements with the values and packages of a BOM, and what a person should know of the two files.

    `not_fitted` are parts that the BOM leaves out: they are not among the placements. `only_placed` and `only_listed`
    stand in one of the two files alone; those that are only placed stay.
    """

    placements: tuple[Placement, ...]
    not_fitted: tuple[str, ...]
    only_placed: tuple[str, ...]
    only_listed: tuple[str, ...]


def read_bom(path: Path) -> dict[str, BomPart]:
    """Read a BOM, as CSV, text or .xlsx; return what it says, by reference designator.

    Raises ConfigError, with file and line, for a file without a column of designators, and for a part that stands twice
    with other words.
    """
    lines = lines_of(path, text_table.content(path, _NOUN), _NOUN)
    headers = (find_header(lines, COLUMNS, ("refdes", field)) for field in COLUMNS if field != "refdes")
    header = next((found for found in headers if found is not None and found.separator is not None), None)
    if header is None:
        names = ", ".join(COLUMNS["refdes"][:4])
        raise ConfigError(f"{path}: no line is the header of a BOM, with designators ({names}) and values or packages")
    return _parts(path, [line for line in lines if line.number > header.number], header)


def _parts(path: Path, lines: Sequence[text_table.TextLine], header: PlacementHeader) -> dict[str, BomPart]:
    parts: dict[str, BomPart] = {}
    # Cells may have line breaks, and so the lines are read as one text.
    reader = csv.reader((line.text + "\n" for line in lines), delimiter=header.separator or ",", skipinitialspace=True)
    for row in reader:
        number = lines[min(reader.line_num, len(lines)) - 1].number
        if any(row[len(header.names) :]):
            raise ConfigError(
                f"{path}:{number}: this line has more cells than the header; put a list of designators, and any other "
                "cell with a separator, in quotes"
            )
        cells = {field: " ".join(row[index].split()) for field, index in header.columns.items() if index < len(row)}
        value, left_out = cells.get("value", ""), cells.get("left_out", "").casefold() in _YES
        is_fitted = not left_out and not _NOT_FITTED.search(value) and cells.get("fitted", "yes").casefold() not in _NO
        part = BomPart(value, cells.get("package", ""), is_fitted, number)
        for refdes in designators(cells.get("refdes", "")):
            before = parts.setdefault(refdes, part)
            if replace(before, line=number) != part:
                raise ConfigError(
                    f"{path}:{number}: '{refdes}' stands in line {before.line} with other words; correct one"
                )
    if not parts:
        raise ConfigError(f"{path}: there is no part under the header of the BOM; export it again")
    return parts


def designators(text: str) -> list[str]:
    """Return the reference designators of a cell.

    Example: `designators("R1-R3, C7 C8")` is `["R1", "R2", "R3", "C7", "C8"]`.
    """
    found: list[str] = []

    def range_of(match: re.Match[str]) -> str:
        prefix, first, other, last = match.groups()
        low, high = int(first), int(last)
        if other not in ("", prefix) or not 0 < high - low < _MOST_IN_RANGE:
            return match[0]
        return " ".join(f"{prefix}{number}" for number in range(low, high + 1))

    for word in re.split(r"[\s,;]+", _RANGE.sub(range_of, text)):
        if word and word not in found:
            found.append(word)
    return found


def join(placements: Sequence[Placement], bom: Mapping[str, BomPart]) -> BomJoin:
    """Return placements with the BOM's words where the placement file has none, without what is not fitted."""
    kept: list[Placement] = []
    not_fitted: list[str] = []
    for place in placements:
        part = bom.get(place.refdes)
        if part is not None and not part.is_fitted:
            not_fitted.append(place.refdes)
        elif part is None:
            kept.append(place)
        else:
            kept.append(replace(place, value=place.value or part.value, package=place.package or part.package))
    placed = {place.refdes for place in placements}
    return BomJoin(
        tuple(kept),
        tuple(not_fitted),
        tuple(place.refdes for place in placements if place.refdes and place.refdes not in bom),
        tuple(refdes for refdes, part in bom.items() if refdes not in placed and part.is_fitted),
    )
