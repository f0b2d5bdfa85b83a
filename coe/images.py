"""Which images there are, and what each of them shows. Law: no image is dropped, and none is guessed at.

Three layouts: `<component>/<image>`, `<serial>/<refdes>__<component>.<ext>` and a table `images.csv`. An image that
fits none is an `Item` with an `error`, so that it gets a result like every other; `decode` gives its pixels.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from coe.decoding import decode
from coe.errors import ConfigError, did_you_mean

__all__ = ["EXTENSIONS", "TABLE", "Item", "Skipped", "decode", "find", "natural"]

EXTENSIONS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".tif", ".tiff"})
TABLE = "images.csv"
LAYOUTS = f"expected <component>/<image>, <serial>/<refdes>__<component>.<ext>, or a table {TABLE}"


@dataclass(frozen=True, slots=True)
class Item:
    """One image that was found.

    `name` is what results call it: its POSIX path relative to the given folder, unique within one `find`. `error` is
    set when it cannot be inspected whatever its pixels are (say, an unknown component); `path` may then not exist.
    """

    path: Path
    component: str
    serial: str = ""
    refdes: str = ""
    name: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is no image by its extension, and so was left alone."""

    path: Path
    reason: str


def find(source: Path, components: Collection[str]) -> tuple[list[Item], list[Skipped]]:
    """Return the images in a folder, a table or a single file, in natural order (R2 before R10).

    A table counts alone: in a folder that holds `images.csv`, only what it lists is inspected. Hidden files are
    ignored. Raises ConfigError if `source` is not there, cannot be read or holds no image, and if the table has no
    usable header or names an image twice.
    """
    known = _Known(components)
    try:
        if source.is_dir():
            table = source / TABLE
            items, skipped = (_read_table(table, known), []) if table.is_file() else _walk(source, known)
        elif not source.exists():
            raise ConfigError(f"{source}: there is no such folder or file; give --images a folder of images")
        elif source.suffix.lower() == ".csv":
            items, skipped = _read_table(source, known), []
        elif source.suffix.lower() in EXTENSIONS:
            items, skipped = [_place(source, PurePosixPath(source.name), source.absolute().parent, known)], []
        else:
            raise ConfigError(f"{source} is not an image ({' '.join(sorted(EXTENSIONS))}), a folder or a .csv table")
    except OSError as error:
        raise ConfigError(f"{error.filename or source} cannot be read: {error.strerror}") from error
    if not items:
        others = f" (only {len(skipped)} other files)" if skipped else ""
        raise ConfigError(f"{source} holds no images{others}; {LAYOUTS}")
    return items, skipped


class _Known:
    """The board's components; suggestions are sought once a word, not once an image."""

    def __init__(self, components: Collection[str]) -> None:
        self._components = frozenset(components)
        self._hints: dict[str, str] = {}

    def __contains__(self, word: str) -> bool:
        return word in self._components

    def hint(self, word: str) -> str:
        if word not in self._hints:
            self._hints[word] = did_you_mean(word, self._components)
        return self._hints[word]


def _walk(folder: Path, known: _Known) -> tuple[list[Item], list[Skipped]]:
    items: list[Item] = []
    skipped: list[Skipped] = []
    for path in _files(folder, set()):
        if path.suffix.lower() in EXTENSIONS:
            inside = PurePosixPath(path.relative_to(folder).as_posix())
            items.append(_place(path, inside, folder.absolute(), known))
        else:
            skipped.append(Skipped(path, f"'{path.suffix}' is not the extension of an image"))
    items.sort(key=lambda item: natural(item.name))
    return items, sorted(skipped, key=lambda other: natural(str(other.path)))


def _files(folder: Path, above: set[str]) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in above:  # a link that leads back up
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _files(Path(entry.path), above | {real})
            else:
                yield Path(entry.path)


def _place(path: Path, inside: PurePosixPath, folder: Path, known: _Known) -> Item:
    """Say what one image shows; `inside` is its path relative to `folder`, which is absolute."""
    name = _printable(str(inside))
    if len(inside.parts) > 2:
        return Item(path, "", name=name, error=f"lies too deep in the folder; {LAYOUTS}")
    parent = inside.parts[0] if len(inside.parts) == 2 else folder.name
    if parent in known:
        return Item(path, parent, name=name)
    serial = _printable(parent)
    refdes, mark, component = inside.stem.partition("__")
    if not mark:
        hint = known.hint(parent)
        return Item(
            path, "", name=name, error=f"its folder '{serial}' is not a component of the board{hint or '; ' + LAYOUTS}"
        )
    refdes, component = _printable(refdes), _printable(component)
    return Item(path, component, serial, refdes, name, _unknown(component, known))


def _unknown(component: str, known: _Known) -> str | None:
    if component in known:
        return None
    return f"'{component}' is not a component of the board{known.hint(component)}"


def _read_table(table: Path, known: _Known) -> list[Item]:
    try:
        text = table.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{table} is not UTF-8 text; save it as CSV UTF-8") from error
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)  # spreadsheets in many countries write ';'
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    items: list[Item] = []
    lines: dict[str, int] = {}
    try:
        header = [column.strip().lower() for column in next(rows, [])]
        missing = [column for column in ("path", "component") if column not in header]
        if missing:
            raise ConfigError(
                f"{table}:1: no column {' and no column '.join(missing)}; "
                "the first line must be path,component,serial,refdes"
            )
        for cells in rows:
            if not any(cell.strip() for cell in cells):
                continue
            row = dict(zip(header, (cell.strip() for cell in cells), strict=False))
            item = _row(table, rows.line_num, row, known)
            if item.name in lines:
                raise ConfigError(
                    f"{table}:{rows.line_num}: '{item.name}' is listed already in line {lines[item.name]}; "
                    "list each image once"
                )
            lines[item.name] = rows.line_num
            items.append(item)
    except csv.Error as error:
        raise ConfigError(f"{table}:{rows.line_num}: not a line of CSV: {error}") from error
    return items


def _row(table: Path, line: int, row: dict[str, str], known: _Known) -> Item:
    where = f"{table.name}:{line}"
    inside = os.path.normpath(row["path"].replace("\\", "/")) if row.get("path") else ""
    component, serial, refdes = (row.get(column, "") for column in ("component", "serial", "refdes"))
    if not inside:
        error: str | None = "the path is empty"
    elif "\0" in inside or os.path.isabs(inside) or inside.split("/")[0] == ".." or ":" in inside.split("/")[0]:
        error = f"'{inside}' leaves the folder of the table; give a path relative to it"
    elif not component:
        error = "the component is empty"
    elif not os.path.isfile(table.parent / inside):
        error = f"there is no file '{inside}'"
    else:
        error = _unknown(component, known)
    return Item(
        table.parent / inside, component, serial, refdes, inside or where, f"{where}: {error}" if error else None
    )


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key that reads runs of digits as numbers, so that R2 comes before R10; the name itself breaks ties."""
    key = []
    for at, part in enumerate(re.split(r"([0-9]+)", name)):
        digits = part.lstrip("0")
        key.append((0, len(digits), digits) if at % 2 else (1, 0, part))
    return [*key, (1, 0, name)]


def _printable(name: str) -> str:
    """Return a file name as text that UTF-8 can hold, whatever bytes it has on disk."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
