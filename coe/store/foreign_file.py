"""What lies in the place of a foreign weights file, when it is none: a pointer, a page, nothing."""

from __future__ import annotations

from pathlib import Path

from coe import regular
from coe.errors import StoreError

_START = 512


def check(path: Path) -> None:
    """Raise StoreError for a file that no kind can open as weights, whatever its ending is; the sentence says why."""
    try:
        with regular.opened(path), path.open("rb") as file:
            start = file.read(_START)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    if start.startswith(b"version https://git-lfs"):
        raise StoreError(
            f"{path}: a pointer of Git LFS stands in the place of the file; run `git lfs pull`, and import the file "
            "itself"
        )
    if start.lstrip()[:5].lower() in (b"<!doc", b"<html"):
        raise StoreError(f"{path}: a web page, not weights; download the file itself")
    if not start:
        raise StoreError(f"{path}: the file is empty; copy or download it again")
