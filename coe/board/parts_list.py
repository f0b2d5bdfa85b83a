"""Parts lists: which component stands at which reference designator, in the order in which the camera reaches them.

A pick-and-place file will do: a text file with a header line and columns between commas, semicolons, tabs or spaces,
in any usual encoding, or a spreadsheet. What it says is not fitted is no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coe.errors import ConfigError, did_you_mean, list_few
from coe.tables import text_table
from coe.tables.not_fitted import FITTED, LEFT_OUT, QUANTITY, FittedRow, fitting_of
from coe.tables.table_file import expect_unstruck, lines_of
from coe.tables.text_table import TableHeader, TextLine, further_lines

REFDES = ("refdes", "designator", "ref", "reference", "reference designator")
"""Names of the column of reference designators, in any case, as Ref-Des; the first that the header has counts."""
COMPONENT = ("component", "type", "part", "part number", "comment", "value", "val")
"""Names of the column of components, by the same rule."""
_NAMES = {
    **{"refdes": REFDES, "component": COMPONENT},
    **{"fitted": FITTED, "left_out": LEFT_OUT, "quantity": QUANTITY},
}


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """A component on a board: its type and its reference designator."""

    component: str
    refdes: str


class ListedParts(tuple[PlacedPart, ...]):
    """The parts of a list; `not_fitted` are designators that it leaves out, `notes` sentences on words that do not."""

    not_fitted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _header(lines: Sequence[TextLine]) -> TableHeader | None:
    remarks_last = sorted(lines, key=lambda line: line.is_remark)
    return text_table.find_header(remarks_last, _NAMES, ("refdes", "component"))


def read(path: Path) -> ListedParts:
    """Read a parts list; raises ConfigError that names the file, and the line where there is one.

    Lines before the header, empty lines, and lines that begin with '#' are passed over. The header may begin with '#'
    if no other line is a header.
    """
    raw = text_table.content(path, "the parts list")
    table = lines_of(path, raw, "the parts list", lambda lines: _header(lines) is not None)
    lines, header = table.lines, _header(table.lines)
    if header is None:
        raise ConfigError(
            f"{path}: no line names a column of reference designators ({', '.join(REFDES)}) and a column of components "
            f"({', '.join(COMPONENT)}); add such a line above the parts"
        )
    rows = []
    for line in lines:
        if line.number > header.line.number and not line.is_remark:
            row = line.cells(header.separator)
            cells = {field: row[index] for field, index in header.columns.items() if index < len(row)}
            rows.append(FittedRow(line.number, {**cells, "value": cells.get("component", "")}, row))
    fitting = fitting_of(rows, header.words, header.columns)
    if asked := [*fitting.asked]:
        raise ConfigError(f"{path}:{asked[0]}: {fitting.asked[asked[0]].fault}{further_lines(asked)}")
    expect_unstruck(path, lines, {row.number for row in rows} - fitting.left_out)
    parts: dict[str, PlacedPart] = {}
    faults: dict[str, dict[int, str]] = {}
    for number, said, _ in rows:
        if number in fitting.left_out:
            continue
        part = PlacedPart(said.get("component", ""), said.get("refdes", ""))
        if not (part.component and part.refdes):
            fault = "this line lacks a reference designator or a component; complete it"
        elif "," in part.refdes:
            fault = "'{0}' names several parts; give each part a line"
        elif part.refdes in parts:
            fault = "'{0}' stands in an earlier line already; take one line out"
        else:
            parts[part.refdes] = part
            continue
        faults.setdefault(fault, {})[number] = part.refdes
    if faults:
        fault, names = next(iter(faults.items()))
        number, name = next(iter(names.items()))
        raise ConfigError(f"{path}:{number}: {fault.format(name)}{further_lines([*names])}")
    if not parts:
        raise ConfigError(f"{path}: there is no part under the header; add a line for each part")
    listed = ListedParts(parts.values())
    listed.not_fitted = tuple(said.get("refdes", "") for number, said, _ in rows if number in fitting.left_out)
    listed.notes = (*table.notes, *fitting.notes)
    return listed


def check(parts: Sequence[PlacedPart], components: Mapping[str, object], board: str) -> None:
    """Raise ConfigError if a list names components that a board lacks, or a reference designator twice."""
    unknown = list(dict.fromkeys(part.component for part in parts if part.component not in components))
    if unknown:
        few = list_few(f"'{name}'" for name in unknown)
        raise ConfigError(
            f"the parts list names {len(unknown)} component(s) that board '{board}' does not have: {few}"
            f"{did_you_mean(unknown[0], components)}; correct the list, or add them to the board's rules"
        )
    if len({part.refdes for part in parts}) < len(parts):
        raise ConfigError("the parts list names a reference designator twice; take one of the two parts out")
