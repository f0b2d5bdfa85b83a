"""The OK findings of a board as one compressed value, and good pictures. This file alone knows its form."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from coe.core import Verdict
from coe.serve.database import row_types
from coe.serve.database.tables import Call, View, board, recipe
from coe.serve.enums import BoardState

_LEVEL = 6


@dataclass(frozen=True, slots=True)
class GoodComponent:
    """A component that is OK: its view and place in it (None: the view shows it alone), and its findings as JSON.

    A finding is a row of `Finding.to_dict`.
    """

    refdes: str
    component: str
    view_id: int
    place: Any
    findings: Sequence[Any]


def pack(components: Sequence[GoodComponent]) -> bytes:
    """Return components as compressed JSON."""
    rows = [
        [component.refdes, component.component, component.view_id, component.place, list(component.findings)]
        for component in components
    ]
    return zlib.compress(json.dumps(rows, separators=(",", ":"), allow_nan=False).encode(), _LEVEL)


def unpack(packed: bytes | None) -> list[GoodComponent]:
    """Return the components of a packed value; none for None."""
    return [] if packed is None else [GoodComponent(*row) for row in json.loads(zlib.decompress(packed))]


_BOARDS = 12
"""How many boards are looked through: a part that was never good in this many boards has no good picture."""


def good_picture(connection: Connection, call: Call) -> tuple[View, Any] | None:
    """Return the newest view, with the place in it, of the same place that was OK on another board.

    If there is none, that of another part of the same component type.
    """
    query = select(board.c.id, board.c.findings).where(
        board.c.state.in_((BoardState.DECIDED, BoardState.VERIFIED)), board.c.id != (call.board_id or 0)
    )
    if call.board_id is not None:
        own = select(recipe.c.name).join(board, board.c.recipe_id == recipe.c.id).where(board.c.id == call.board_id)
        versions = select(recipe.c.id).where(recipe.c.name == own.scalar_subquery())
        query = query.where(board.c.recipe_id.in_(versions))
    # Boards that are OK as a whole come first, because nothing on them is in doubt.
    clean = query.where(board.c.verdict == Verdict.OK).order_by(board.c.id.desc()).limit(_BOARDS)
    others = query.where(board.c.verdict != Verdict.OK).order_by(board.c.id.desc()).limit(_BOARDS)
    of_component: tuple[View, Any] | None = None
    for rows in (clean, others):
        for row in connection.execute(rows):
            for good in unpack(row.findings):
                is_same = good.refdes == call.refdes
                if good.component != call.component or (of_component is not None and not is_same):
                    continue
                view = row_types.get(connection, View, good.view_id)
                if view is not None and view.removed_us is None:
                    of_component = view, good.place
                    if is_same:
                        return of_component
    return of_component
