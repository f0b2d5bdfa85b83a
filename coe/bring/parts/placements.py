"""Placement files: where each part lies on a board, as CAD programs and placement machines write them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from coe.board.parts_list import FARTHEST_MM, Side
from coe.bring.parts.answers import Answers
from coe.bring.parts.board_files import read_board_file
from coe.bring.parts.placement_file import FittedQuestion, Placement, PlacementFile, Units
from coe.bring.parts.placement_header import PlacementHeader, find_header
from coe.bring.parts.placement_notes import NotedRows, divided
from coe.bring.parts.placement_numbers import (
    CellNumber,
    PlacementUnits,
    has_decimal_commas,
    may_be_thousands,
    may_be_two,
    number_of,
    unit_in_name,
    unit_remarks,
)
from coe.bring.parts.placement_rows import (
    MIRRORED_TURN,
    WITHOUT_HEADER,
    PlacementRow,
    read_without_header,
    rows,
    without_header,
)
from coe.bring.parts.program_forms import as_table
from coe.bring.parts.refdes import expect_designators
from coe.bring.parts.text_table import Table, TextLine, expect_unstruck, further_lines, in_utf8, lines_of
from coe.bring.parts.vocabulary import (
    COLUMNS,
    ENDINGS,
    MIRRORED,
    MIRRORS,
    NEEDS,
    SIDES,
    UNIT_WORDS,
    FittedRow,
    fitting_of,
    one_word,
    plain,
)
from coe.errors import ConfigError

_NEAREST_MM = 0.2
"""No two parts lie nearer to each other."""
_DEGREES = ("", "deg", "degree", "degrees", "\u00b0", "\u00ba")


def parse(path: Path, raw: bytes, form: Answers) -> PlacementFile:
    """Return a placement file by its bytes; see `converting.parse_file`."""
    reader, raw = _PlacementReader(path, form), in_utf8(raw)
    table = read_board_file(path, raw, "the placement list (pick and place, centroid)")
    if table is None:
        read = lines_of(path, raw, "the placement file", reader.is_table)
        table = replace(read, lines=[*as_table(read.lines)])
    file = replace(reader.file(table), drawn=table.drawn, edge=table.edge)
    if not file.placements:
        raise ConfigError(
            f"{path}: the file leaves out each of its {len(file.not_placed)} parts; correct what it says of them"
        )
    _expect_apart(path, file.placements, form)
    return file


def _expect_apart(path: Path, placements: Sequence[Placement], form: Answers) -> None:
    """Raise ConfigError for parts that lie nearer to each other than any can, as where mm are read as um."""
    places = {(place.x_mm, place.y_mm) for place in placements}
    extent = max(max(along) - min(along) for along in zip(*places, strict=True))
    if 0 < extent < _NEAREST_MM or (len(placements) > 1 and places == {form.offset}):
        what = f"within {extent:.2g} mm; are the units right?" if extent else "at 0, 0; export their places"
        raise ConfigError(f"{path}: all parts lie {what}")


def is_list(lines: Sequence[TextLine]) -> bool:
    """Tell whether a line names the columns of places, whatever program wrote them."""
    return find_header(lines, COLUMNS, ("refdes", "x", "y")) is not None


class _PlacementReader:
    """Reads one file; knows it and its unit for what it refuses."""

    def __init__(self, path: Path, form: Answers) -> None:
        self._path, self._form = path, form
        self._columns: dict[str, tuple[str, ...]] = dict(COLUMNS)
        self._columns.update({str(field): (name,) for field, name in form.columns.items()})
        self._units = PlacementUnits(path, form.unit)
        self._sides = PlacementSides(path, form)
        self._angles = PlacementAngles(path, form)
        self._comma = False

    def is_table(self, lines: Sequence[TextLine]) -> bool:
        """Tell whether a line above others names the columns that are needed."""
        header = find_header(lines, self._columns, self._needs)
        return header is not None and header.number < lines[-1].number

    @property
    def _needs(self) -> list[str]:
        """The columns without which a line is no header; the name of the file or a person may tell the others."""
        return [field for field in NEEDS if field != "rotation" or self._form.rotation is None]

    def file(self, table: Table) -> PlacementFile:
        lines = table.lines
        if not lines:
            raise ConfigError(f"{self._path}: the placement file is empty; export it again")
        header = self._header(lines)
        remarks = unit_remarks(lines)
        found = rows([line for line in lines if line.number not in remarks], header)
        noted = divided(self._path, list(found), header, self._sides.other_words())
        parts = noted.parts
        self._state_units(header, remarks, noted)
        if "rotation" in header.columns:
            remarked = {row.number for row in noted.notes}
            said = [line for line in lines if line.number < header.number or line.number in remarked]
            self._angles.expect_counterclockwise(header, said)
        if not parts:
            raise ConfigError(f"{self._path}: there is no part in the placement file; export it again")
        self._expect_cells(parts, header)
        if header.number:  # else each row is of one part
            expect_designators(self._path, parts, header, is_said="refdes" in self._form.columns)
        fitting = fitting_of(
            [FittedRow(row.number, row.cells or {}, row.all_cells) for row in parts], header.names, header.columns
        )
        names_of = {row.number: (row.cells or {})["refdes"] for row in parts}
        parts = [row for row in parts if row.number not in fitting.left_out]
        expect_unstruck(self._path, lines, {row.number for row in parts})
        self._comma = self._has_decimal_commas(parts)
        turns = [(row.cells or {}).get("rotation", "") for row in parts]
        self._sides.has_mirrored = any(turn.startswith("M") for turn in turns) and all("R" in turn for turn in turns)
        for row in parts:
            for axis in ("x", "y"):
                if unit := self._number(row, axis)[1]:
                    self._units.state(unit, f"line {row.number}", row.number)
            word = (row.cells or {}).get("unit", "").rstrip(".")
            if word.casefold() in (*UNIT_WORDS, "cm"):  # else it is one of a symbol
                self._units.state(word, f"line {row.number}", row.number)
        if "rotation" in header.columns:
            self._angles.expect_degrees(header.names[header.columns["rotation"]], self._turns(parts))
        units, stated_where = self._units.agreed()
        columns = self._sides.columns(header, parts)
        names = {field: header.names[index] for field, index in columns.items()}
        placements = tuple(self._placement(row, header, units) for row in parts)
        return PlacementFile(
            placements,
            units,
            stated_where,
            names,
            tuple(name for name in header.unused if name not in names.values()),
            tuple(name for number, name in names_of.items() if number in fitting.left_out),
            (*table.notes, *noted.told, *fitting.notes),
            frozenset(names_of[number] for number in fitting.said),
            {names_of[number]: FittedQuestion(self._path, number, *asked) for number, asked in fitting.asked.items()},
        )

    def _state_units(self, header: PlacementHeader, remarks: Mapping[int, str], noted: NotedRows) -> None:
        """Note the units that remarks, rows for them and the names of columns state; raises ConfigError for two."""
        for number, words in {**{number: (word,) for number, word in remarks.items()}, **noted.units}.items():
            for word in words:
                self._units.state(word, f"line {number}", number)
        for axis in ("x", "y"):
            name = header.names[header.columns[axis]]
            if word := unit_in_name(name):
                self._units.state(word, f"the column '{name}'", header.number)

    def _header(self, lines: Sequence[TextLine]) -> PlacementHeader:
        """Find the header of a file; raises ConfigError if no line is one."""
        found = find_header(lines, self._columns, self._needs)
        if found is None and (self._form.order or self._path.suffix.lower() in ENDINGS):
            found = without_header(self._form.order or WITHOUT_HEADER, lines)
        if found is None:
            needs = [field for field in self._needs if field != "rotation"]
            if (near := find_header(lines, self._columns, needs)) is not None:
                raise self._error(
                    near.number,
                    "no column tells the rotation of a part; name it Rotation, or say `rotation: 0`, if no part is "
                    "turned, in answers.yaml",
                )
            if cells := read_without_header(lines):
                read = ", ".join(f"{field} {cells[field]}" for field in WITHOUT_HEADER if field in cells)
                raise ConfigError(
                    f"{self._path}: no line is a header; if its columns are those of mountsmd.ulp, so that a part is "
                    f"{read}, give --columns {','.join(WITHOUT_HEADER)}"
                )
            names = ", ".join(self._columns[field][0] for field in NEEDS)
            raise ConfigError(
                f"{self._path}: no line is the header of a placement file (columns {names}); name its columns so, or "
                "say which they are, --columns refdes=NAME,x=NAME,y=NAME, or of a file without names, in their order, "
                f"--columns {','.join(WITHOUT_HEADER)}"
            )
        bare = [one_word(name) for name in found.names]
        # X (mil) and X (mm) are one place in two units.
        of_units = [(name, unit_in_name(whole)) for name, whole in zip(bare, found.names, strict=True)]
        is_twice = [bare.count(name) > 1 and (not unit or of_units.count((name, unit)) > 1) for name, unit in of_units]
        if twice := [bare[index] for index in found.columns.values() if is_twice[index]]:
            raise self._error(found.number, f"the column '{twice[0]}' is there twice; take one out")
        return found

    def _expect_cells(self, parts: Sequence[PlacementRow], header: PlacementHeader) -> None:
        """Raise ConfigError that names the lines that cannot be divided into the columns, or lack a needed cell."""
        wrong = [row.number for row in parts if row.cells is None]
        if wrong:
            way = "put a cell with separators or spaces in quotes, or take a line out that is no part"
            what = f"this line does not have the {len(header.names)} cells of the header"
            if not header.number:
                fields = ", ".join(header.names)
                what = f"there is no header, and this line is not {fields}"
                way = "name the fields in their order, such as --columns refdes,package,x,y,rotation"
            raise self._error(wrong[0], f"{what}; {way}{further_lines(wrong)}")
        for field in ("x", "y", "rotation", *(("side",) if self._sides.words(header) is not MIRRORS else ())):
            lacking = [row.number for row in parts if field in header.columns and not (row.cells or {}).get(field)]
            if lacking:
                raise self._error(
                    lacking[0], f"this line has no {field}; complete it, or take it out{further_lines(lacking)}"
                )

    def _has_decimal_commas(self, parts: Sequence[PlacementRow]) -> bool:
        """Tell whether the file writes 12,5, by its numbers or as a person says."""
        numbers = [(row.cells or {})[axis] for row in parts for axis in ("x", "y")]
        if doubtful := may_be_two(numbers):
            raise ConfigError(f"{self._path}: '{doubtful}' may be one number or two; write it without a space")
        if self._form.decimal is not None:
            return self._form.decimal == "comma"
        if not has_decimal_commas(numbers):
            return False
        if self._units.known is not Units.MM and (doubtful := may_be_thousands(numbers)):
            raise ConfigError(
                f"{self._path}: '{doubtful}' may be a decimal or thousands; export it with decimal points, or say "
                "`decimal: comma` in answers.yaml"
            )
        return True

    def _placement(self, row: PlacementRow, header: PlacementHeader, units: Units) -> Placement:
        cells, form = row.cells or {}, self._form
        x_mm, y_mm = (self._millimetres(row, axis, units) for axis in ("x", "y"))
        rotation, unit = self._number(row, "rotation") if "rotation" in cells else (form.rotation or 0.0, "")
        if unit.casefold() not in _DEGREES:
            raise self._error(row.number, f"{cells['refdes']}: rotation '{cells['rotation']}' is not in degrees")
        if form.angles == "quarters" and "rotation" in cells:
            rotation *= 90.0
        side = self._sides.of(row, header)
        at = x_mm + form.offset[0], (y_mm if form.y == "up" else -y_mm) + form.offset[1]
        turned = (-rotation if form.clockwise else rotation) % 360.0
        is_fiducial = cells.get("kind", "").casefold() == "fiducial"
        package, value, component = (cells.get(field, "") for field in ("package", "value", "component"))
        return Placement(
            cells["refdes"], at[0], at[1], turned, side, component, row.number, package, value, is_fiducial
        )

    def _millimetres(self, row: PlacementRow, axis: str, units: Units) -> float:
        length = self._number(row, axis)[0] * units.mm
        if abs(length) > FARTHEST_MM:
            what = f"{(row.cells or {})['refdes']}: {axis}"
            raise self._error(row.number, f"{what} is {length / 1000:.3g} m away; are the units right?")
        return length

    def _number(self, row: PlacementRow, field: str) -> CellNumber:
        """Return a number, and the word for its unit, which may be empty."""
        cells = row.cells or {}
        text = MIRRORED_TURN.sub("", cells[field]) if field == "rotation" else cells[field]
        number = number_of(text, has_comma=self._comma or field == "rotation")  # no angle has thousands
        if number is None:
            raise self._error(
                row.number, f"{cells['refdes']}: {field} is '{cells[field]}', which is not a number; write it as 12.5"
            )
        return number

    def _turns(self, parts: Iterable[PlacementRow]) -> dict[int, Turn]:
        return {row.number: Turn((row.cells or {})["rotation"], *self._number(row, "rotation")) for row in parts}

    def _error(self, number: int, message: str) -> ConfigError:
        return ConfigError(f"{self._path}:{number}: {message}")


# The side of each part of a placement file: by a column, by the name of the file, or as a person says


_LIKE_A_SIDE = re.compile(
    "side|layer|mirror|face|bottom|flip|seite|spiegel|miroir|espej|specch|зеркал|镜", re.IGNORECASE
)
_OTHER_WORDS = ("comp", "solder", "alt")
"""Words for sides that names of files, as solder-station.csv, and columns may have for another reason."""
_OF_FEEDERS = ("front", "back")
"""Words for sides that columns may have of the feeders of a machine."""
_MOST_TOLD = 5


class PlacementSides:
    """What tells the sides in one file."""

    def __init__(self, path: Path, form: Answers) -> None:
        self._path, self._form = path, form
        self._words = {**SIDES, **{word.casefold(): side for word, side in form.sides.items()}}
        self._found: int | None = None
        self.has_mirrored = False
        """Whether the rotations say which parts are mirrored, and so lie on the bottom side, as Eagle writes them."""

    def words(self, header: PlacementHeader) -> Mapping[str, Side]:
        """Return the words for the sides in the column of a header: those of a mirror, if it says that alone."""
        index = header.columns.get("side")
        is_mirror = index is not None and one_word(header.names[index]) in MIRRORED
        return MIRRORS if is_mirror and not (self._form.columns or self._form.sides) else self._words

    def columns(self, header: PlacementHeader, rows: Sequence[PlacementRow]) -> Mapping[str, int]:
        """Return the columns of fields; one without a known name is that of sides if it alone has words for them only.

        Example: `Bestückseite` with `oben` and `unten`. The name of the file must not say otherwise.
        """
        if "side" in header.columns or self.has_mirrored or self._form.side is not None:
            return header.columns
        others = (*_OTHER_WORDS, *_OF_FEEDERS)
        known = {word: side for word, side in self._words.items() if len(word) > 2 and word not in others}
        found: list[int] = []
        for index in {*range(len(header.names))} - {*header.columns.values()}:
            words = {row.all_cells[index].casefold() if index < len(row.all_cells) else "" for row in rows}
            if words and words <= known.keys() and self._told() <= {known[word] for word in words}:
                found.append(index)
        if len(found) != 1:
            return header.columns
        self._found = found[0]
        return {**header.columns, "side": found[0]}

    def of(self, row: PlacementRow, header: PlacementHeader) -> Side:
        """Return the side of a part; raises ConfigError if neither the file nor its name tells it."""
        sides, cells = self.words(header), row.cells or {}
        if self._found is not None:
            return self._words[row.all_cells[self._found].casefold()]
        if "side" not in header.columns:
            if self.has_mirrored:
                return Side.BOTTOM if cells["rotation"].startswith("M") else Side.TOP
            return self._by_name(header)
        word = cells.get("side", "")
        bare = plain(word) if re.search(r"[^\W\d_]", word) else word  # -1 is not 1
        side = sides.get(word.casefold(), sides.get(bare))
        if side is None and len(told := self._sides_in(word)) == 1:
            return told.pop()
        if side is None:
            known = ", ".join([*filter(None, sides)][:_MOST_TOLD])
            own = f'; say which side it is, `sides: {{"{word}": top}}`, in answers.yaml'
            raise ConfigError(
                f"{self._path}:{row.number}: {cells['refdes']}: '{word}' is not a side; known: {known} ..."
                f"{own if sides is not MIRRORS else ''}"
            )
        return side

    def _sides_in(self, text: str) -> set[Side]:
        """Return the sides that words of a text name, as that of Top Overlay, and of SMT top."""
        words = {word for word in re.split(r"[^a-z]+", text.casefold()) if word in ("top", "bottom", "bot")}
        return {self._words[word] for word in words & self._words.keys()}

    def _by_name(self, header: PlacementHeader) -> Side:
        """Return the side that the name of the file tells, as board.mnt or board-bottom.csv; raises ConfigError."""
        if other := next((name for name in header.unused if _LIKE_A_SIDE.search(name)), None):
            raise ConfigError(
                f"{self._path}:{header.number}: the column '{other}' may tell the sides; call it Side, or take it out"
            )
        told = self._told()
        if len(told) == 1:
            return told.pop()
        known = ", ".join(f"{ending} ({side})" for ending, side in ENDINGS.items())
        raise ConfigError(
            f"{self._path}: no column tells the side of a part, and so the name of the file must: let it end with "
            f"{known}, or have -top or -bottom in it; or say `side: top` in answers.yaml"
        )

    def other_words(self) -> set[str]:
        """Return the words for sides that neither a person nor the name of the file has told."""
        told = self._told()
        return {word for word, side in self._words.items() if told != {side}}

    def _told(self) -> set[Side]:
        """Return the side that a person said, or those that the ending or words in the name of the file are."""
        if self._form.side is not None:
            return {self._form.side}
        if (ending := self._path.suffix.lower()) in ENDINGS:
            return {ENDINGS[ending]}
        words = re.split(r"[^a-z]+", self._path.name.casefold())
        sides = self._words
        return {sides[word] for word in words if len(word) > 1 and word in sides and word not in _OTHER_WORDS}


# The angles of a placement file: degrees, counterclockwise, unless words or numbers of the file speak against it


_WIDEST = 720.0
"""Most angles are no wider, unless machines count hundredths of a degree (Fuji, Panasonic), tenths or thousandths."""
_NEARLY = 0.007
"""By so much of an eighth turn angles in radians may be rounded, as 1.57."""
_QUARTERS = {*range(-3, 4)}
_CLOCKWISE = re.compile(r"(counter\W+|anti\W+)?\bclockwise|\bim uhrzeigersinn", re.IGNORECASE)


class Turn(NamedTuple):
    """An angle: as it is written, its number, and the word for its unit, which may be empty."""

    text: str
    value: float
    unit: str


class PlacementAngles:
    """What the angles of one file count."""

    def __init__(self, path: Path, form: Answers) -> None:
        self._path, self._form = path, form

    def expect_counterclockwise(self, header: PlacementHeader, above: Sequence[TextLine]) -> None:
        """Raise ConfigError for a column of other units, or of angles that grow clockwise where nobody has said so."""
        name = header.names[header.columns["rotation"]]
        if re.search(r"[(\[]\s*(rad|0?[.,]0*1|1/10+)", name, re.IGNORECASE):
            raise self._error([header.number], f"the column '{name}' is not in degrees; export it in degrees")
        is_clockwise = re.search(r"[(\[]\s*(cw|clockwise)\b", name, re.IGNORECASE)
        said = (
            [header.number]
            if is_clockwise
            else [line.number for line in above if any(not found[1] for found in _CLOCKWISE.finditer(line.text))]
        )
        if said and not self._form.clockwise:
            raise self._error(
                said[:1],
                f"the angles of the column '{name}' grow clockwise; say `clockwise: true` in "
                "answers.yaml, or take that word out",
            )

    def expect_degrees(self, column: str, turns: Mapping[int, Turn]) -> None:
        """Raise ConfigError for angles, by line, that are parts of a degree, radians or quarter turns, unless said."""
        values = {number: turn.value for number, turn in turns.items()}
        turned = [number for number, value in values.items() if value]
        over = [number for number in turned if abs(values[number]) > 360]
        is_said = self._form.angles is not None
        says_so = "say `angles: degrees` in answers.yaml"
        # Some few parts may be turned several times.
        are_wide = 2 * sum(abs(value) > _WIDEST for value in values.values()) > len(turned)
        if are_wide or (not is_said and turned and turned == over):
            what = f"the rotation is {values[over[0]]:g}, as in parts of a degree; export it in degrees"
            raise self._error(over, f"{what}{'' if are_wide else f', or {says_so}'}")
        eighths = [values[number] / math.radians(45) for number in turned]
        like = [round(one) for one in eighths if round(one) and abs(one - round(one)) < _NEARLY]
        within = max(map(abs, eighths), default=9) < 8 + _NEARLY  # some may be odd, as 30 degrees
        if not is_said and within and 2 * len(like) > len(eighths) and any(one % 2 == 0 for one in like):
            what = f"the rotation is {values[turned[0]]:g}, as in radians; export it in degrees"
            raise self._error(turned, f"{what}, or {says_so}")
        far = [number for number in turned if abs(values[number]) > max(_QUARTERS)]
        if self._form.angles == "quarters" and far:
            what = f"the rotation is {values[far[0]]:g}: no quarter turn"
            raise self._error(far, f"{what}; take `angles: quarters` out")
        # KiCad writes 1.00; one part alone may be turned by so few degrees.
        finely = len(turned) == 1 and any(re.search(r"[.,]\d\d", turn.text) for turn in turns.values())
        has_unit = re.search(r"deg|[\u00b0\u00ba]", column, re.IGNORECASE) or any(turn.unit for turn in turns.values())
        if not (is_said or finely or has_unit) and turned and {*values.values()} <= _QUARTERS:
            raise self._error(
                turned[:1],
                "no rotation is more than 3, as in quarter turns; export them in degrees, or say `angles: quarters` "
                "(or `angles: degrees`, if they are) in answers.yaml",
            )

    def _error(self, lines: Sequence[int], message: str) -> ConfigError:
        return ConfigError(f"{self._path}:{lines[0]}: {message}{further_lines(lines)}")
