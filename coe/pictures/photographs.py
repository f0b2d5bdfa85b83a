"""Photographs as a table: each row is a picture, with what its folders, a table or a person say of it.

`images.csv` is such a table, whose rows are the images of a run; `split.csv` beside the folders of components adds what
each picture is for, and which show one part. Pictures of one part stay together, and what `split.csv` says of a picture
stays, however many are added. Nothing is guessed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from coe.core import Failure, FailureKind
from coe.errors import ConfigError, list_few, readable
from coe.helpers import regular
from coe.helpers.files import write_atomically
from coe.helpers.spelling import composed
from coe.pictures.folder import why_no_file
from coe.pictures.picture_file import FileStamp, PictureFile
from coe.pictures.picture_names import other_format

TABLE, SPLIT = "images.csv", "split.csv"
SPLIT_COLUMNS = ("path", "group", "for")
LEVELS = 3
"""A folder of a component lies in that with the table; folders of labels and of dates lie below it."""
SHOWN = 5


class Purpose(StrEnum):
    """What a picture is for; folders `train`, `val` and `test` say the same.

    A threshold is verified with a picture, or the best epoch of a training chosen; what is to test on measures the end.
    """

    LEARN = "learn"
    VERIFY = "verify"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Photograph:
    """A picture, and what is known of it; "" or None where nothing is.

    `name` is its POSIX path in the folder that was read, unique there; in a run a byte that is not UTF-8 stands as
    `\\xNN`, and a backslash is doubled. `failure` is set if it cannot be inspected whatever its pixels are; then `path`
    may be a folder, or lead nowhere. `reference` is a picture of a good part, `sha256` the checksum of the file, where
    a table gives them.

    `label` is the name of its folder of a label as it stands, with a slash between several; once an `expert` shall
    judge it, the true label for that (`coe.learn.labelled`), and `good` tells whether that speaks for the part.
    `purpose` is what it is for, and `part` is equal for pictures of one part.
    """

    path: Path
    component: str = ""
    serial: str = ""
    refdes: str = ""
    name: str = ""
    failure: Failure | None = None
    reference: Path | None = None
    sha256: str = ""
    label: str = ""
    expert: str = ""
    good: bool | None = None
    purpose: Purpose | None = None
    part: str = ""

    @property
    def file(self) -> PictureFile:
        """The file to be read; with a checksum it is read only if that fits."""
        return PictureFile(self.path, self.sha256)

    @property
    def folder(self) -> str:
        """The folder in which it lies by its name; the name itself where it lies in none."""
        return self.name.rpartition("/")[0] or self.name

    def stamp(self) -> FileStamp | None:
        """Look by what the file is known now, with its own reference if it has one; None if there is none."""
        with suppress(OSError):
            files = [FileStamp.of(path.stat()) for path in (self.path, self.reference) if path is not None]
            return FileStamp(sum(one.bytes for one in files), sum(one.modified_ns for one in files))
        return None

    @property
    def error(self) -> str | None:
        """The sentence that says why it cannot be inspected; None if it can."""
        return self.failure.reason if self.failure is not None else None


@dataclass(frozen=True, slots=True)
class Skipped:
    """An entry that was left alone: a file that goes with pictures, an empty folder, a second link to a folder.

    `serial` is set for an empty folder that may be a board's: none of its pictures is there.
    """

    path: Path
    reason: str
    serial: str = ""


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key that reads runs of digits as numbers, so that R2 comes before R10; the name itself breaks ties."""
    key = []
    for at, part in enumerate(re.split(r"([0-9]+)", name)):
        digits = part.lstrip("0")
        key.append((0, len(digits), digits) if at % 2 else (1, 0, part))
    return [*key, (1, 0, name)]


def printable(name: str) -> str:
    """Return a file name as valid text, whatever its bytes on the disk are; different names stay different."""
    return os.fsencode(name).replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


# Tables


@dataclass(frozen=True, slots=True)
class TableRow:
    """A line of a table: its cells by column, without spaces around them, and what stands after the last column."""

    number: int
    cells: Mapping[str, str]
    surplus: str


def read_rows(table: Path, needs: Sequence[str], header: str) -> Iterator[TableRow]:
    """Yield the lines of a CSV table that are not empty; raises ConfigError, which says what the header must be.

    Columns are named in upper or lower case, and stand once; those of `needs` must be there.
    """
    try:
        text = table.read_bytes().decode("utf-8-sig")  # `read_text` would change line ends within cells
    except UnicodeDecodeError as error:
        raise ConfigError(f"{table} is not UTF-8 text; save it as CSV UTF-8") from error
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)  # spreadsheets in many countries write ';'
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        columns = [column.strip().lower() for column in next(rows, [])]
        if missing := [column for column in needs if column not in columns]:
            raise ConfigError(f"{table}:1: no column {' and no column '.join(missing)}; {header}")
        if twice := sorted(column for column in set(columns) if column and columns.count(column) > 1):
            raise ConfigError(f"{table}:1: the column {twice[0]} occurs twice; rename or remove one of them")
        for row in rows:
            cells = [cell.strip() for cell in row]
            if any(cells):
                surplus = next(filter(None, cells[len(columns) :]), "")
                yield TableRow(rows.line_num, dict(zip(columns, cells, strict=False)), surplus)
    except csv.Error as error:
        raise ConfigError(f"{table}:{rows.line_num}: not a line of CSV: {error}") from error


def read_table(table: Path, needs: Sequence[str], header: str, fault: Callable[[Photograph], str]) -> list[Photograph]:
    """Return the pictures of a table, in its order; raises ConfigError if it has no usable header or is no table.

    Paths lead from its folder. A row that cannot be used, by itself or because of a `fault`, has a failure.
    """
    items: list[Photograph] = []
    lines: dict[tuple[str, str], tuple[int, str]] = {}
    for row in read_rows(table, needs, header):
        where = f"{table.name}:{row.number}"
        one, faults = _of_row(table.parent, row)
        if faults:
            one = replace(one, failure=Failure(FailureKind.IMAGE, f"{where}: {faults[0]}"))
        elif error := fault(one):
            one = replace(one, failure=Failure(FailureKind.RULES, f"{where}: {error}"))
        one = replace(one, name=one.name or where)
        number, before = lines.setdefault((composed(one.name), one.expert), (row.number, one.name))
        if number != row.number:
            spelt = "" if before == one.name else f" ({before!a} and {one.name!a} are the same name)"
            raise ConfigError(f"{where}: '{one.name}' is listed already in line {number}{spelt}; list each image once")
        items.append(one)
    return items


def _of_row(folder: Path, row: TableRow) -> tuple[Photograph, list[str]]:
    """Return the picture that a row names, and what is wrong with its path, reference, checksum and last cell."""
    cells, faults = row.cells, []

    def at(column: str, what: str) -> tuple[str, Path]:
        inside, fault = _inside(cells.get(column, ""))
        path = folder / inside
        if fault:
            faults.append(f"{what}{fault}")
        elif inside:
            path = file_at(folder, inside)
            if not os.path.lexists(path):
                faults.append(f"there is no {what or 'file '}'{inside}'")
            elif reason := why_no_file(path) or other_format(path):
                faults.append(f"{what}'{inside}' {reason}")
        return inside, path

    inside, path = at("path", "")
    if not inside:
        faults.append("the path is empty")
    named, reference = at("reference", "reference ")
    checksum = cells.get("sha256", "").lower()
    if checksum and not re.fullmatch("[0-9a-f]{64}", checksum):
        shown = checksum[:80]
        faults.append(f"'{shown}' is not a SHA-256; write 64 hexadecimal digits, as `sha256sum` does, or nothing")
    if row.surplus:
        faults.append(f"'{row.surplus}' comes after the last column; quote cells that contain the separator")
    columns = ("component", "serial", "refdes", "expert", "label")
    component, serial, refdes, expert, label = (composed(cells.get(column, "")) for column in columns)
    known = Photograph(path, component, serial, refdes, inside, sha256=checksum, label=label, expert=expert)
    return (replace(known, reference=reference) if named else known), faults


def _inside(cell: str) -> tuple[str, str]:
    """Return the normal path that a cell gives, in the folder of its table, and what is wrong with it, or ""."""
    inside = os.path.normpath(cell.replace("\\", "/")) if cell else ""
    first = inside.partition("/")[0]
    leaves = "\0" in inside or os.path.isabs(inside) or first == ".." or ":" in first
    return inside, f"'{inside}' is outside the folder of the table; give a path relative to it" if leaves else ""


def file_at(folder: Path, inside: str) -> Path:
    """Return where the file lies that a normal path names, however its accented letters are written (NFC or NFD).

    The very name comes first. Of two other names none is taken: the path then leads nowhere.
    """
    path = folder / inside
    if inside.isascii() or os.path.lexists(path):
        return path
    spelt = {folder / unicodedata.normalize(form, inside) for form in ("NFC", "NFD")}
    there = [other for other in spelt if os.path.lexists(other)]
    return there[0] if len(there) == 1 else path


# What pictures are for


@dataclass(frozen=True, slots=True)
class Split:
    """The rows of `split.csv` in the folder `root`: purpose and part by the name of the picture in it, in NFC."""

    root: Path
    rows: Mapping[str, tuple[Purpose, str]]

    @classmethod
    def beside(cls, folder: Path) -> Split | None:
        """Return the split of a folder of photographs, or of a component or a label in it; None if there is none.

        A folder that is a link lies where the link does, and where it leads. Raises ConfigError for a file that makes
        no sense.
        """
        places = (Path(os.path.abspath(folder)), folder.resolve())
        around = (place for here in places for place in (here, *here.parents[:LEVELS]))
        root = next((place for place in around if (place / SPLIT).is_file()), None)
        if root is None:
            return None
        rows: dict[str, tuple[Purpose, str]] = {}
        purposes: dict[str, tuple[Purpose, int]] = {}
        with readable(table := root / SPLIT):
            for row in read_rows(table, SPLIT_COLUMNS, f"the first line must be {','.join(SPLIT_COLUMNS)}"):
                cell, part, word = (row.cells.get(column, "") for column in SPLIT_COLUMNS)
                name, fault = _inside(cell)
                where = f"{table}:{row.number}"
                if fault:
                    raise ConfigError(f"{where}: {fault}")
                if word not in list(Purpose):
                    raise ConfigError(f"{where}: '{word}' is not known; write {', '.join(Purpose)}")
                if composed(name) in rows:
                    raise ConfigError(f"{where}: '{name}' occurs twice")
                purpose = Purpose(word)
                first, line = purposes.setdefault(part, (purpose, row.number))
                if first is not purpose:
                    raise ConfigError(
                        f"{where}: group '{part}' has the purpose {purpose} here, but {first} in line {line}; "
                        "give it one"
                    )
                rows[composed(name)] = purpose, part
        return cls(root, rows)

    def name_of(self, path: Path) -> str:
        """Return how the file names a picture."""
        places = (Path(os.path.abspath(path)), path.parent.resolve() / path.name)
        inside = (place.relative_to(self.root) for place in places if place.is_relative_to(self.root))
        return composed(printable(next(inside, places[0]).as_posix()))

    def added_to(self, pictures: Iterable[Photograph]) -> list[Photograph]:
        """Return pictures with their purposes and parts; None and "" for those that the file does not name."""
        rows = ((one, self.rows.get(self.name_of(one.path), (one.purpose, one.part))) for one in pictures)
        return [replace(one, purpose=purpose, part=part) for one, (purpose, part) in rows]


def of_purpose(folder: Path, pictures: Sequence[Photograph], purpose: Purpose) -> list[Photograph]:
    """Return the pictures of a folder of photographs that are for a purpose; all of them without a split.

    Raises ConfigError for pictures that the split does not name, and if none is for it.
    """
    split = Split.beside(folder)
    if split is None:
        return list(pictures)
    rows, table = split.added_to(pictures), split.root / SPLIT
    if new := [split.name_of(one.path) for one in rows if one.purpose is None]:
        raise ConfigError(
            f"{table} does not say what {list_few(new, SHOWN)} {'is' if len(new) == 1 else 'are'} for; run "
            f"`coe-experts split {split.root}`, which leaves the others as they are"
        )
    chosen = [one for one in rows if one.purpose is purpose]
    if rows and not chosen:
        raise ConfigError(f"{table}: none of these {len(rows)} pictures has the purpose {purpose}")
    return chosen


def by_purpose(pictures: Iterable[Photograph]) -> dict[Purpose, list[Photograph]]:
    """Return pictures by what they are for; those of which nobody says it are to learn from."""
    rows = list(pictures)
    return {purpose: [one for one in rows if (one.purpose or Purpose.LEARN) is purpose] for purpose in Purpose}


def learned_among(folder: Path, pictures: Sequence[Photograph]) -> tuple[str, ...]:
    """Return a warning if pictures that are inspected are such that experts learned from; else nothing."""
    split = None
    with suppress(ConfigError):  # of another program
        split = Split.beside(folder) if folder.is_dir() else None
    learned = sum(one.purpose is Purpose.LEARN for one in split.added_to(pictures)) if split is not None else 0
    if split is None or not learned:
        return ()
    return (
        f"{learned} of the {len(pictures)} pictures are training pictures by {split.root / SPLIT}: this run does "
        "not show how good the experts are; run `coe-experts evaluate`",
    )


def split(
    root: Path, photographs: Sequence[Photograph], shares: Mapping[Purpose, float], *, pattern: str = "", seed: int = 0
) -> list[Photograph]:
    """Write `split.csv` of all photographs of a folder, and return them with purposes; what it said before stays.

    New parts go, in an order by the seed, to the purpose that lacks most of its share among the pictures of their
    component and label. The part of a picture is its component and its name up to `__`, or what the first group of
    the regular expression `pattern` finds in its path. Files of the same bytes are one part.

    Raises ConfigError for a pattern that makes no sense, or that finds nothing in a path, and for a folder with the
    split of the folder around it; NotWritten.
    """
    before = Split.beside(root)
    if before is not None and not before.root.samefile(root):
        raise ConfigError(f"{before.root / SPLIT} already gives these pictures a purpose; split {before.root}")
    rows = _with_parts(photographs if before is None else before.added_to(photographs), pattern)
    members: dict[str, list[Photograph]] = {}
    for one in rows:
        members.setdefault(one.part, []).append(one)
    purposes = {} if before is None else {part: purpose for purpose, part in before.rows.values()}
    by_chance = sorted(members, key=lambda part: hashlib.sha256(f"{seed} {part}".encode()).hexdigest())
    counts: defaultdict[tuple[str, str], Counter[Purpose]] = defaultdict(Counter)
    for part in sorted(by_chance, key=lambda part: part not in purposes):
        strata = Counter((one.component, one.label) for one in members[part])
        if part not in purposes:
            # What each purpose would lack of its share if the part went to none.
            lacking = {
                purpose: sum(
                    share * (counts[stratum].total() + number) - counts[stratum][purpose]
                    for stratum, number in strata.items()
                )
                for purpose, share in shares.items()
                if share
            }
            purposes[part] = max(lacking, key=lambda purpose: lacking[purpose])
        for stratum, number in strata.items():
            counts[stratum][purposes[part]] += number
    rows = [replace(one, purpose=purposes[one.part]) for one in rows]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(SPLIT_COLUMNS)
    said = {} if before is None else dict(before.rows)  # those of pictures that are away stay, too
    said |= {composed(one.name): (purposes[one.part], one.part) for one in rows}
    writer.writerows((name, said[name][1], said[name][0]) for name in sorted(said, key=natural))
    write_atomically(root.resolve() / SPLIT, [text.getvalue()])
    return rows


def _with_parts(photographs: Sequence[Photograph], pattern: str) -> list[Photograph]:
    """Return photographs with their parts: that of a picture of the same bytes, else its own."""
    try:
        search = re.compile(pattern or "^").search
    except re.error as error:
        raise ConfigError(f"'{pattern}' is not a regular expression: {error}") from error
    by_content: dict[str, str] = {}
    parts: dict[Path, str] = {}
    for one in sorted(photographs, key=lambda one: not one.part):  # those that have a part come first
        matched = search(composed(one.name))
        own = f"{one.component}/{composed(one.path.stem).partition('__')[0]}".lstrip("/")
        if pattern:
            own = matched[min(1, matched.re.groups)] if matched else ""
        if not one.part and not own:
            raise ConfigError(f"the pattern '{pattern}' finds no group in '{one.name}'")
        parts[one.path] = by_content.setdefault(regular.sha256(one.path), one.part or own)
    return [replace(one, part=parts[one.path]) for one in photographs]
