"""Bills of materials (BOM): value and package of each part, and which parts are not fitted, beside a placement file.

A line is of one kind of part, with all its designators: "R1,R2", "R1-R4", "C1 C2".
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coe.bring.parts import vocabulary
from coe.bring.parts.answers import AS_IT_IS, Answers
from coe.bring.parts.board_files import read_board_file
from coe.bring.parts.placement_header import PlacementHeader, expect_one_order, find_headers, lines_below
from coe.bring.parts.placements import Placement
from coe.bring.parts.refdes import JOINED, USUAL, designators, fault_of, is_date
from coe.bring.parts.text_table import TextLine, content, fault, lines_of
from coe.bring.parts.vocabulary import FittedQuestion, Row, one_word, says_so
from coe.errors import ConfigError, list_few
from coe.helpers.visible import visible
from coe.placement.panel_split import on_boards

_LIKE_A_NAME = re.compile(r"[^\W\d_]+(?:[_-]?\d|_\w)")  # As R1, Con-12 and U_MAIN
_LABEL = re.compile(r":\s|\uff1a")
_SAYS_SO = "says that a part is not fitted; give that part its own line, with a column DNP"
_WHICH_COLUMN = "give the column of the designators, --bom-columns refdes=NAME"
_IN_QUOTES = re.compile(r'\s*"(?:[^"]|"")*"(?:\s*[,;\t|!]\s*"(?:[^"]|"")*")*\s*')
"""A row each of whose cells is in quotes."""
_MOST_TOLD, _MOST_SIGNS = 3, 40


@dataclass(frozen=True, slots=True)
class BomPart:
    """What a BOM says of a part; `line` is its line in the file."""

    value: str
    package: str
    is_fitted: bool
    line: int


class Bom(dict[str, BomPart]):
    """What a BOM says, by reference designator; `notes` are sentences on how it was read, as on hidden rows.

    `read_as` says for a person which column is what. `asked` are parts of which it leaves open whether they are fitted.
    """

    notes: tuple[str, ...] = ()
    read_as: str = ""
    asked: Mapping[str, FittedQuestion] = {}


def read_bom(path: Path, form: Answers = AS_IT_IS, *, raw: bytes | None = None, asks: bool = True) -> Bom:
    """Read a BOM, as CSV, text or a spreadsheet; return what it says, by reference designator.

    `raw` are its bytes, if they are known. Raises ConfigError, with file and line, for a file without a column of
    designators, for a part that stands twice with other words, and if it `asks`, for parts of which it leaves open
    whether they are fitted; else `join` asks.
    """
    raw = content(path, "the BOM") if raw is None else raw
    table = read_board_file(path, raw, "the bill of materials")
    if table is None:
        table = lines_of(path, raw, "the BOM", lambda lines: is_bom(lines, form))
    header = _header(table.lines, form)
    if header is None:
        names = ", ".join(vocabulary.BOM_COLUMNS["refdes"][:4])
        raise ConfigError(
            f"{path}: no line is the header of a BOM, with separators between designators ({names}) and values or "
            f"packages; save it as CSV, name its columns so, or {_WHICH_COLUMN}"
        )
    expect_one_order(path, table.lines, header, *_named(form))
    rows = _joined(_rows(path, lines_below(table.lines, header), header))
    bom = _parts(path, rows, header, form)
    if not form.bom_columns and not any(map(_LIKE_A_NAME.search, bom)):
        name = header.names[header.columns["refdes"]]
        raise ConfigError(f"{path}:{header.number}: no designator such as R1 is in '{visible(name)}'; {_WHICH_COLUMN}")
    bom.notes = (*table.notes, *bom.notes)
    columns = ", ".join(f"{field} is '{visible(header.names[at])}'" for field, at in header.columns.items())
    unused = f"; not read: {', '.join(map(visible, header.unused))}" if header.unused else ""
    bom.read_as = f"{path.name}: {len(bom)} parts; {columns}{unused}"
    vocabulary.expect_answered(bom.asked.values() if asks else ())
    return bom


def is_bom(lines: Sequence[TextLine], form: Answers = AS_IT_IS) -> bool:
    """Tell whether a line above others names the columns of a BOM."""
    header = _header(lines, form)
    return header is not None and header.number < lines[-1].number


def _header(lines: Sequence[TextLine], form: Answers) -> PlacementHeader | None:
    """Return the first line with names between separators.

    A line that names nothing but a number of the maker, or a description, may be a remark: others are taken first.
    """
    unsure = None
    for header in find_headers(lines, *_named(form)):
        if header.separator is None:
            continue
        others = header.columns.keys() - {"refdes", "quantity", "value"}
        if others or one_word(header.names[header.columns["value"]]) not in vocabulary.BOM_LAST_VALUES:
            return header
        unsure = unsure or header
    return unsure


def _named(form: Answers) -> tuple[Mapping[str, Sequence[str]], Collection[str], Collection[str]]:
    """Return the names of the columns by field, the fields that a header needs, and those of which it needs one."""
    names = {**vocabulary.BOM_COLUMNS, **{str(field): (name,) for field, name in form.bom_columns.items()}}
    return names, ("refdes",), names.keys() - {"refdes", "quantity"}


def _rows(path: Path, lines: Sequence[TextLine], header: PlacementHeader) -> Iterator[Row]:
    """Yield the rows below a header; raises ConfigError, with lines, for those that cannot be divided into cells."""
    # The columns that hold a value where that of values is empty, the best first: so a Comment names an IC.
    words = ["" if at in header.columns.values() else one_word(name) for at, name in enumerate(header.names)]
    others = [words.index(one_word(name)) for name in vocabulary.BOM_COLUMNS["value"] if one_word(name) in words]
    others = [at for at in others if words[at] not in vocabulary.BOM_TEXTS]

    def by_field(cells: Sequence[str]) -> dict[str, str]:
        found = {field: cells[index] for field, index in header.columns.items() if index < len(cells)}
        if found.get("value") == "":
            found["value"] = next((cells[at] for at in others if at < len(cells) and cells[at]), "")
        return found

    # Cells may have line breaks, and so the lines are read as one text.
    reader = csv.reader((line.text + "\n" for line in lines), delimiter=header.separator or ",", skipinitialspace=True)
    table = [(lines[min(reader.line_num, len(lines)) - 1].number, row) for row in reader]
    # What stands beside the names of the header is a note behind tabs, as no list of designators has one, and where
    # all rows have as many cells as the header: a separator in a cell would have moved the others.
    named, behind = len(header.names), header.columns["refdes"] + 1
    has_notes = header.separator == "\t" or all(len(row) == header.width for _, row in table)
    widest = min((len(row) for _, row in table if len(row) >= header.width), default=header.width)
    in_quotes = {line.number for line in lines if _IN_QUOTES.fullmatch(line.text)}  # no separator moved a cell
    if wrong := [
        at
        for at, row in table
        if (at not in in_quotes and any(row[header.width if has_notes else named :]))
        or (
            USUAL.fullmatch("".join(row[behind : behind + 1]))
            and (row[widest:] or (header.separator == "," and any(row[named:])))
        )
    ]:
        what = "this line has more cells than the header; put each cell with a separator, such as R1,R2, in quotes"
        raise fault(path, wrong, what)
    for number, row in table:
        cells = [" ".join(cell.split()) for cell in row]
        yield Row(number, by_field(cells), cells)


def _joined(rows: Iterable[Row]) -> list[Row]:
    """Return rows, each with the designators of those that only go on with its list, as OrCAD wraps it."""
    joined: list[Row] = []
    for row in rows:
        filled = [*filter(None, row.all_cells)]  # in any column
        before = joined[-1].cells if joined else {}
        goes_on = len(filled) == 1 and (row.cells.get("refdes") or USUAL.match(filled[0]))
        if goes_on and before.get("refdes", "").endswith(","):
            before["refdes"] += filled[0]
        else:
            joined.append(row)
    return joined


def _parts(path: Path, rows: Sequence[Row], header: PlacementHeader, form: Answers) -> Bom:
    bom, asked, heading, passed = Bom(), dict[str, FittedQuestion](), "", list[str]()
    own: dict[str, tuple[int, tuple[str, str, bool]]] = {}
    differing, faults = dict[str, list[int]](), dict[str, dict[int, str]]()
    names, columns = header.names, header.columns
    fitting = vocabulary.fitting_of(path, rows, names, columns, form.says_fitted)
    usual = len(columns.keys() & {"refdes", "value", "package"})
    for number, cells, row, _ in rows:
        part = BomPart(cells.get("value", ""), cells.get("package", ""), number not in fitting.left_out, number)
        listed, text = cells.get("refdes", ""), " ".join(filter(None, row))
        filled = [cell for cell in row if re.search(r"[^\W_]", cell)]
        repeats = listed.casefold() == names[columns["refdes"]].casefold()
        if repeats or _is_note(filled, listed, usual if part.is_fitted else 0):
            if says_so(text) and not re.search(r"=|:\s*\d+$|\bmark", text):  # else it is a legend, or a total
                heading = f"{number}: '{text}' is a heading of parts that are not fitted"
            passed.append(f"line {number}: '{visible(text[:_MOST_SIGNS])}'")
            continue
        named = [listed] if is_date(listed) else designators(listed)
        if heading and named:
            raise ConfigError(f"{path}:{heading}; mark each of their lines in a column DNP")
        if says_so(listed) and any(map(str.isdigit, listed)):
            faults.setdefault(_SAYS_SO, {})[number] = listed
        # Lines are compared by their own words: a value may be that of another column.
        words = "".join(row[columns["value"] :][:1]) if "value" in columns else "", part.package, part.is_fitted
        for refdes in named:
            if what := fault_of(refdes):
                faults.setdefault(what, {}).setdefault(number, refdes)
            if own.setdefault(refdes, (number, words))[1] != words and _LIKE_A_NAME.search(refdes):
                differing.setdefault(refdes, [own[refdes][0]]).append(number)
            bom.setdefault(refdes, part)
            if question := fitting.asked.get(number):
                asked[refdes] = question
    if faults:
        what, wrong = next(iter(faults.items()))
        raise fault(path, [*wrong], f"'{next(iter(wrong.values()))}' {what}")
    if differing:  # Wire, or Label, may stand in several lines: it is no designator
        few = list_few(f"'{visible(name)}' (lines {', '.join(map(str, lines))})" for name, lines in differing.items())
        raise ConfigError(f"{path}: lines contradict each other about one part; correct them: {few}")
    if not bom:
        raise ConfigError(f"{path}: there is no part below the header of the BOM; export it again, or {_WHICH_COLUMN}")
    bom.asked = asked
    few = list_few(passed, _MOST_TOLD, "; ")
    bom.notes = (*([f"lines skipped, because they name no part: {few}"] if passed else ()), *fitting.notes)
    return bom


def _is_note(filled: Sequence[str], listed: str, usual: int) -> bool:
    """Tell whether a row, of which a part fills `usual` cells, is a heading or a line as "Rev: B2" or "Total 5"."""
    names = designators(listed)
    lists = any(map(USUAL.match, names))
    has_letters = any(re.search(r"[^\W\d_]", cell) for cell in filled)  # else it is a sum, or numbers a line
    is_short = len(filled) < usual and (has_letters or names) and not _LIKE_A_NAME.match("".join(names[:1]))
    has_words = len(filled) == 1 and has_letters and (" " in filled[0] or says_so(filled[0]))
    has_label = 0 < len(filled) < 3 and bool(_LABEL.search(listed) or filled[0].endswith((":", "\uff1a")))
    return (
        bool(is_short and not (lists and says_so(listed)))
        or (has_words and not _LIKE_A_NAME.search(listed))
        or (has_label and not lists)
    )


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
    notes: tuple[str, ...] = ()


def join(
    placements: Sequence[Placement], bom: Bom, *, said: Collection[str] = (), not_placed: Collection[str] = ()
) -> BomJoin:
    """Return placements with the BOM's words where the placement file has none, without what is not fitted.

    A part of a BOM is that of each board of a panel whose parts are named as Board_0-R1.

    The placement file has `said` which parts are fitted, and leaves out what is `not_placed`. Raises ConfigError for
    parts of which the BOM leaves that open, and the placement file, too.
    """
    placed = {place.refdes for place in placements if place.refdes}
    known = {*placed, *not_placed}
    of_board = on_boards(sorted(known - bom.keys()), placements)
    # R1/R2 are two parts in a BOM, unless the placement file has a part of this name.
    whole = {one: name for name in known - bom.keys() if JOINED.fullmatch(name) for one in re.split("[/+]", name)}
    parts, asked = dict[str, BomPart](), dict[str, FittedQuestion]()
    for refdes, part in bom.items():
        its_own = [refdes if refdes in known else whole.get(refdes, refdes)]
        for place in [*of_board.get(refdes, ()), *(its_own if refdes in known or refdes not in of_board else ())]:
            parts[place] = part
            if refdes in bom.asked:
                asked[place] = bom.asked[refdes]
    vocabulary.expect_answered(question for place, question in asked.items() if place in placed and place not in said)
    against = [place for place in not_placed if place in parts and parts[place].is_fitted and place not in asked]
    told = f"{list_few(against)}: listed as fitted, but left out of the placement file: not inspected"
    out = {refdes for refdes, part in parts.items() if not part.is_fitted}
    nothing = BomPart("", "", is_fitted=True, line=0)
    with_parts = [(place, parts.get(place.refdes, nothing)) for place in placements if place.refdes not in out]
    other = [
        f"{place.refdes} ({place.value}, not {part.value})"
        for place, part in with_parts
        if not _are_alike(place.value, part.value)
    ]
    differs = f"{len(other)} values are taken from the placement file, which says otherwise: {list_few(other)}"
    return BomJoin(
        tuple(
            replace(place, value=place.value or part.value, package=place.package or part.package)
            for place, part in with_parts
        ),
        tuple(place.refdes for place in placements if place.refdes in out),
        tuple(place.refdes for place, part in with_parts if place.refdes and part is nothing),
        tuple(refdes for refdes, part in parts.items() if refdes not in known and part.is_fitted),
        (*bom.notes, *([told] if against else []), *([differs] if other else [])),
    )


def _are_alike(one: str, other: str) -> bool:
    """Tell whether two values may be one, as 10k and 10K 1%: one begins as the other, or has no digit, as NC."""
    plain, further = ("".join(text.split()).casefold() for text in (one, other))
    return (
        plain.startswith(further) or further.startswith(plain) or not all(re.search(r"\d", it) for it in (one, other))
    )
