"""A walk through a folder, whatever lies in it. Nothing stops the walk, and nothing is passed over.

A link that leads to itself, a folder that may not be read, a pipe and a socket each become a `FolderEntry` with a
reason, and the walk goes on. No file is opened.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from coe.helpers.regular import SORTS

LEVELS = 2
"""Down to this depth every link to a folder is followed; below it a folder is visited once, by one of its names.

Without this limit, ten folders that link to each other would have more paths than anybody could walk.
"""
OF_SYSTEMS = re.compile(
    r"\.(git|svn|hg|trash.*|dtrash|spotlight-v100|fseventsd|temporaryitems|documentrevisions-v100|thumbnails|@__thumb"
    r"|apple(double|db|desktop)|snapshots?|zfs|st(folder|versions)|dropbox\.cache|picasaoriginals|ipynb_checkpoints)"
    r"|@eadir|__macosx|[#@]recycle|[#~]snapshot|@recently-snapshot|\$recycle\.bin|lost\+found"
    r"|system volume information",
    re.IGNORECASE,
)
"""Folders of systems and tools: waste baskets, thumbnails, former states of the disk."""


class EntryKind(Enum):
    """The kinds of entries in a folder."""

    FILE = auto()
    SPECIAL = auto()
    """A pipe, a socket or a device: reading it could wait for ever."""
    UNREADABLE = auto()
    """A file, or a folder of many files: the system does not let us look."""
    EMPTY = auto()
    """A folder without any entry."""
    LEFT = auto()
    """A folder that is not visited: a link to one that the walk visits anyway, or one of the system's."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """An entry of a folder; for every kind but FILE, `reason` says why the entry cannot be used."""

    path: Path
    kind: EntryKind
    reason: str = ""


def why_no_file(path: Path) -> str | None:
    """Return why a path cannot be read as a file, such as "is a socket, and no file"; None if it is a file."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return _unreadable(path, error)
    return None if stat.S_ISREG(mode) else f"is {SORTS.get(stat.S_IFMT(mode), 'something else')}, not a file"


def walk(folder: Path, *, hidden: bool = False) -> Iterator[FolderEntry]:
    """Yield everything in a folder and in its subfolders, hidden entries only if `hidden` is set.

    Raises OSError if the folder itself cannot be read; entries below it raise nothing.
    """
    visited: set[tuple[int, int]] = set()
    waiting = [(_entries(folder, hidden), frozenset([_identity(folder)]))]
    while waiting:
        entries, above = waiting.pop()
        for entry in entries:
            path = Path(entry.path)
            try:
                if entry.is_file():
                    yield FolderEntry(path, EntryKind.FILE)
                elif not entry.is_dir():
                    yield _odd(path)
                elif OF_SYSTEMS.fullmatch(entry.name):
                    yield FolderEntry(path, EntryKind.LEFT, "is a folder of the system or of a tool")
                elif (here := _identity(path)) in above:
                    yield FolderEntry(path, EntryKind.LEFT, "is a link back to a folder that contains it")
                elif len(above) >= LEVELS and entry.is_symlink() and here in visited:
                    yield FolderEntry(path, EntryKind.LEFT, "is a link to a folder that is searched already")
                elif inside := _entries(path, hidden):
                    waiting.append((inside, above | {here}))
                    visited.add(here)
                else:
                    yield FolderEntry(path, EntryKind.EMPTY, "is an empty folder")
            except OSError as error:
                yield FolderEntry(path, EntryKind.UNREADABLE, _unreadable(path, error))


def _entries(folder: Path, hidden: bool) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, in an order that does not depend on the disk."""
    with os.scandir(folder) as entries:
        seen = (entry for entry in entries if hidden or not entry.name.startswith("."))
        return sorted(seen, key=lambda entry: os.fsencode(entry.name))


def _odd(path: Path) -> FolderEntry:
    """Return the entry of a path that leads to neither a file nor a folder."""
    try:
        path.stat()
    except OSError as error:
        return FolderEntry(path, EntryKind.UNREADABLE, _unreadable(path, error))
    return FolderEntry(path, EntryKind.SPECIAL, why_no_file(path) or "")


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _unreadable(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return "is a broken link"
    return f"cannot be read: {error.strerror or error}"
