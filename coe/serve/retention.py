"""Pictures go after their time. None before its board is decided, and none while its call is open.

The row says first that a picture is gone, then the file goes: a crash between the two leaves a file that no row names.
So does a crash after a picture came and before its row. The gate looks for such strays in one part of the folder after
the other, because there may be millions of pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from coe.config import counted
from coe.core import Verdict
from coe.errors import list_few
from coe.serve import archive
from coe.serve.clock import DAY_US, SECOND_US
from coe.serve.database import views
from coe.serve.database.connecting import Database
from coe.serve.database.tables import View
from coe.serve.picture_folder import Pictures
from coe.serve.service_config import Retention

TOGETHER = 500
"""How many pictures go in one transaction."""
STRAY_US = DAY_US
"""A file without a row is left alone for this time: younger files may be about to get their rows."""


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
                archive.expect_other_disk(retention.archive, pictures)
            old_views = partial(views.expired, verdict=verdict, before_us=None, now_us=now_us)
            removed += bin.remove(old_views, lambda: free_share() < retention.free_share)
            _note_swept(database, verdict, None, now_us)
    if bin.damaged:
        few = list_few(sorted(bin.damaged))
        these = counted(len(bin.damaged), "picture that is", "pictures that are")
        raise archive.ArchiveFailed(f"{these} not as handed in cannot be archived, and must stay here: {few}")
    return removed


def _note_swept(database: Database, verdict: Verdict | None, before_us: int | None, now_us: int) -> None:
    """Note of which boards no picture is left, a part at a time."""
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
    damaged: set[str] = field(default_factory=set)
    """Files that the archive did not take."""

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
                rows = archive.rows_of(connection, [view.id for view in going]) if self.archive is not None else []
            if not old:
                break
            if self.archive is not None:
                self.damaged.update(archive.keep_in_time(self.archive, self.pictures, rows, self.now_us))
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
