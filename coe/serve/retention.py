"""Pictures go after their time. None before its board is decided, and none while its call is open.

The row says first that a picture is gone, then the file goes: a crash between the two leaves a file that no row names.
So does a crash after a picture came and before its row. The gate looks for such strays in one part of the folder after
the other, because there may be millions of pictures.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, select

from coe.config import counted
from coe.core import Verdict
from coe.errors import LateImage, list_few
from coe.helpers import system
from coe.helpers.timely import answered, in_time
from coe.serve.clock import DAY_US, SECOND_US, iso
from coe.serve.credentials import ARCHIVE, read_or_make
from coe.serve.database import views
from coe.serve.database.connecting import Database
from coe.serve.database.tables import View, board, recipe, view
from coe.serve.picture_folder import Pictures
from coe.serve.service_config import Retention

MARK = "coe-archive"
_INDEX = "index-*.jsonl"
_LONGEST_LINE = 2**20
_late: dict[Path, LateImage] = {}
_T = TypeVar("_T")


class ArchiveFailed(OSError):
    """Pictures could not be archived, so they stay in the service."""


def rows_of(connection: Connection, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return what the index says of views, by their ids."""
    query = (
        select(view.c.file, view.c.sha256, view.c.name.label("view"), view.c.board_key.label("key"), view.c.received_us)
        .add_columns(board.c.id.label("board"), board.c.serial, board.c.verdict, board.c.decided_us)
        .add_columns(recipe.c.name.label("recipe"), recipe.c.version)
        .outerjoin(board, board.c.key == view.c.board_key)
        .outerjoin(recipe, recipe.c.id == board.c.recipe_id)
        .where(view.c.id.in_(ids))
        .order_by(view.c.id)
    )
    return [dict(row._mapping) for row in connection.execute(query)]


def _in_time(folder: Path, work: Callable[[], _T]) -> _T:
    """Work with the archive; raises ArchiveFailed, also while an earlier call has no answer: two would mix files."""
    late = _late.get(folder)
    if late is None or late.is_back():
        try:
            return in_time(work)
        except LateImage as error:
            _late[folder] = error
        except ArchiveFailed:
            raise
        except OSError as error:  # of a copy, the second file is that in the archive
            where = error.filename2 or error.filename or folder
            raise ArchiveFailed(f"{where}: {error.strerror}; check the disk of the archive {folder}") from error
    raise ArchiveFailed(f"{folder} does not answer: check its server, or mount it again")


def keep_in_time(folder: Path, pictures: Pictures, rows: Sequence[dict[str, Any]], now_us: int) -> list[str]:
    """Do what `keep` does, as long as the archive answers."""
    return _in_time(folder, partial(keep, folder, pictures, rows, now_us))


def expect_other_disk(folder: Path, pictures: Pictures) -> None:
    """Raise ArchiveFailed if what goes into the archive frees no room; raises OSError."""
    if _in_time(folder, folder.stat).st_dev == pictures.folder.stat().st_dev:
        raise ArchiveFailed(
            f"{folder} is on the same disk as the pictures, so no space is freed; give `retention.archive` another disk"
        )


def keep(folder: Path, pictures: Pictures, rows: Sequence[dict[str, Any]], now_us: int) -> list[str]:
    """Copy pictures into the archive, prove the copies, and add them to the index; return the files that did not fit.

    A picture whose file is gone has nothing that could be kept. Raises ArchiveFailed if the archive, or the folder of
    the pictures, is not there, and OSError.
    """
    _expect(folder)
    if folder.samefile(pictures.folder):
        raise ArchiveFailed(f"{folder} is the folder of the pictures itself; name another one as `retention.archive`")
    lines, wrong = [], []
    for row in rows:
        answered()
        target, source = folder / row["file"], pictures.path(row["file"])
        if not _fits(target, row["sha256"]):
            if not source.exists():
                if not source.parent.exists():  # its disk is away, and comes back with the picture
                    raise ArchiveFailed(f"the folder {source.parent} does not exist; mount the disk of the pictures")
                continue
            if not _copied(source, target, row["sha256"]):
                wrong.append(row["file"])
                continue
        lines.append(json.dumps(shown(row) | {"archived": iso(now_us)}, ensure_ascii=False) + "\n")
    if lines:
        _append(_index_of(folder, pictures, now_us), "".join(lines).encode())
        system.save_names(folder)
        _expect(folder)  # its disk may have gone meanwhile, and the copies lie where it was
    return wrong


def _expect(folder: Path) -> None:
    if not (folder / MARK).is_file():
        raise ArchiveFailed(
            f"the file {folder / MARK} is missing: mount the disk of the archive; in a new archive, create this file"
        )


def _index_of(folder: Path, pictures: Pictures, now_us: int) -> Path:
    """Return the index of a month, of this station's own: two that share an archive would cut each other's lines.

    Boxes from one image may have one host name and disks of the same numbers, and a copied folder has the secret of its
    station: the name is made of secret and host.
    """
    try:
        own = read_or_make(pictures.folder.parent / ARCHIVE)
    except OSError:  # the disk is full, for which pictures go into the archive
        own = f"{pictures.folder.stat().st_dev} {pictures.folder.stat().st_ino}".encode()
    station = hashlib.sha256(own + platform.node().encode()).hexdigest()[:8]
    return folder / f"index-{iso(now_us)[:7]}-{station}.jsonl"


def _append(index: Path, lines: bytes) -> None:
    """Append lines. A torn last line, as of a full disk, is cut off: its pictures are still in the service."""
    with index.open("ab+") as file:
        before = max(0, file.tell() - _LONGEST_LINE)
        file.seek(before)
        file.truncate(before + file.read().rfind(b"\n") + 1)
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its times written out."""
    is_time = {key: key.endswith("_us") and value is not None for key, value in row.items()}
    return {key.removesuffix("_us"): iso(value) if is_time[key] else value for key, value in row.items()}


def _copied(source: Path, target: Path, sha256: str) -> bool:
    target.parent.mkdir(exist_ok=True)
    unfinished = target.with_name(f"{target.name}.part")
    shutil.copyfile(source, unfinished)
    with unfinished.open("rb+") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):  # so that the disk is read, and not what is still in memory
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if not _fits(unfinished, sha256):
        unfinished.unlink()
        return False
    unfinished.replace(target)
    system.save_names(target.parent)
    return True


def _fits(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False


@dataclass(frozen=True, slots=True)
class ArchiveProof:
    """How many pictures of an archive are as they came, and the files of the others."""

    sound: int
    wrong: Sequence[str]


def prove(folder: Path) -> ArchiveProof:
    """Compare each picture of the index with its hash; unreadable lines are wrong. Raises ArchiveFailed, OSError."""
    _expect(folder)
    named: dict[str, str] = {}
    for index in sorted(folder.glob(_INDEX)):
        # Pictures of a last line that is torn, as by a cut of the power, are still in the service.
        for number, line in enumerate(index.read_bytes().split(b"\n")[:-1], 1):
            try:
                row = json.loads(line)
                named[row["file"]] = row["sha256"]
            except (ValueError, LookupError, TypeError):
                named[f"{index.name}, line {number}"] = ""
    wrong = sorted(file for file, sha256 in named.items() if not _fits(folder / file, sha256))
    return ArchiveProof(len(named) - len(wrong), wrong)


TOGETHER = 500  # how many pictures go in one transaction
STRAY_US = DAY_US  # a file without a row is left alone for this time: younger files may be about to get their rows


def sweep(
    database: Database,
    pictures: Pictures,
    retention: Retention,
    now_us: int,
    *,
    since_us: int | None = None,
    free_share: Callable[[], float] = lambda: 1.0,
) -> int:
    """Remove the pictures whose time has come; return how many. Raises DatabaseError, and OSError.

    `since_us` is the time of an earlier sweep: pictures without a board that it removed, or left, are not looked at.
    With an archive none goes before it is kept there. `free_share` returns the share of the disk that is free: if it is
    less than `retention.free_share`, the oldest go before their time until it is not.
    """
    bin = _Bin(database, pictures, retention.archive, now_us)
    orphan_us = retention.orphan_days * DAY_US
    before_us: dict[Verdict | None, int] = {
        Verdict.OK: now_us - retention.ok_days * DAY_US,
        Verdict.REVIEW: now_us - retention.review_days * DAY_US,
        Verdict.NG: now_us - retention.ng_days * DAY_US,
        # An aborted board has no verdict, and nobody will ask for its pictures.
        None: now_us - orphan_us,
    }
    removed = 0
    for verdict, moment_us in before_us.items():
        old_views = partial(views.expired, verdict=verdict, before_us=moment_us, now_us=now_us)
        removed += bin.remove(old_views)
        _note_swept(database, verdict, moment_us, now_us)
    first_us = 0 if since_us is None else since_us - orphan_us
    orphans = partial(views.orphans, before_us=now_us - orphan_us, now_us=now_us, since_us=first_us)
    removed += bin.remove(orphans)
    for verdict in (None, Verdict.OK, Verdict.REVIEW, Verdict.NG):
        if free_share() < retention.free_share:
            if retention.archive is not None:
                expect_other_disk(retention.archive, pictures)
            old_views = partial(views.expired, verdict=verdict, before_us=None, now_us=now_us)
            removed += bin.remove(old_views, lambda: free_share() < retention.free_share)
            _note_swept(database, verdict, None, now_us)
    if bin.damaged:
        few = list_few(sorted(bin.damaged))
        these = counted(len(bin.damaged), "picture that is", "pictures that are")
        raise ArchiveFailed(f"{these} not as submitted cannot be archived, and must stay here: {few}")
    return removed


def _note_swept(database: Database, verdict: Verdict | None, before_us: int | None, now_us: int) -> None:
    while True:
        ids = database.read(views.without_pictures, verdict, before_us, now_us, limit=TOGETHER)
        if ids:
            database.write(views.swept, ids, now_us)
        if len(ids) < TOGETHER:
            return


@dataclass(frozen=True, slots=True)
class _Bin:
    """Where old pictures go, or the archive before it."""

    database: Database
    pictures: Pictures
    archive: Path | None
    now_us: int
    damaged: set[str] = field(default_factory=set)  # files that the archive did not take

    def remove(self, old_views: Callable[..., list[View]], is_wanted: Callable[[], bool] = lambda: True) -> int:
        """Remove old pictures that nobody needs, a part at a time, as long as it is wanted; return how many.

        Old pictures are looked for, and archived, without the lock of the database, because that may take a while.
        Those that are still needed must not keep those after them.
        """
        removed, seen_id = 0, 0
        while is_wanted():
            with self.database.reading() as connection:
                old = old_views(connection, after_id=seen_id, limit=TOGETHER)
                going = views.removable(connection, [view.id for view in old])
                rows = rows_of(connection, [view.id for view in going]) if self.archive is not None else []
            if not old:
                break
            if self.archive is not None:
                self.damaged.update(keep_in_time(self.archive, self.pictures, rows, self.now_us))
            with self.database.writing() as connection:
                views.hold(connection)
                # A picture that came meanwhile in the place of an old one is not old.
                files = {view.file for view in going} - self.damaged
                gone = [view for view in views.removable(connection, [view.id for view in going]) if view.file in files]
                views.removed(connection, [view.id for view in gone], self.now_us)
            self.pictures.remove(view.file for view in gone)
            removed, seen_id = removed + len(gone), old[-1].id
        return removed


def remove_strays(database: Database, pictures: Pictures, part: int, now_us: int) -> int:
    """Remove the old pictures of a part that no row names; return how many. Raises DatabaseError, and OSError."""
    names, removed = pictures.older_than((now_us - STRAY_US) / SECOND_US, part), 0
    for start in range(0, len(names), TOGETHER):
        some = names[start : start + TOGETHER]
        strays = set(some) - database.read(views.known, some)
        pictures.remove(strays)
        removed += len(strays)
    return removed
