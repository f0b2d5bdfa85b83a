"""The operators' queue: who looks at which call. Two people never answer the same call, and audits stay blind."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, select

from coe.serve.database import call_rows
from coe.serve.database.blind import masked
from coe.serve.database.call_rows import Call
from coe.serve.database.row_types import record
from coe.serve.database.tables import board, call, recipe, view

_ATTEMPTS = 5
"""How many times another person may be faster before the search for a call gives up."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a person sees of a call, and of its board; `view_pixels` is width x height of its view, 0 without a view."""

    call: Call
    serial: str
    board_key: str
    recipe: str
    recipe_id: int
    view_pixels: int


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
    free = call_rows.is_free(by, session, now_us) if is_again else call_rows.is_unclaimed(now_us)
    free = and_(call.c.verification_id.is_(None), free, call.c.id.not_in(without))
    for _ in range(_ATTEMPTS):
        id = connection.scalar(select(func.min(call.c.id)).where(free, call.c.id > after_id))
        id = id or connection.scalar(select(func.min(call.c.id)).where(free, call.c.id <= after_id))
        if id is None:
            return None
        if call_rows.claim(connection, id, by=by, session=session, until_us=until_us, now_us=now_us):
            return call_rows.get(connection, id)
    return None


def answered(connection: Connection, *, before_id: int | None = None, limit: int = 100) -> list[Call]:
    """Return answered calls, the newest call first."""
    query = select(call).where(call.c.verification_id.is_not(None)).order_by(call.c.id.desc()).limit(limit)
    if before_id is not None:
        query = query.where(call.c.id < before_id)
    return [record(Call, row) for row in connection.execute(query)]


def shown(connection: Connection, open_call: Call) -> Shown:
    """Return what a person sees of a call."""
    face = masked(open_call)
    pixels = 0
    if open_call.view_id is not None:
        pixels = connection.scalar(select(view.c.pixels).where(view.c.id == open_call.view_id)) or 0
    query = select(board.c.serial, board.c.key, recipe.c.name, board.c.recipe_id)
    query = query.join(recipe, recipe.c.id == board.c.recipe_id).where(board.c.id == face.board_id)
    return Shown(face, *connection.execute(query).one(), pixels)
