"""A table `images.csv`: the images of a run, and what each shows. Each row is an image, and nothing is guessed."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from coe.core import Failure, FailureKind
from coe.errors import ConfigError
from coe.helpers.spelling import composed
from coe.pictures.folder import why_no_file
from coe.pictures.found_image import FoundImage
from coe.pictures.label_folders import Components
from coe.pictures.picture_names import other_format


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
            raise ConfigError(f"{table}:1: the column {twice[0]} is there twice; rename or remove one of them")
        for row in rows:
            cells = [cell.strip() for cell in row]
            if any(cells):
                surplus = next(filter(None, cells[len(columns) :]), "")
                yield TableRow(rows.line_num, dict(zip(columns, cells, strict=False)), surplus)
    except csv.Error as error:
        raise ConfigError(f"{table}:{rows.line_num}: not a line of CSV: {error}") from error


def read_table(table: Path, known: Components) -> list[FoundImage]:
    """Return the images of a table, in its order; raises ConfigError if it has no usable header or is no table."""
    header = "the first line must be path,component,serial,refdes (and reference, sha256, if images bring them)"
    items: list[FoundImage] = []
    lines: dict[str, tuple[int, str]] = {}
    for row in read_rows(table, ("path", "component"), header):
        item = _image(table, row, known)
        number, before = lines.setdefault(composed(item.name), (row.number, item.name))
        if number != row.number:
            spelt = "" if before == item.name else f" ({before!a} and {item.name!a} are one name)"
            raise ConfigError(
                f"{table}:{row.number}: '{item.name}' is listed already in line {number}{spelt}; list each image once"
            )
        items.append(item)
    return items


def _image(table: Path, row: TableRow, known: Components) -> FoundImage:
    where, cells = f"{table.name}:{row.number}", row.cells
    inside = os.path.normpath(cells["path"].replace("\\", "/")) if cells.get("path") else ""
    component, serial, refdes = (composed(cells.get(column, "")) for column in ("component", "serial", "refdes"))
    kind, error = FailureKind.IMAGE, ""
    path = file_at(table.parent, inside) if inside and not leaves(inside) else table.parent / inside
    if not inside:
        error = "the path is empty"
    elif leaves(inside):
        error = f"'{inside}' leaves the folder of the table; give a path relative to it"
    elif row.surplus:
        error = f"'{row.surplus}' stands after the last column; quote cells that contain the separator"
    elif not component:
        kind, error = FailureKind.RULES, "the component is empty"
    elif not os.path.lexists(path):
        error = f"there is no file '{inside}'"
    elif reason := why_no_file(path) or other_format(path):
        error = f"'{inside}' {reason}"
    elif component not in known:
        kind, error = FailureKind.RULES, known.unknown(component)
    reference, reference_error = reference_at(table.parent, cells.get("reference", ""))
    sha256, checksum_error = checksum_of(cells.get("sha256", ""))
    error = error or reference_error or checksum_error
    failure = Failure(kind, f"{where}: {error}") if error else None
    return FoundImage(path, component, serial, refdes, inside or where, failure, reference, sha256)


def reference_at(folder: Path, cell: str) -> tuple[Path | None, str]:
    """Return the path of a reference that a table states, if it states one, and what is wrong with it, or ""."""
    if not cell:
        return None, ""
    inside = os.path.normpath(cell.replace("\\", "/"))
    if leaves(inside):
        return None, f"the reference '{inside}' leaves the folder of the table; give a path relative to it"
    path = file_at(folder, inside)
    if not os.path.lexists(path):
        return None, f"there is no reference '{inside}'"
    if reason := why_no_file(path):
        return None, f"the reference '{inside}' {reason}"
    return path, ""


def checksum_of(cell: str) -> tuple[str, str]:
    """Return the SHA-256 that a table states of a picture, in lower case, and what is wrong with it, or ""."""
    checksum = cell.lower()
    if cell and not re.fullmatch("[0-9a-f]{64}", checksum):
        return "", f"'{cell[:80]}' is not a SHA-256; write 64 hexadecimal digits, as `sha256sum` does, or nothing"
    return checksum, ""


def file_at(folder: Path, inside: str) -> Path:
    """Return where the file lies that a normal path names, however its accented letters are written (NFC or NFD).

    The very name comes first. Of several other names none is taken: the path then leads nowhere.
    """
    path = folder / inside
    if inside.isascii() or os.path.lexists(path):
        return path
    path = folder
    for name in PurePosixPath(inside).parts:
        if not os.path.lexists(path / name):
            try:
                same = _spellings(path, path.stat().st_mtime_ns).get(composed(name), [])
            except OSError:
                same = []
            path /= same[0] if len(same) == 1 else name
        else:
            path /= name
    return path


@lru_cache(maxsize=4)  # a table names the same folder in each line
def _spellings(folder: Path, changed_ns: int) -> dict[str, list[str]]:
    """Return the names in a folder by their spelling in NFC; raises OSError."""
    names: dict[str, list[str]] = {}
    for name in os.listdir(folder):
        names.setdefault(composed(name), []).append(name)
    return names


def leaves(inside: str) -> bool:
    """Tell whether a normal path with `/` leads out of the folder that it is relative to."""
    first = inside.partition("/")[0]
    return "\0" in inside or os.path.isabs(inside) or first == ".." or ":" in first
