"""Pictures go after their time. Law: none before its board is decided, and none while its call is open.

The row says first that a picture is gone, then the file goes: a crash between the two leaves a file that no row names.
So does a crash after a picture came and before its row. The gate looks for such strays in one part of the folder after
the other, because there may be millions of pictures.
"""

from __future__ import annotations

from coe.core import Verdict
from coe.serve.config import Retention
from coe.serve.database import views
from coe.serve.database.opening import Database
from coe.serve.moments import DAY_US, SECOND_US
from coe.serve.pictures import Pictures

TOGETHER = 500
"""How many pictures go in one transaction."""
STRAY_US = DAY_US
"""A file without a row is left alone for so long: younger files may be about to get their rows."""


def sweep(database: Database, pictures: Pictures, retention: Retention, now_us: int) -> int:
    """Remove the pictures whose time has come; return how many. Raises DatabaseTrouble, and OSError."""
    days = {Verdict.OK: retention.ok_days, Verdict.REVIEW: retention.review_days, Verdict.NG: retention.ng_days}
    before_us: dict[Verdict | None, int] = {verdict: now_us - days[verdict] * DAY_US for verdict in days}
    # An aborted board has no verdict, and nobody will ask for its pictures.
    before_us[None] = now_us - retention.orphan_days * DAY_US
    removed = 0
    for verdict, moment_us in before_us.items():
        while True:
            with database.writing() as connection:
                old = views.expired(connection, verdict, moment_us, limit=TOGETHER)
                old += views.orphans(connection, moment_us, limit=TOGETHER) if verdict is None else []
                gone = views.removable(connection, [view.id for view in old])
                views.removed(connection, [view.id for view in gone], now_us)
            pictures.remove(view.file for view in gone)
            removed += len(gone)
            if len(gone) < TOGETHER:
                break
    return removed


def remove_strays(database: Database, pictures: Pictures, part: int, now_us: int) -> int:
    """Remove the old pictures of a part that no row names; return how many. Raises DatabaseTrouble, and OSError."""
    names, removed = pictures.older_than((now_us - STRAY_US) / SECOND_US, part), 0
    for start in range(0, len(names), TOGETHER):
        some = names[start : start + TOGETHER]
        with database.reading() as connection:
            strays = set(some) - views.known(connection, some)
        pictures.remove(strays)
        removed += len(strays)
    return removed
