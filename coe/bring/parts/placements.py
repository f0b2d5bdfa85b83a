"""Placement files: where each part lies on a board, as CAD programs and placement machines write them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

from coe.board.parts_list import FARTHEST_MM, BoardPart
from coe.bring.parts import measures, vocabulary
from coe.bring.parts.answers import Answers
from coe.bring.parts.board_files import read_board_file
from coe.bring.parts.placement_header import PlacementHeader, expect_one_order, find_header
from coe.bring.parts.placement_rows import LIKE_A_NUMBER, MIRRORED_TURN, WITHOUT_HEADER, rows, without_header
from coe.bring.parts.refdes import USUAL, expect_designators
from coe.bring.parts.text_table import Numbered, Table, TextLine, fault, lines_of
from coe.bring.parts.vocabulary import UNIT_WORDS, FittedQuestion, Row, Units, one_word, says_so
from coe.errors import ConfigError, list_few
from coe.helpers.visible import visible

_NEAREST_MM = 0.2  # No two parts lie nearer to each other
_DEGREES = ("", "deg", "degree", "degrees", "\u00b0", "\u00ba")
_MOST_TOLD, _MOST_SIGNS = 3, 40


@dataclass(frozen=True, slots=True)
class Placement(BoardPart):
    """A part as a placement file has it, in the frame of the file, or once it is converted in that of `parts.csv`.

    `refdes` is empty for a place without a designator. `package`, `value` and `component` are empty if the file has no
    such column. `is_fiducial` says that the file calls it a fiducial, which is no part.
    """

    package: str = ""
    value: str = ""
    is_fiducial: bool = False


@dataclass(frozen=True, slots=True)
class PlacementFile:
    """A placement file as it was read: its parts of both sides in its order, and what a person should confirm.

    `units` is the unit of its coordinates, `stated` the sentence that says where the file states it ("" if it does
    not). `columns` holds the name of each field's column, `unused` those of columns that nothing is read from.
    `not_placed` are the designators of what the file itself leaves out; they are not among the placements.
    `notes` are sentences, as on hidden rows. `said` are parts that it says are fitted, `asked` those of which it leaves
    that open. `drawn` are the lists of a board file of KiCad, for its edge and the sizes of packages.
    """

    placements: tuple[Placement, ...]
    units: Units
    stated: str
    columns: Mapping[str, str]
    unused: tuple[str, ...]
    not_placed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    said: frozenset[str] = frozenset()
    asked: Mapping[str, FittedQuestion] = field(default_factory=dict)
    drawn: Sequence[Numbered] = field(default=(), repr=False)


def parse(path: Path, raw: bytes, form: Answers) -> PlacementFile:
    """Return a placement file by its bytes; see `converting.read_file`."""
    reader = _PlacementReader(path, form)
    table = read_board_file(path, raw, "the placement list (pick and place, centroid)")
    if table is None:
        read = lines_of(path, raw, "the placement file", reader.is_table)
        table = replace(read, lines=[*_as_table(read.lines)])
    file = replace(reader.file(table), drawn=table.drawn)
    if not file.placements:
        out = len(file.not_placed)
        raise ConfigError(f"{path}: the file marks all of its {out} parts as left out; correct its marks")
    # Parts that lie nearer to each other than any can are of a file whose mm are read as um, or without places.
    places = {(place.x_mm, place.y_mm) for place in file.placements}
    extent = max(max(along) - min(along) for along in zip(*places, strict=True))
    if 0 < extent < _NEAREST_MM or (len(file.placements) > 1 and places == {form.offset}):
        what = f"within {extent:.2g} mm; are the units right?" if extent else "at 0, 0; export their places"
        raise ConfigError(f"{path}: all parts lie {what}")
    return file


class _PlacementReader:
    """Reads one file; knows it and its unit for what it refuses."""

    def __init__(self, path: Path, form: Answers) -> None:
        self._path, self._form = path, form
        self._columns = {**vocabulary.COLUMNS, **{str(name): (column,) for name, column in form.columns.items()}}
        # The columns without which a line is no header; the name of the file or a person may tell the others.
        self._needs = [name for name in vocabulary.NEEDS if name != "rotation" or form.rotation is None]
        self._units = measures.PlacementUnits(path, form.unit)
        self._sides = measures.PlacementSides(path, form)
        self._comma = False

    def is_table(self, lines: Sequence[TextLine]) -> bool:
        """Tell whether a line above others names the columns that are needed."""
        header = find_header(lines, self._columns, self._needs)
        return header is not None and header.number < lines[-1].number

    def file(self, table: Table) -> PlacementFile:
        lines = table.lines
        if not lines:
            raise ConfigError(f"{self._path}: the placement file is empty; export it again")
        header = self._header(lines)
        expect_one_order(self._path, lines, header, self._columns, self._needs)
        remarks = measures.unit_remarks(lines)
        found = [*rows([line for line in lines if line.number not in remarks], header)]
        units_below = {row.number: words for row in found if (words := _units_in(row))}
        notes = self._notes(found, units_below, header)
        parts = [row for row in found if row.number not in notes and row.number not in units_below]
        self._state_units(header, {**{number: (word,) for number, word in remarks.items()}, **units_below})
        if "rotation" in header.columns:
            said = [line for line in lines if line.number < header.number or line.number in notes]
            measures.expect_counterclockwise(self._path, self._form, header, said)
        if not parts:
            raise ConfigError(f"{self._path}: there is no part in the placement file; export it again")
        self._expect_cells(parts, header)
        if header.number:  # else each row is of one part
            expect_designators(self._path, parts, header, is_said="refdes" in self._form.columns)
        fitting = vocabulary.fitting_of(self._path, parts, header.names, header.columns, self._form.says_fitted)
        names_of = {row.number: row.cells["refdes"] for row in parts}
        parts = [row for row in parts if row.number not in fitting.left_out]
        numbers = [row.cells[axis] for row in parts for axis in ("x", "y")]
        self._comma = measures.has_decimal_commas(self._path, numbers, self._form, self._units.known)
        turns = [row.cells.get("rotation", "") for row in parts]
        self._sides.has_mirrored = any(turn.startswith("M") for turn in turns) and all("R" in turn for turn in turns)
        for row in parts:
            word = row.cells.get("unit", "").rstrip(".")
            said_units = [self._number(row, axis).unit for axis in ("x", "y")]
            said_units += [word] if word.casefold() in (*UNIT_WORDS, "cm") else []  # else it is one of a symbol
            for unit in filter(None, said_units):
                self._units.state(unit, f"line {row.number}", row.number)
        if "rotation" in header.columns:
            turned = {row.number: (row.cells["rotation"], self._number(row, "rotation")) for row in parts}
            measures.expect_degrees(self._path, self._form, header.names[header.columns["rotation"]], turned)
        units, stated_where = self._units.agreed()
        columns = self._sides.columns(header, [row.all_cells for row in parts])
        names = {name: header.names[index] for name, index in columns.items()}
        few = list_few((f"line {number}: '{text}'" for number, text in notes.items()), _MOST_TOLD, "; ")
        twice = [name for name, count in Counter(row.cells["refdes"] for row in parts).items() if name and count > 1]
        return PlacementFile(
            tuple(self._placement(row, header, units) for row in parts),
            units,
            stated_where,
            names,
            tuple(name for name in header.unused if name not in names.values()),
            tuple(name for number, name in names_of.items() if number in fitting.left_out),
            (
                *table.notes,
                *([f"lines skipped, because they name no part: {few}"] if notes else ()),
                *([f"designators of several parts, as on a panel: {list_few(twice, _MOST_TOLD)}"] if twice else ()),
                *fitting.notes,
            ),
            frozenset(names_of[number] for number in fitting.said),
            {names_of[number]: question for number, question in fitting.asked.items()},
        )

    def _header(self, lines: Sequence[TextLine]) -> PlacementHeader:
        """Find the header of a file; raises ConfigError if no line is one."""
        found = find_header(lines, self._columns, self._needs)
        if found is None and (self._form.order or self._path.suffix.lower() in vocabulary.ENDINGS):
            found = without_header(self._form.order or WITHOUT_HEADER, lines)
        if found is None:
            if near := find_header(lines, self._columns, [name for name in self._needs if name != "rotation"]):
                what = (
                    "no column gives the rotation of a part; name it Rotation, or write `rotation: 0`, if no part is "
                )
                raise fault(self._path, [near.number], f"{what}turned, in answers.yaml")
            names = ", ".join(self._columns[name][0] for name in vocabulary.NEEDS)
            raise ConfigError(
                f"{self._path}: no line is the header of a placement file (columns {names}); rename its columns, or "
                "map them, --columns refdes=NAME,x=NAME,y=NAME; for a file without a header, list them in "
                f"order, --columns {','.join(WITHOUT_HEADER)}"
            )
        # X (mil) and X (mm) are one place in two units.
        bare = [one_word(name) for name in found.names]
        of_units = [(name, measures.unit_in_name(whole)) for name, whole in zip(bare, found.names, strict=True)]
        is_twice = [bare.count(name) > 1 and (not unit or of_units.count((name, unit)) > 1) for name, unit in of_units]
        if twice := [bare[index] for index in found.columns.values() if is_twice[index]]:
            raise fault(self._path, [found.number], f"the column '{twice[0]}' occurs twice; remove one")
        return found

    def _notes(self, found: Sequence[Row], units_below: Collection[int], header: PlacementHeader) -> dict[int, str]:
        """Return the rows that name no part, such as totals, by line; raises ConfigError for what may be a heading."""
        placed = [row for row in found if _has_place(row)]
        names = [row.cells["refdes"] for row in placed]
        if not (header.number and names and all(re.search(r"\d", name) for name in names if name)):
            return {}
        notes: dict[int, str] = {}
        sides = set() if "side" in header.columns else self._sides.other_words()
        for row in found:
            if row.number in units_below or not _is_note(row):
                continue
            text = visible((" ".join(filter(None, row.all_cells)) or row.text.strip())[:_MOST_SIGNS])
            notes[row.number] = text
            if row.number > placed[-1].number:
                continue  # it heads nothing
            if {*re.findall(r"[^\W\d_]{3,}", row.text.casefold()), text.casefold()} & sides:
                what = "may give the side of the parts below it; give it in a column Side"
            elif says_so(row.text) and "=" not in row.text:
                what = "may be a heading of parts that are not fitted; mark them in a column DNP"
            else:
                continue
            raise fault(self._path, [row.number], f"'{text}' {what} of each of their lines")
        return notes

    def _state_units(self, header: PlacementHeader, words_of: Mapping[int, Sequence[str]]) -> None:
        """Note the units that remarks, rows for them and the names of columns state; raises ConfigError for two."""
        for number, words in words_of.items():
            for word in words:
                self._units.state(word, f"line {number}", number)
        for axis in ("x", "y"):
            name = header.names[header.columns[axis]]
            if word := measures.unit_in_name(name):
                self._units.state(word, f"the column '{name}'", header.number)

    def _expect_cells(self, parts: Sequence[Row], header: PlacementHeader) -> None:
        """Raise ConfigError that names the lines that cannot be divided into the columns, or lack a needed cell."""
        if wrong := [row.number for row in parts if not row.cells]:
            way = "put cells with separators or spaces in quotes, or remove the line if it is not a part"
            what = f"this line does not have the {len(header.names)} cells of the header"
            if not header.number:
                what = f"there is no header, and this line is not {', '.join(header.names)}"
                way = "name the fields in their order, such as --columns refdes,package,x,y,rotation"
            raise fault(self._path, wrong, f"{what}; {way}")
        for name in ("x", "y", "rotation", *(("side",) if self._sides.words(header) is not vocabulary.MIRRORS else ())):
            if lacking := [row.number for row in parts if name in header.columns and not row.cells.get(name)]:
                raise fault(self._path, lacking, f"this line has no {name}; complete it, or remove it")

    def _placement(self, row: Row, header: PlacementHeader, units: Units) -> Placement:
        cells, form = row.cells, self._form
        x_mm, y_mm = (self._number(row, axis).value * units.mm for axis in ("x", "y"))
        for axis, length in (("x", x_mm), ("y", y_mm)):
            if abs(length) > FARTHEST_MM:
                what = f"{cells['refdes']}: {axis} is {length / 1000:.3g} m from the origin; are the units right?"
                raise fault(self._path, [row.number], what)
        rotation = (
            self._number(row, "rotation") if "rotation" in cells else measures.CellNumber(form.rotation or 0.0, "")
        )
        if rotation.unit.casefold() not in _DEGREES:
            what = f"{cells['refdes']}: rotation '{cells['rotation']}' is not in degrees"
            raise fault(self._path, [row.number], what)
        turn = rotation.value * (90.0 if form.angles == "quarters" and "rotation" in cells else 1.0)
        package, value, component = (cells.get(name, "") for name in ("package", "value", "component"))
        return Placement(
            cells["refdes"],
            x_mm + form.offset[0],
            (y_mm if form.y == "up" else -y_mm) + form.offset[1],
            (-turn if form.clockwise else turn) % 360.0,
            self._sides.of(row.number, cells, row.all_cells, header),
            component,
            row.number,
            package,
            value,
            cells.get("kind", "").casefold() == "fiducial",
        )

    def _number(self, row: Row, name: str) -> measures.CellNumber:
        """Return a number, and the word for its unit, which may be empty."""
        cell = row.cells[name]
        text = MIRRORED_TURN.sub("", cell) if name == "rotation" else cell
        number = measures.number_of(text, has_comma=self._comma or name == "rotation")  # no angle has thousands
        if number is None:
            what = f"{row.cells['refdes']}: {name} is '{cell}', which is not a number; write it as 12.5"
            raise fault(self._path, [row.number], what)
        return number


def _units_in(row: Row) -> tuple[str, str] | None:
    """Return the words for units where x and y stand in a row without a designator; None if there are none."""
    x, y = (row.cells.get(axis, "").strip("()[]. ") for axis in ("x", "y"))
    are_units = {x.casefold(), y.casefold()} <= {*UNIT_WORDS, "cm"}
    return (x, y) if are_units and not re.search(r"\d", row.cells.get("refdes", "")) else None


def _has_place(row: Row) -> bool:
    return all(LIKE_A_NUMBER.fullmatch(row.cells.get(axis, "")) for axis in ("x", "y"))


def _is_note(row: Row) -> bool:
    """Tell whether a row has fewer numbers than a place, and no word with a digit where its designator would be.

    One that has an angle and a side is of a part whose place lacks.
    """
    filled = [*filter(None, row.all_cells)] or row.text.split()
    numbers = sum(LIKE_A_NUMBER.fullmatch(cell) is not None for cell in filled)
    firsts = (filled[0], row.cells.get("refdes", "")) if filled else ()
    may_be_named = any(re.fullmatch(r"\S*\d\S*", first) for first in firsts) or any(map(USUAL.fullmatch, filled))
    is_placed = row.cells.get("side") and LIKE_A_NUMBER.fullmatch(row.cells.get("rotation", ""))
    return not (_has_place(row) or numbers > 1 or may_be_named or is_placed)


# Files in a form of one program alone, rewritten as the table that the others are


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


def _as_table(lines: Sequence[TextLine]) -> Sequence[TextLine]:
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
