"""The images of a run, and the component that each of them shows. Law: no image is dropped, and nothing is guessed.

There are three layouts: `<component>/<image>`, `<serial>/<refdes>__<component>.<ext>` and a table `images.csv`. An
image that fits no layout, or whose names disagree, becomes a `FoundImage` with an `error`, so that it gets a result
like every other image. So does everything that may be an image and cannot be read. `decode` gives the pixels.
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
from coe.board.folder import EntryKind, FolderEntry, walk, why_no_file
from coe.board.table_paths import leaves, reference_at
from coe.core import Failure, FailureKind
from coe.errors import ConfigError, did_you_mean

__all__ = ["EXTENSIONS", "TABLE", "FoundImage", "Skipped", "decode", "find", "natural"]

EXTENSIONS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".tif", ".tiff"})
OTHER_FORMATS = frozenset(
    {".webp", ".gif", ".jp2", ".j2k", ".jxl", ".heic", ".heif", ".avif", ".tga", ".ppm", ".pgm", ".pnm", ".dng"}
)
"""Pictures in formats that are not read; each becomes an image with an error, because a board is not OK without it."""
TABLE = "images.csv"
LAYOUTS = f"expected <component>/<image>, <serial>/<refdes>__<component>.<ext>, or a table {TABLE}"


@dataclass(frozen=True, slots=True)
class FoundImage:
    """One image that was found.

    `name` is its name in the results: its POSIX path relative to the given folder, unique within one `find`. In a name
    from the disk, a byte that is not UTF-8 stands as `\\xNN`, and a backslash is doubled, so that two files never share
    a name. `failure` is set if the image cannot be inspected whatever its pixels are (say, an unknown component);
    `path` may then not exist, or be a folder that cannot be read. `reference` is a picture of a good part, if the table
    names one.
    """

    path: Path
    component: str
    serial: str = ""
    refdes: str = ""
    name: str = ""
    failure: Failure | None = None
    reference: Path | None = None

    @property
    def error(self) -> str | None:
        """The sentence that says why it cannot be inspected; None if it can."""
        return self.failure.reason if self.failure is not None else None


@dataclass(frozen=True, slots=True)
class Skipped:
    """An entry that was left alone: a file without the extension of an image, or a second link to a folder."""

    path: Path
    reason: str


def find(source: Path, components: Collection[str]) -> tuple[list[FoundImage], list[Skipped]]:
    """Return the images in a folder, a table or a single file, in natural order (R2 before R10).

    If a folder holds a table `images.csv`, only the images in the table are inspected, each as the component that the
    table states, whatever the names of folders and files are. Hidden files are ignored. Raises ConfigError if `source`
    does not exist, cannot be read or holds no image, and if the table is no file, has no usable header or names an
    image twice.
    """
    known = _Components(components)
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
    """Return a path whose last part is the name of a folder, which `.` and `..` are not."""
    whole = path.absolute()
    return whole.resolve() if ".." in whole.parts[-2:] else whole


class _Components:
    """The board's components. Each unknown word is compared with them once, not once for each image."""

    def __init__(self, components: Collection[str]) -> None:
        self._components = frozenset(components)
        self._hints: dict[str, str] = {}
        self._folded = {component.casefold(): component for component in sorted(components, reverse=True)}

    def __contains__(self, word: str) -> bool:
        return word in self._components

    def spelt(self, text: str) -> str | None:
        """Return the component that a part of a file name names, ignoring upper and lower case; None if none."""
        return text if text in self._components else self._folded.get(text.strip().casefold())

    def hint(self, word: str) -> str:
        if word not in self._hints:
            self._hints[word] = did_you_mean(word, self._components)
        return self._hints[word]


def _walk(folder: Path, known: _Components) -> tuple[list[FoundImage], list[Skipped]]:
    items: list[FoundImage] = []
    skipped: list[Skipped] = []
    whole = _absolute(folder)
    for entry in walk(folder):
        inside = PurePosixPath(entry.path.relative_to(folder).as_posix())
        suffix = entry.path.suffix.lower()
        image = suffix in EXTENSIONS
        if entry.kind is EntryKind.FILE and image:
            items.append(_place(entry.path, inside, whole, known))
        elif entry.kind is EntryKind.UNREADABLE or (entry.kind is EntryKind.SPECIAL and image):
            items.append(_unusable(entry, inside, whole, known))
        elif entry.kind is EntryKind.FILE and suffix in OTHER_FORMATS:
            item = _place(entry.path, inside, whole, known)
            reason = f"is a picture in a format that is not read ({suffix}); save it as PNG"
            items.append(replace(item, failure=Failure(FailureKind.IMAGE, reason)))
        else:
            reason = entry.reason or f"'{printable(entry.path.suffix)}' is not the extension of an image"
            skipped.append(Skipped(entry.path, reason))
    items = sorted(_on_boards(items), key=lambda item: natural(item.name))
    return items, sorted(skipped, key=lambda other: natural(str(other.path)))


def _unusable(entry: FolderEntry, inside: PurePosixPath, folder: Path, known: _Components) -> FoundImage:
    """Return the failed item of an entry that cannot be read, and may be an image or a folder of images."""
    return replace(_place(entry.path, inside, folder, known), failure=Failure(FailureKind.IMAGE, entry.reason))


def _on_boards(items: Iterable[FoundImage]) -> Iterator[FoundImage]:
    """Give images without serial and component to the board in whose folder they lie: it is not OK without them."""
    items = list(items)
    serials = {item.serial for item in items if item.serial}
    for item in items:
        parent, mark, _ = item.name.partition("/")
        lies_there = mark and not item.serial and not item.component and parent in serials
        yield replace(item, serial=parent) if lies_there else item


def _place(path: Path, inside: PurePosixPath, folder: Path, known: _Components) -> FoundImage:
    """Return the item of an image by its name; `inside` is its path relative to `folder`, which is absolute."""
    name = printable(str(inside))
    if len(inside.parts) > 2:
        return FoundImage(path, "", name=name, failure=_unclear(f"lies too deep in the folder; {LAYOUTS}"))
    parent = inside.parts[0] if len(inside.parts) == 2 else folder.name
    refdes, mark, component = inside.stem.partition("__")
    if parent in known:
        stated = _stated(component, known)
        failure = None if stated in (None, parent) else _two_names(parent, str(stated))
        # We do not guess which of two names is right: the image counts for neither component.
        return FoundImage(path, "" if failure else parent, name=name, failure=failure)
    serial = printable(parent)
    component_of_folder, stated = known.spelt(parent), known.spelt(component)
    if component_of_folder is not None and stated not in (None, component_of_folder):
        # c0/R1__C5: a serial hardly has the name of a component.
        return FoundImage(path, "", name=name, failure=_two_names(parent, str(stated)))
    if not mark:
        reason = f"its folder '{serial}' is not a component of the board{known.hint(parent) or '; ' + LAYOUTS}"
        return FoundImage(path, "", name=name, failure=_unclear(reason))
    refdes, component = printable(refdes), printable(component)
    failure = None if component in known else _unclear(_unknown(component, known))
    return FoundImage(path, component, serial, refdes, name, failure)


def _stated(after_mark: str, known: _Components) -> str | None:
    """Return the component that a file name states after `__`, as `R1__C5` or `R1__C5__2` do; None if it states none.

    In the folder of a component the names are free, and most state no component.
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


def _unknown(component: str, known: _Components) -> str:
    return f"'{component}' is not a component of the board{known.hint(component)}"


def _read_table(table: Path, known: _Components) -> list[FoundImage]:
    _must_be_file(table)
    try:
        text = table.read_bytes().decode("utf-8-sig")  # `read_text` would change line ends within cells
    except UnicodeDecodeError as error:
        raise ConfigError(f"{table} is not UTF-8 text; save it as CSV UTF-8") from error
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)  # spreadsheets in many countries write ';'
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    items: list[FoundImage] = []
    lines: dict[str, int] = {}
    try:
        header = [column.strip().lower() for column in next(rows, [])]
        missing = [column for column in ("path", "component") if column not in header]
        if missing:
            raise ConfigError(
                f"{table}:1: no column {' and no column '.join(missing)}; "
                "the first line must be path,component,serial,refdes (and reference, if images bring one)"
            )
        if twice := sorted(column for column in set(header) if column and header.count(column) > 1):
            raise ConfigError(f"{table}:1: the column {twice[0]} is there twice; rename or remove one of them")
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


def _row(table: Path, line: int, row: dict[str, str], known: _Components, surplus: list[str]) -> FoundImage:
    where = f"{table.name}:{line}"
    inside = os.path.normpath(row["path"].replace("\\", "/")) if row.get("path") else ""
    component, serial, refdes = (row.get(column, "") for column in ("component", "serial", "refdes"))
    kind, error = FailureKind.IMAGE, ""
    if not inside:
        error = "the path is empty"
    elif leaves(inside):
        error = f"'{inside}' leaves the folder of the table; give a path relative to it"
    elif surplus:
        error = f"'{surplus[0]}' stands after the last column; quote cells that contain the separator"
    elif not component:
        kind, error = FailureKind.RULES, "the component is empty"
    elif not os.path.lexists(table.parent / inside):
        error = f"there is no file '{inside}'"
    elif reason := why_no_file(table.parent / inside):
        error = f"'{inside}' {reason}"
    elif component not in known:
        kind, error = FailureKind.RULES, _unknown(component, known)
    reference, reference_error = reference_at(table.parent, row.get("reference", ""))
    error = error or reference_error
    failure = Failure(kind, f"{where}: {error}") if error else None
    return FoundImage(table.parent / inside, component, serial, refdes, inside or where, failure, reference)


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
