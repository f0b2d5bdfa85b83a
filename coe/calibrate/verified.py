"""Verified pictures: each with the expert that shall judge it, and the label that is true. Nothing is guessed.

Two layouts: `<expert>/<label>/<picture>`, as `coe-experts train` takes a labelled folder for each expert; or a table
`images.csv` with the columns path, expert and label, and if wanted reference (the picture of a good part) and sha256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from coe.core import NOTHING, Expert
from coe.errors import ConfigError, did_you_mean
from coe.pictures import folder
from coe.pictures.finding import EXTENSIONS, TABLE, natural
from coe.pictures.folder import EntryKind
from coe.pictures.image_table import checksum_of, file_at, leaves, read_rows, reference_at
from coe.pictures.picture_file import PictureFile
from coe.pictures.picture_names import goes_with_pictures, is_called_picture, other_format, raw_beside, unfinished
from coe.spelling import composed

COLUMNS = ("path", "expert", "label")
LAYOUTS = f"expected <expert>/<label>/<picture>, or a table {TABLE} with the columns {', '.join(COLUMNS)}"


@dataclass(frozen=True, slots=True)
class VerifiedPicture:
    """A picture and the true label for its expert, which is `none` for a detector that shall see nothing."""

    path: Path
    name: str
    expert: str
    label: str
    reference: Path | None = None
    sha256: str = ""

    @property
    def file(self) -> PictureFile:
        """The file to be read; with a checksum it is read only if that fits."""
        return PictureFile(self.path, self.sha256)


def digest_of_files(pictures: Iterable[VerifiedPicture]) -> str:
    """Return a SHA-256 of the files of pictures, their labels and references; raises ConfigError."""
    try:
        lines = sorted(
            f"{picture.label} {_sha256(picture.path)} {_sha256(picture.reference) if picture.reference else ''}"
            for picture in pictures
        )
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror or error}") from error
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find(source: Path, experts: Mapping[str, Expert], alone: str = "") -> list[VerifiedPicture]:
    """Return the verified pictures of a folder or a table, in natural order; raises ConfigError for what is unclear.

    With `alone`, an expert's name, pictures in `<label>/<picture>` are that expert's.
    """
    table = source / TABLE if source.is_dir() else source
    try:
        if table.is_file() and table.suffix.lower() == ".csv":
            verified = list(_rows(table, experts))
        elif source.is_dir():
            verified = sorted(_walked(source, experts, alone), key=lambda picture: natural(picture.name))
        else:
            raise ConfigError(f"{source}: there is no such folder or table; {LAYOUTS}")
    except OSError as error:
        raise ConfigError(f"{error.filename or source} cannot be read: {error.strerror}") from error
    if not verified:
        raise ConfigError(f"{source} holds no pictures; {LAYOUTS}")
    return verified


def _walked(root: Path, experts: Mapping[str, Expert], alone: str) -> Iterator[VerifiedPicture]:
    entries = list(folder.walk(root, hidden=True))
    raw = raw_beside(entry.path for entry in entries)
    for entry in entries:
        inside = entry.path.relative_to(root)
        hidden = any(name.startswith(".") for name in inside.parts)
        if entry.kind is EntryKind.EMPTY or (entry.kind is EntryKind.LEFT and not entry.path.is_symlink()):
            continue
        if entry.kind is EntryKind.FILE and (hidden or entry.path.suffix.lower() not in EXTENSIONS):
            if is_called_picture(inside.name) and entry.path not in raw and not goes_with_pictures(entry.path):
                why = unfinished(inside.name) or other_format(entry.path) or "is not read: its folder is hidden"
                raise ConfigError(f"{entry.path} {why}")
            continue
        if hidden:
            continue
        if entry.kind is not EntryKind.FILE:
            raise ConfigError(f"{entry.path} {entry.reason}; mend it or remove it")
        folders = inside.parts[:-1]
        if alone and len(folders) == 1:
            folders = (alone, *folders)
        if len(folders) != 2:
            raise ConfigError(f"{entry.path}: {LAYOUTS}{', or <label>/<picture>' if alone else ''}")
        yield _checked(VerifiedPicture(entry.path, inside.as_posix(), *folders), experts, str(entry.path))


def _rows(table: Path, experts: Mapping[str, Expert]) -> Iterator[VerifiedPicture]:
    lines: dict[tuple[str, str], int] = {}
    for row in read_rows(table, COLUMNS, LAYOUTS):
        where = f"{table.name}:{row.number}"
        inside, expert, label = (row.cells.get(column, "") for column in COLUMNS)
        path = file_at(table.parent, inside) if inside and not leaves(inside) else table.parent
        if not path.is_file():
            raise ConfigError(f"{where}: there is no picture '{inside}' in the folder of the table")
        if earlier := lines.get((inside, expert)):
            raise ConfigError(f"{where}: '{inside}' is listed for '{expert}' already in line {earlier}")
        lines[inside, expert] = row.number
        reference, fault = reference_at(table.parent, row.cells.get("reference", ""))
        sha256, wrong = checksum_of(row.cells.get("sha256", ""))
        if fault := fault or wrong:
            raise ConfigError(f"{where}: {fault}")
        yield _checked(VerifiedPicture(path, inside, expert, label, reference, sha256), experts, where)


def _checked(picture: VerifiedPicture, experts: Mapping[str, Expert], where: str) -> VerifiedPicture:
    """Return the picture; raises ConfigError if the board does not know its expert or label."""
    if picture.expert not in experts:
        raise ConfigError(f"{where}: '{picture.expert}' is not an expert{did_you_mean(picture.expert, experts)}")
    labels = [*experts[picture.expert].labels, NOTHING]
    picture = replace(picture, label=composed(picture.label))  # macOS spells the names of folders in another way
    if picture.label not in labels:
        hint = did_you_mean(picture.label, labels)
        raise ConfigError(f"{where}: '{picture.label}' is not a label of '{picture.expert}'{hint}")
    return picture
