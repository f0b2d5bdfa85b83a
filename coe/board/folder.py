"""What lies in a folder, whatever lies there. Law: nothing in it stops the walk, and nothing in it is passed over.

A link that leads to itself, a folder that may not be read, a pipe and a socket are each an `Entry` that says so; the
walk goes on with the others. No file is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

LEVELS = 2
"""Down to so many levels every link to a folder is followed; below them a folder is visited once, by one of its names.

Without that, ten folders that link to each other would have more paths than anybody could walk.
"""


class What(Enum):
    """What an entry of a folder is."""

    FILE = auto()
    SPECIAL = auto()
    """A pipe, a socket or a device: to read it could wait for ever."""
    UNREADABLE = auto()
    """It may be a file, or a folder of many: the system does not let anybody look."""
    AGAIN = auto()
    """A link to a folder that is walked already."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a folder; `reason` says, of anything that is no file, why it cannot be used."""

    path: Path
    what: What
    reason: str = ""


_NAMES = {
    stat.S_IFIFO: "a pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def why_no_file(path: Path) -> str | None:
    """Return why a path cannot be read as a file, as "is a socket, and no file"; None if it is a file."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return _unreadable(path, error)
    return None if stat.S_ISREG(mode) else f"is {_NAMES.get(stat.S_IFMT(mode), 'something else')}, and no file"


def walk(folder: Path) -> Iterator[Entry]:
    """Yield everything in a folder and in the folders in it, hidden entries left out.

    Raises OSError if the folder itself cannot be read; nothing below it raises.
    """
    visited: set[tuple[int, int]] = set()
    waiting = [(_entries(folder), frozenset([_identity(folder)]))]
    while waiting:
        entries, above = waiting.pop()
        for entry in entries:
            path = Path(entry.path)
            try:
                if entry.is_file():
                    yield Entry(path, What.FILE)
                elif not entry.is_dir():
                    yield _odd(path)
                elif (here := _identity(path)) in above:
                    yield Entry(path, What.AGAIN, "is a link back to a folder that it lies in")
                elif len(above) >= LEVELS and entry.is_symlink() and here in visited:
                    yield Entry(path, What.AGAIN, "is a link to a folder that is looked at already")
                else:
                    waiting.append((_entries(path), above | {here}))
                    visited.add(here)
            except OSError as error:
                yield Entry(path, What.UNREADABLE, _unreadable(path, error))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what a folder holds, in an order that does not depend on the disk."""
    with os.scandir(folder) as entries:
        return sorted((one for one in entries if not one.name.startswith(".")), key=lambda one: os.fsencode(one.name))


def _odd(path: Path) -> Entry:
    """Return the entry of what is neither a file nor a folder."""
    try:
        path.stat()
    except OSError as error:
        return Entry(path, What.UNREADABLE, _unreadable(path, error))
    return Entry(path, What.SPECIAL, why_no_file(path) or "")


def _identity(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino


def _unreadable(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return "is a link that leads nowhere"
    return f"cannot be read: {error.strerror or error}"
