"""Trials: what was asked for and what was counted, and the boards that they judge again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select

from coe.core import Verdict
from coe.serve.database import row_types
from coe.serve.database.findings import GoodComponent, unpack
from coe.serve.database.hourly import of_recipe
from coe.serve.database.row_types import change, listed
from coe.serve.database.tables import StoredTrial, board, call, trial, verification
from coe.serve.enums import CallReason, Outcome, TrialState
from coe.serve.exportable import SuspectedPictures
from coe.serve.trial_counts import Truth

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
    """A part that experts judged: its picture, its findings as rows, the line's verdict, and what is true of it."""

    refdes: str
    component: str
    view_id: int | None
    place: Any
    findings: Sequence[Mapping[str, Any]]
    today: Verdict
    truth: Truth
    call: int | None = None


@dataclass(frozen=True, slots=True)
class StoredBoard:
    """A decided board; `left_out` counts parts that no expert judged, or that a report may mean and does not name."""

    id: int
    recipe_id: int
    parts: Sequence[StoredPart]
    left_out: int


def boards_before(connection: Connection, name: str, before_id: int, *, limit: int) -> list[int]:
    """Return the ids of decided boards of a recipe before a board, the newest first."""
    return _ids(connection, name, board.c.id < before_id, limit, board.c.id.desc())


def _ids(connection: Connection, name: str, which: Any, limit: int, order: Any) -> list[int]:
    decided = (board.c.decided_us.is_not(None), of_recipe(name, board.c.recipe_id))
    return list(connection.scalars(select(board.c.id).where(which, *decided).order_by(order).limit(limit)))


def stored(connection: Connection, ids: Sequence[int], suspects: SuspectedPictures) -> Iterator[StoredBoard]:
    """Yield boards with their parts."""
    said: dict[int, list[Any]] = defaultdict(list)
    calls = (
        select(call, verification.c.outcome)
        .outerjoin(verification, verification.c.id == call.c.verification_id)
        .where(call.c.board_id.in_(ids))
    )
    for row in connection.execute(calls):
        said[row.board_id].append(row)
    for one in connection.execute(select(board.c.id, board.c.recipe_id, board.c.findings).where(board.c.id.in_(ids))):
        defects, good = said[one.id], unpack(one.findings)
        parts = [_good(part) for part in good]
        parts += [_called(row) for row in defects if row.reason is CallReason.EXPERT]
        known = [part for part in (_reported(suspects, one.id, part) for part in parts) if part is not None]
        yield StoredBoard(one.id, one.recipe_id, known, len(good) + len(defects) - len(known))


def _good(good: GoodComponent) -> StoredPart:
    return StoredPart(good.refdes, good.component, good.view_id, good.place, good.findings, Verdict.OK, Truth.UNASKED)


def _called(row: Any) -> StoredPart:
    truth = Truth.OPEN if row.outcome is None else _SAID[row.outcome]
    return StoredPart(row.refdes, row.component, row.view_id, row.place, row.findings, row.verdict, truth, row.id)


_SAID = {Outcome.CONFIRMED: Truth.DEFECT, Outcome.FALSE_CALL: Truth.GOOD, Outcome.ACCEPTED: Truth.ACCEPTED}


def _reported(suspects: SuspectedPictures, board_id: int, part: StoredPart) -> StoredPart | None:
    """Return a part as a defect if a later test found it; None if a report may mean it, and does not name it."""
    if suspects.names(board_id, part.refdes):
        return replace(part, truth=Truth.DEFECT)
    return None if suspects.has(board_id, part.refdes) else part
