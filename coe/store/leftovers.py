"""Removing what killed writers left in a store: half-written files, and folders from an earlier version."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from coe import regular
from coe.files import TEMPORARY
from coe.store.expert_id import ExpertId

_MADE, _REPLACED = ".put-", ".old-"
_AGE_S = 24 * 3600
"""No writer takes this long: a folder that nobody touched meanwhile belongs to a dead writer."""


def sweep_expert(folder: Path, pattern: str, named: Collection[str] = ()) -> None:
    """Remove from an expert's folder the files of a pattern that are not `named`, and half-written files.

    Call it only while `alone` with the folder, when no other process writes there.
    """
    for path in [*folder.glob(pattern), *folder.glob(f".*{TEMPORARY}")]:
        if path.name not in named:
            # Some systems do not remove a file that is open; the next change removes it.
            with suppress(OSError):
                path.unlink()


def sweep_board(board: Path, manifest: str) -> None:
    """Remove abandoned folders from a board's folder; `manifest` is the file name of manifests.

    A replaced expert without a successor stays: it may be the only copy.
    """
    for prefix in (_MADE, _REPLACED):
        for folder in board.glob(f"{prefix}*"):
            if _is_abandoned(folder) and (prefix == _MADE or _has_successor(folder, board, manifest)):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        # A file vanished meanwhile: a writer is at work there.
        return False
    return datetime.now(UTC).timestamp() - newest > _AGE_S


def _has_successor(folder: Path, board: Path, manifest: str) -> bool:
    try:
        content = json.loads(regular.read(folder / "expert" / manifest, 1 << 24))
        name = ExpertId.of(str(content["id"])).name
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return False
    return bool(name) and (board / name / manifest).is_file()
