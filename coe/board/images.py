"""Which images there are, and what each of them shows. Law: no image is dropped, and none is guessed at.

Three layouts: `<component>/<image>`, `<serial>/<refdes>__<component>.<ext>` and a table `images.csv`. An image that
fits none, or two that disagree, is an `Item` with an `error`, so that it gets a result like every other, and so is
whatever could be an image and cannot be looked at; `decode` gives the pixels.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from coe.board.decoding import decode
from coe.board.folder import Entry, What, walk, why_no_file
from coe.core import Failure, FailureKind
from coe.errors import ConfigError, did_you_mean

__all__ = ["EXTENSIONS", "TABLE", "Item", "Skipped", "decode", "find", "natural"]

EXTENSIONS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".tif", ".tiff"})
OTHER_FORMATS = frozenset(
    {".webp", ".gif", ".jp2", ".j2k", ".jxl", ".heic", ".heif", ".avif", ".tga", ".ppm", ".pgm", ".pnm", ".dng"}
)
"""Pictures all the same, and not read: a board is not OK without them."""
TABLE = "images.csv"
LAYOUTS = f"expected <component>/<image>, <serial>/<refdes>__<component>.<ext>, or a table {TABLE}"


@dataclass(frozen=True, slots=True)
class Item:
    """One image that was found.

    `name` is what results call it: its POSIX path relative to the given folder, unique within one `find`. In a name
    from the disk, a byte that is no UTF-8 stands as `\\xNN`, and a backslash is doubled, so that two files never share
    one. `failure` is set when it cannot be inspected whatever its pixels are (say, an unknown component); `path` may
    then not exist, or be a folder that cannot be read.
    """

    path: Path
    component: str
    serial: str = ""
    refdes: str = ""
    name: str = ""
    failure: Failure | None = None

    @property
    def error(self) -> str | None:
        """The sentence that says why it cannot be inspected; None if it can."""
        return self.failure.reason if self.failure is not None else None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is no image by its extension, or a link to a folder that is looked at anyway: it was left alone."""

    path: Path
    reason: str


def find(source: Path, components: Collection[str]) -> tuple[list[Item], list[Skipped]]:
    """Return the images in a folder, a table or a single file, in natural order (R2 before R10).

    A table counts alone: in a folder that holds `images.csv`, only what it lists is inspected, as the component that it
    states, whatever folders and files are called. Hidden files are ignored. Raises ConfigError if `source` is not
    there, cannot be read or holds no image, and if the table is no file, has no usable header or names an image twice.
    """
    known = _Known(components)
    try:
        if source.is_dir():
            table = source / TABLE
            items, skipped = (_read_table(table, known), []) if os.path.lexists(table) else _walk(source, known)
        elif not source.exists():
            raise ConfigError(f"{source}: there is no such folder or file; give --images a folder of images")
        elif source.suffix.lower() == ".csv":
            items, skipped = _read_table(source, known), []
        elif source.suffix.lower() in EXTENSIONS:
            _must_be_file(source)
            items, skipped = [_place(source, PurePosixPath(source.name), _absolute(source).parent, known)], []
        else:
            raise ConfigError(f"{source} is not an image ({' '.join(sorted(EXTENSIONS))}), a folder or a .csv table")
    except OSError as error:
        raise ConfigError(f"{error.filename or source} cannot be read: {error.strerror}") from error
    if not items:
        others = f" (only {len(skipped)} other files)" if skipped else ""
        raise ConfigError(f"{source} holds no images{others}; {LAYOUTS}")
    return items, skipped


def _must_be_file(path: Path) -> None:
    if reason := why_no_file(path):
        raise ConfigError(f"{path} {reason}; give --images a folder of images, an image or a table")


def _absolute(path: Path) -> Path:
    """Return a path whose last part is the name of a folder: `.` has none, and `..` is not one."""
    whole = path.absolute()
    return whole.resolve() if ".." in whole.parts[-2:] else whole


class _Known:
    """The board's components; suggestions are sought once a word, not once an image."""

    def __init__(self, components: Collection[str]) -> None:
        self._components = frozenset(components)
        self._hints: dict[str, str] = {}

        self._folded = {component.casefold(): component for component in sorted(components, reverse=True)}

    def __contains__(self, word: str) -> bool:
        return word in self._components

    def spelt(self, text: str) -> str | None:
        """Return the component that a part of a file name stands for, upper and lower case alike; None if none."""
        return text if text in self._components else self._folded.get(text.strip().casefold())

    def hint(self, word: str) -> str:
        if word not in self._hints:
            self._hints[word] = did_you_mean(word, self._components)
        return self._hints[word]


def _walk(folder: Path, known: _Known) -> tuple[list[Item], list[Skipped]]:
    items: list[Item] = []
    skipped: list[Skipped] = []
    whole = _absolute(folder)
    for entry in walk(folder):
        inside = PurePosixPath(entry.path.relative_to(folder).as_posix())
        suffix = entry.path.suffix.lower()
        image = suffix in EXTENSIONS
        if entry.what is What.FILE and image:
            items.append(_place(entry.path, inside, whole, known))
        elif entry.what is What.UNREADABLE or (entry.what is What.SPECIAL and image):
            items.append(_unusable(entry, inside, whole, known))
        elif entry.what is What.FILE and suffix in OTHER_FORMATS:
            item = _place(entry.path, inside, whole, known)
            reason = f"is a picture in a format that is not read ({suffix}); save it as PNG"
            items.append(replace(item, failure=Failure(FailureKind.IMAGE, reason)))
        else:
            reason = entry.reason or f"'{_printable(entry.path.suffix)}' is not the extension of an image"
            skipped.append(Skipped(entry.path, reason))
    items = sorted(_on_boards(items), key=lambda item: natural(item.name))
    return items, sorted(skipped, key=lambda other: natural(str(other.path)))


def _unusable(entry: Entry, inside: PurePosixPath, folder: Path, known: _Known) -> Item:
    """Return what stands for something that may be an image, or hold some, and cannot be read."""
    return replace(_place(entry.path, inside, folder, known), failure=Failure(FailureKind.IMAGE, entry.reason))


def _on_boards(items: Iterable[Item]) -> Iterator[Item]:
    """Give images that nothing could be said of to the board in whose folder they lie: it is not OK without them."""
    items = list(items)
    serials = {item.serial for item in items if item.serial}
    for item in items:
        parent, mark, _ = item.name.partition("/")
        lies_there = mark and not item.serial and not item.component and parent in serials
        yield replace(item, serial=parent) if lies_there else item


def _place(path: Path, inside: PurePosixPath, folder: Path, known: _Known) -> Item:
    """Say what one image shows; `inside` is its path relative to `folder`, which is absolute."""
    name = _printable(str(inside))
    if len(inside.parts) > 2:
        return Item(path, "", name=name, failure=_unclear(f"lies too deep in the folder; {LAYOUTS}"))
    parent = inside.parts[0] if len(inside.parts) == 2 else folder.name
    refdes, mark, component = inside.stem.partition("__")
    if parent in known:
        stated = _stated(component, known)
        failure = None if stated in (None, parent) else _two_names(parent, str(stated))
        # Not a guess at which of the two is meant: the image counts for neither.
        return Item(path, "" if failure else parent, name=name, failure=failure)
    serial = _printable(parent)
    alike, stated = known.spelt(parent), known.spelt(component)
    if alike is not None and stated not in (None, alike):  # c0/R1__C5: a serial hardly has a component's name
        return Item(path, "", name=name, failure=_two_names(parent, str(stated)))
    if not mark:
        reason = f"its folder '{serial}' is not a component of the board{known.hint(parent) or '; ' + LAYOUTS}"
        return Item(path, "", name=name, failure=_unclear(reason))
    refdes, component = _printable(refdes), _printable(component)
    failure = None if component in known else _unclear(_unknown(component, known))
    return Item(path, component, serial, refdes, name, failure)


def _stated(after_mark: str, known: _Known) -> str | None:
    """Return the component that a file name states behind `__`, as `R1__C5` or `R1__C5__2` do; None if it states none.

    Within a component's folder names are free, and most state none.
    """
    for text in (after_mark, *after_mark.split("__")):
        if (component := known.spelt(text)) is not None:
            return component
    return None


def _unclear(reason: str) -> Failure:
    return Failure(FailureKind.RULES, reason)


def _two_names(folder: str, stated: str) -> Failure:
    return _unclear(
        f"its folder says component '{folder}' and its name says '{stated}'; rename one of them, or list the image in "
        f"a table {TABLE}"
    )


def _unknown(component: str, known: _Known) -> str:
    return f"'{component}' is not a component of the board{known.hint(component)}"


def _read_table(table: Path, known: _Known) -> list[Item]:
    _must_be_file(table)
    try:
        text = table.read_bytes().decode("utf-8-sig")  # line ends within a cell are a part of a name
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
        if twice := sorted(column for column in set(header) if column and header.count(column) > 1):
            raise ConfigError(f"{table}:1: the column {twice[0]} is there twice; which of the two counts?")
        for cells in rows:
            if not any(cell.strip() for cell in cells):
                continue
            row = dict(zip(header, (cell.strip() for cell in cells), strict=False))
            surplus = [cell for cell in cells[len(header) :] if cell.strip()]
            item = _row(table, rows.line_num, row, known, surplus)
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


def _row(table: Path, line: int, row: dict[str, str], known: _Known, surplus: list[str]) -> Item:
    where = f"{table.name}:{line}"
    inside = os.path.normpath(row["path"].replace("\\", "/")) if row.get("path") else ""
    component, serial, refdes = (row.get(column, "") for column in ("component", "serial", "refdes"))
    kind, error = FailureKind.IMAGE, ""
    if not inside:
        error = "the path is empty"
    elif "\0" in inside or os.path.isabs(inside) or inside.split("/")[0] == ".." or ":" in inside.split("/")[0]:
        error = f"'{inside}' leaves the folder of the table; give a path relative to it"
    elif surplus:
        error = f"'{surplus[0]}' stands behind the last column; quote cells that hold the separator"
    elif not component:
        kind, error = FailureKind.RULES, "the component is empty"
    elif not os.path.lexists(table.parent / inside):
        error = f"there is no file '{inside}'"
    elif reason := why_no_file(table.parent / inside):
        error = f"'{inside}' {reason}"
    elif component not in known:
        kind, error = FailureKind.RULES, _unknown(component, known)
    failure = Failure(kind, f"{where}: {error}") if error else None
    return Item(table.parent / inside, component, serial, refdes, inside or where, failure)


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key that reads runs of digits as numbers, so that R2 comes before R10; the name itself breaks ties."""
    key = []
    for at, part in enumerate(re.split(r"([0-9]+)", name)):
        digits = part.lstrip("0")
        key.append((0, len(digits), digits) if at % 2 else (1, 0, part))
    return [*key, (1, 0, name)]


def _printable(name: str) -> str:
    """Return a file name as text that UTF-8 can hold, whatever bytes it has on disk; no two names become the same."""
    return os.fsencode(name).replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
