"""Calls: what is not OK. A call is open until somebody answers it; one person at a time has it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Connection, and_, func, insert, or_, select

from coe.helpers.visible import visible
from coe.serve.clock import SECOND_US
from coe.serve.database.row_types import change, get, listed, only, values_of
from coe.serve.database.tables import Call, NewCall, board, call, recipe, view

LONGEST_CLAIM_US = 600 * SECOND_US  # no claim of a call may last longer
_ATTEMPTS = 5  # how many times another person may be faster before the search for a call gives up


_OPEN = insert(call)


def add(connection: Connection, board_id: int, opened: Sequence[NewCall], now_us: int) -> None:
    """Open calls of a board."""
    if not opened:
        return
    rows = [
        values_of(new)
        | {"findings": [dict(finding) for finding in new.findings], "opened_us": now_us, "board_id": board_id}
        # The text comes from an expert's code: it may hold any character, and not every database takes all of them.
        | {"detail": visible(new.detail, lines=True)}
        for new in opened
    ]
    connection.execute(_OPEN, rows)


def of_board(connection: Connection, board_id: int) -> list[Call]:
    """Return the calls of a board, in the order in which they were opened."""
    return listed(connection, Call, call.c.board_id == board_id)


def around(connection: Connection, of: Call) -> tuple[str, str, int]:
    """Return the serial of a call's board, the name of its recipe, and the pixels of its view: 0 without a view."""
    query = (
        select(board.c.serial, recipe.c.name, func.coalesce(view.c.pixels, 0))
        .select_from(board)
        .join(recipe, recipe.c.id == board.c.recipe_id)
        .outerjoin(view, view.c.id == (of.view_id or 0))  # IS NULL would read all views
        .where(board.c.id == of.board_id)
    )
    serial, name, pixels = connection.execute(query).one()
    return serial, name, pixels


def of_component(connection: Connection, board_id: int, refdes: str) -> Call | None:
    """Return the call of a component of a board, or None."""
    return only(connection, Call, call.c.board_id == board_id, call.c.refdes == refdes)


def open_calls(connection: Connection, *, after_id: int = 0, limit: int = 100, component: str = "") -> list[Call]:
    """Return open calls, the oldest first; of one component type if given."""
    which: list[ColumnElement[bool]] = [call.c.verification_id.is_(None), call.c.id > after_id]
    which += [call.c.component == component] if component else []
    return listed(connection, Call, *which, limit=limit)


def answered(connection: Connection, *, before_id: int | None = None, limit: int = 100) -> list[Call]:
    """Return answered calls, the newest call first."""
    which: list[ColumnElement[bool]] = [call.c.verification_id.is_not(None)]
    which += [] if before_id is None else [call.c.id < before_id]
    return listed(connection, Call, *which, newest=True, limit=limit)


def count_open(connection: Connection) -> int:
    """Return how many calls are open."""
    return connection.scalar(select(func.count()).where(call.c.verification_id.is_(None))) or 0


def count_open_of(connection: Connection, board_id: int) -> int:
    """Return how many calls of a board are open."""
    is_open = (call.c.board_id == board_id, call.c.verification_id.is_(None))
    return connection.scalar(select(func.count()).where(*is_open)) or 0


def _is_unclaimed(now_us: int) -> ColumnElement[bool]:
    """Return the condition that nobody has a call reserved; a claim that lasts too long is of a clock set back."""
    until = call.c.claimed_until_us
    return or_(until <= now_us, until > now_us + LONGEST_CLAIM_US)


def _is_free(by: str, session: str, now_us: int) -> ColumnElement[bool]:
    is_mine = and_(call.c.claimed_by == by, call.c.claimed_session == session)
    return or_(_is_unclaimed(now_us), is_mine)


def claim(connection: Connection, id: int, *, by: str, session: str = "", until_us: int, now_us: int) -> bool:
    """Reserve an open call for a person's session until a time; False if another has it, or if it was answered."""
    is_free = (call.c.id == id, call.c.verification_id.is_(None), _is_free(by, session, now_us))
    return change(connection, call, *is_free, claimed_by=by, claimed_session=session, claimed_until_us=until_us)


def claim_next(
    connection: Connection,
    *,
    by: str,
    session: str = "",
    now_us: int,
    until_us: int,
    after_id: int = 0,
    without: Collection[int] = (),
    is_again: bool = True,
) -> Call | None:
    """Reserve the next open call that nobody else looks at; None if there is none.

    Calls after `after_id` come first, and then those before it, so that a call that was left out comes again; calls
    `without` do not come. Without `is_again` no call comes that is reserved already: it may be for another program with
    the same key.
    """
    is_free = _is_free(by, session, now_us) if is_again else _is_unclaimed(now_us)
    free = and_(call.c.verification_id.is_(None), is_free, call.c.id.not_in(without))
    for _ in range(_ATTEMPTS):
        id = connection.scalar(select(func.min(call.c.id)).where(free, call.c.id > after_id))
        id = id or connection.scalar(select(func.min(call.c.id)).where(free, call.c.id <= after_id))
        if id is None:
            return None
        if claim(connection, id, by=by, session=session, until_us=until_us, now_us=now_us):
            return get(connection, Call, id)
    return None


def free(connection: Connection, session: str) -> None:
    """Let others have the open calls that a session has reserved."""
    change(connection, call, call.c.verification_id.is_(None), call.c.claimed_session == session, claimed_until_us=0)


def raise_verdict(connection: Connection, before: Call, new: NewCall) -> bool:
    """Give an open call a more severe verdict and a new revision; False if it is none, or the call was answered."""
    if new.verdict.severity <= before.verdict.severity:
        return False
    values = {name: getattr(new, name) for name in ("verdict", "reason", "detail", "expert", "label", "score", "late")}
    values |= {"findings": [dict(finding) for finding in new.findings], "revision": call.c.revision + 1}
    values["detail"] = visible(new.detail, lines=True)
    return change(connection, call, call.c.id == before.id, call.c.verification_id.is_(None), **values)
