"""What killed writers left in a store: half-written files, and folders of writers of an earlier version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from coe import regular
from coe.files import TEMPORARY

_MADE, _REPLACED = ".put-", ".old-"
_AGE_S = 24 * 3600
"""No writer takes as long: what nobody touched meanwhile belongs to none that lives."""


def sweep_expert(folder: Path, pattern: str, named: Collection[str] = ()) -> None:
    """Remove files of a pattern from an expert's folder but for those that are `named`, and what is half-written.

    Only by whoever is `alone` with the folder: then nobody writes there.
    """
    for path in [*folder.glob(pattern), *folder.glob(f".*{TEMPORARY}")]:
        if path.name not in named:
            # Some systems keep a file that is open; the next change removes it.
            with suppress(OSError):
                path.unlink()


def sweep_board(board: Path, manifest: str) -> None:
    """Remove what is left in a board's folder; `manifest` is the name of manifests.

    An expert that was moved aside and has no successor stays: it may be the only copy.
    """
    for prefix in (_MADE, _REPLACED):
        for folder in board.glob(f"{prefix}*"):
            if _is_abandoned(folder) and (prefix == _MADE or _has_successor(folder, board, manifest)):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        # It vanishes while one looks: somebody is at work there.
        return False
    return datetime.now(UTC).timestamp() - newest > _AGE_S


def _has_successor(folder: Path, board: Path, manifest: str) -> bool:
    try:
        said = json.loads(regular.read(folder / "expert" / manifest, 1 << 24))
        name = str(said["id"]).rpartition("/")[2]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return False
    return bool(name) and (board / name / manifest).is_file()
