"""Trials: what was asked for and what was counted, and the boards that they judge again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select

from coe.core import Verdict
from coe.serve.database import row_types
from coe.serve.database.board_rows import unpack
from coe.serve.database.hourly import of_recipe
from coe.serve.database.repairs import SuspectedPictures
from coe.serve.database.row_types import change, listed
from coe.serve.database.tables import StoredTrial, board, call, trial, verification
from coe.serve.enums import CallReason, Outcome, TrialState, Truth

UNFINISHED = (TrialState.ASKED, TrialState.RUNNING)


@dataclass(frozen=True, slots=True)
class TrialNews:
    """How far a trial is, with all that it has counted; one that is not RUNNING has ended."""

    state: TrialState
    counts: Mapping[str, Any]
    reason: str = ""


def add(
    connection: Connection, name: str, content: Mapping[str, Any], asked: Mapping[str, Any], *, by: str, now_us: int
) -> StoredTrial:
    """Ask for a trial."""
    newest_id = connection.scalar(select(func.coalesce(func.max(board.c.id), 0)))
    row: dict[str, Any] = {"recipe": name, "content": dict(content), "asked": dict(asked), "counts": {}, "reason": ""}
    row |= {"state": TrialState.ASKED, "asked_us": now_us, "asked_by": by, "newest_id": newest_id}
    return row_types.add(connection, StoredTrial, row)


def newest(connection: Connection, *, limit: int = 50) -> list[StoredTrial]:
    """Return trials, the newest first."""
    return listed(connection, StoredTrial, newest=True, limit=limit)


def next_unfinished(connection: Connection) -> StoredTrial | None:
    """Return the oldest trial that is not finished, or None."""
    return next(iter(listed(connection, StoredTrial, trial.c.state.in_(UNFINISHED), limit=1)), None)


def write(connection: Connection, id: int, news: TrialNews, now_us: int) -> None:
    """Write news of a trial, unless it was dropped."""
    end = {} if news.state is TrialState.RUNNING else {"ended_us": now_us, "reason": news.reason}
    change(connection, trial, *_unfinished(id), state=news.state, counts=dict(news.counts), **end)


def end(connection: Connection, id: int, state: TrialState, *, now_us: int, reason: str = "") -> bool:
    """End a trial; False if it has ended already."""
    return change(connection, trial, *_unfinished(id), state=state, ended_us=now_us, reason=reason)


def _unfinished(id: int) -> tuple[ColumnElement[bool], ...]:
    return trial.c.id == id, trial.c.state.in_(UNFINISHED)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part that experts judged: its picture, the line's verdict, and what is true of it."""

    refdes: str
    component: str
    view_id: int | None
    place: Any
    today: Verdict
    truth: Truth
    call: int | None = None


@dataclass(frozen=True, slots=True)
class StoredBoard:
    """A decided board; `left_out` counts parts that no expert judged, or that a report may mean and does not name."""

    id: int
    parts: Sequence[StoredPart]
    left_out: int


def boards_before(connection: Connection, name: str, before_id: int, *, limit: int) -> list[int]:
    """Return the ids of decided boards of a recipe before a board, the newest first."""
    which = (board.c.id < before_id, board.c.decided_us.is_not(None), of_recipe(name, board.c.recipe_id))
    return list(connection.scalars(select(board.c.id).where(*which).order_by(board.c.id.desc()).limit(limit)))


_SAID = {
    None: Truth.OPEN,
    Outcome.CONFIRMED: Truth.DEFECT,
    Outcome.FALSE_CALL: Truth.GOOD,
    Outcome.ACCEPTED: Truth.ACCEPTED,
}


def stored(connection: Connection, ids: Sequence[int], suspects: SuspectedPictures) -> Iterator[StoredBoard]:
    """Yield boards with their parts; one that a later test found is a defect."""
    said: dict[int, list[Any]] = defaultdict(list)
    calls = (
        select(call, verification.c.outcome)
        .outerjoin(verification, verification.c.id == call.c.verification_id)
        .where(call.c.board_id.in_(ids))
    )
    for row in connection.execute(calls):
        said[row.board_id].append(row)
    for one in connection.execute(select(board.c.id, board.c.findings).where(board.c.id.in_(ids))):
        called, good = said[one.id], unpack(one.findings)
        judged = [(part, Verdict.OK, Truth.UNASKED, None) for part in good]
        judged += [(row, row.verdict, _SAID[row.outcome], row.id) for row in called if row.reason is CallReason.EXPERT]
        parts = []
        for part, today, truth, id in judged:
            is_named = suspects.names(one.id, part.refdes)
            if is_named or not suspects.has(one.id, part.refdes):
                where = (part.refdes, part.component, part.view_id, part.place)
                parts.append(StoredPart(*where, today, Truth.DEFECT if is_named else truth, id))
        yield StoredBoard(one.id, parts, len(good) + len(called) - len(parts))
