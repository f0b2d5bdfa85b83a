"""Pictures go after their time. Law: none before its board is decided, and none while its call is open.

The row says first that a picture is gone, then the file goes: a crash between the two leaves a file that no row names.
So does a crash after a picture came and before its row. The gate removes such strays after its start.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from coe.core import Verdict
from coe.serve.config import Retention
from coe.serve.database import views
from coe.serve.database.opening import Database
from coe.serve.database.views import View
from coe.serve.moments import DAY_US
from coe.serve.pictures import Pictures

TOGETHER = 500
"""How many pictures go in one transaction."""


def sweep(
    database: Database, pictures: Pictures, retention: Retention, now_us: int, *, since_us: int | None = None
) -> int:
    """Remove the pictures whose time has come; return how many. Raises DatabaseTrouble, and OSError.

    `since_us` is the time of an earlier sweep: pictures without a board that it removed, or left, are not looked at.
    """
    days = {Verdict.OK: retention.ok_days, Verdict.REVIEW: retention.review_days, Verdict.NG: retention.ng_days}
    removed = 0
    for verdict, number in days.items():
        removed += _sweep_boards(database, pictures, verdict, now_us - number * DAY_US, now_us)
    # An aborted board has no verdict, and nobody will ask for its pictures.
    orphan_us = retention.orphan_days * DAY_US
    removed += _sweep_boards(database, pictures, None, now_us - orphan_us, now_us)
    first_us = 0 if since_us is None else since_us - orphan_us

    def orphans(connection: Connection) -> list[View]:
        return views.orphans(connection, now_us - orphan_us, since_us=first_us, limit=TOGETHER)

    return removed + _remove(database, pictures, orphans, now_us)


def _sweep_boards(database: Database, pictures: Pictures, verdict: Verdict | None, before_us: int, now_us: int) -> int:
    removed = _remove(
        database, pictures, lambda connection: views.expired(connection, verdict, before_us, limit=TOGETHER), now_us
    )
    while True:
        with database.reading() as connection:
            ids = views.without_pictures(connection, verdict, before_us, limit=TOGETHER)
        if ids:
            with database.writing() as connection:
                views.swept(connection, ids, now_us)
        if len(ids) < TOGETHER:
            return removed


def _remove(database: Database, pictures: Pictures, find: Callable[[Connection], list[View]], now_us: int) -> int:
    """Remove the pictures that a query finds, some at a time; it runs while others write, and what it finds is checked
    once more.
    """
    removed = 0
    while True:
        with database.reading() as connection:
            old = find(connection)
        if not old:
            return removed
        with database.writing() as connection:
            gone = views.removable(connection, [view.id for view in old])
            views.removed(connection, [view.id for view in gone], now_us)
        pictures.remove(view.file for view in gone)
        removed += len(gone)
        if len(gone) < TOGETHER:
            return removed


def remove_strays(database: Database, pictures: Pictures, before_s: float) -> int:
    """Remove the pictures that no row names; return how many. Raises DatabaseTrouble, and OSError.

    `before_s` is a time of the wall clock at which nobody was receiving pictures, as the start of the only gate:
    younger files may be about to get their rows.
    """
    removed = 0
    for names in pictures.older_than(before_s):
        for start in range(0, len(names), TOGETHER):
            some = names[start : start + TOGETHER]
            with database.reading() as connection:
                strays = set(some) - views.known(connection, some)
            pictures.remove(strays)
            removed += len(strays)
    return removed
