"""Paths that a table of images states, relative to its folder. Law: none leads out of that folder."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path, PurePosixPath

from coe.pictures.folder import why_no_file
from coe.spelling import composed


def reference_at(folder: Path, cell: str) -> tuple[Path | None, str]:
    """Return the path of a reference that a table states, if it states one, and what is wrong with it, or ""."""
    if not cell:
        return None, ""
    inside = os.path.normpath(cell.replace("\\", "/"))
    if leaves(inside):
        return None, f"the reference '{inside}' leaves the folder of the table; give a path relative to it"
    path = at(folder, inside)
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


def at(folder: Path, inside: str) -> Path:
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
