"""Paths that a table of images states, relative to its folder. Law: none leads out of that folder."""

from __future__ import annotations

import os
from pathlib import Path

from coe.board.folder import why_no_file


def reference_at(folder: Path, cell: str) -> tuple[Path | None, str]:
    """Return the path of a reference that a table states, if it states one, and what is wrong with it, or ""."""
    if not cell:
        return None, ""
    inside = os.path.normpath(cell.replace("\\", "/"))
    if leaves(inside):
        return None, f"the reference '{inside}' leaves the folder of the table; give a path relative to it"
    if not os.path.lexists(folder / inside):
        return None, f"there is no reference '{inside}'"
    if reason := why_no_file(folder / inside):
        return None, f"the reference '{inside}' {reason}"
    return folder / inside, ""


def leaves(inside: str) -> bool:
    """Tell whether a normal path with `/` leads out of the folder that it is relative to."""
    first = inside.partition("/")[0]
    return "\0" in inside or os.path.isabs(inside) or first == ".." or ":" in first
