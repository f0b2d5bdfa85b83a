"""Blind audits: their faces, and known defects that can be shown again. Each face comes from a real call.

The face is stored when the audit is opened, so that it looks the same whenever it is seen. The rows themselves say the
truth: a part that was OK, or a defect that a person confirmed earlier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select

from coe.core import Verdict
from coe.serve.database import views
from coe.serve.database.row_types import records, values_of
from coe.serve.database.tables import Call, board, call, recipe, verification, view
from coe.serve.enums import CallKind, CallReason, Outcome

_LENDERS = 50
"""The face of an audit comes from one of this many newest calls of its component type."""
_LOOKED_THROUGH = 20_000
"""Known defects are searched in this many of the newest calls, so that the search stays short."""
_KNOWN = 500


@dataclass(frozen=True, slots=True)
class Face:
    """What a person sees of a blind audit: what a call of an expert would say. JSON in the column `call.face`."""

    verdict: str
    detail: str
    expert: str
    label: str
    score: float | None
    findings: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, one: Call, findings: Sequence[Mapping[str, Any]]) -> Face:
        """Return what is seen of a call, with these findings."""
        return cls(one.verdict, one.detail, one.expert, one.label, one.score, findings)

    @property
    def json(self) -> dict[str, Any]:
        """The face as it is stored."""
        return values_of(self)


@dataclass(frozen=True, slots=True)
class Lender:
    """A call that lends its face; `pixels` is width x height of its view."""

    call: Call
    pixels: int


@dataclass(frozen=True, slots=True)
class KnownDefect:
    """A call that a person confirmed, with its picture still there; `label` is what the person saw."""

    call: Call
    label: str


def masked(open_call: Call) -> Call:
    """Return a call as a person may see it: nothing tells whether it is a blind audit."""
    if open_call.kind is CallKind.DEFECT:
        return open_call
    face: Mapping[str, Any] = open_call.face or Face(Verdict.REVIEW, "", "", "", None, []).json
    return replace(
        open_call,
        kind=CallKind.DEFECT,
        board_id=open_call.board_id if open_call.shown_board_id is None else open_call.shown_board_id,
        shown_board_id=None,
        truth="",
        face=None,
        reason=CallReason.EXPERT,
        late=False,
        **{**face, "verdict": Verdict(face["verdict"])},
    )


@dataclass(frozen=True, slots=True)
class Shown:
    """What a person sees of a call, and of its board; `view_pixels` is width x height of its view, 0 without a view."""

    call: Call
    serial: str
    recipe: str
    view_pixels: int


def shown(connection: Connection, open_call: Call) -> Shown:
    """Return what a person sees of a call."""
    face = masked(open_call)
    query = (
        select(board.c.serial, recipe.c.name, func.coalesce(view.c.pixels, 0))
        .select_from(board)
        .join(recipe, recipe.c.id == board.c.recipe_id)
        .outerjoin(view, view.c.id == (open_call.view_id or 0))  # IS NULL would read all views
        .where(board.c.id == face.board_id)
    )
    return Shown(face, *connection.execute(query).one())


def of_boards(connection: Connection, board_ids: Sequence[int]) -> list[Call]:
    """Return the blind audits that seem to be calls of boards, in the order in which they were opened."""
    shown = or_(
        and_(call.c.kind == CallKind.AUDIT, call.c.board_id.in_(board_ids)), call.c.shown_board_id.in_(board_ids)
    )
    return records(Call, connection.execute(select(call).where(shown).order_by(call.c.id)))


def lenders(connection: Connection, recipe_name: str, component: str) -> list[Lender]:
    """Return the newest calls of a component type in which an expert decided, the oldest of them first."""
    query = (
        select(call, view.c.pixels)
        .join(board, board.c.id == call.c.board_id)
        .join(recipe, recipe.c.id == board.c.recipe_id)
        .join(view, view.c.id == call.c.view_id)
        .where(call.c.component == component, call.c.kind == CallKind.DEFECT, call.c.reason == CallReason.EXPERT)
        .where(recipe.c.name == recipe_name)
        .order_by(call.c.opened_us.desc(), call.c.id.desc())
        .limit(_LENDERS)
    )
    return [Lender(_call(row), row.pixels) for row in reversed(connection.execute(query).all())]


def known_defects(connection: Connection, recipe_name: str, before_us: int) -> list[KnownDefect]:
    """Return defects of a recipe that were confirmed before a time and were shown again least often, the oldest first.

    No picture of theirs is removed before the transaction ends: once the audit is open, retention leaves it alone.
    """
    views.hold(connection)
    again = call.alias()
    shown = (
        select(func.count())
        .where(again.c.kind == CallKind.SEEDED, again.c.view_id == call.c.view_id, again.c.refdes == call.c.refdes)
        .scalar_subquery()
    )
    newest = select(func.coalesce(func.max(call.c.id), 0)).scalar_subquery()
    query = (
        select(call, verification.c.label.label("seen"), shown.label("shown"))
        .join(verification, verification.c.id == call.c.verification_id)
        .join(board, board.c.id == call.c.board_id)
        .join(recipe, recipe.c.id == board.c.recipe_id)
        .join(view, view.c.id == call.c.view_id)
        .where(call.c.id > newest - _LOOKED_THROUGH, call.c.kind == CallKind.DEFECT)
        .where(call.c.reason == CallReason.EXPERT, verification.c.outcome == Outcome.CONFIRMED)
        .where(verification.c.verified_us < before_us, view.c.removed_us.is_(None), recipe.c.name == recipe_name)
        .order_by(call.c.id.desc())
        .limit(_KNOWN)
    )
    rows = connection.execute(query).all()
    least = min((row.shown for row in rows), default=0)
    return [KnownDefect(_call(row), row.seen or row.label) for row in reversed(rows) if row.shown == least]


def last_answers(connection: Connection, call_ids: Sequence[int]) -> dict[int, int]:
    """Return when each of these calls was answered last, in UTC microseconds; open calls are left out."""
    query = select(verification.c.call_id, func.max(verification.c.verified_us).label("moment_us"))
    query = query.where(verification.c.call_id.in_(call_ids)).group_by(verification.c.call_id)
    return {row.call_id: row.moment_us for row in connection.execute(query)}


def _call(row: Any) -> Call:
    return Call(**{field.name: row._mapping[field.name] for field in fields(Call)})
