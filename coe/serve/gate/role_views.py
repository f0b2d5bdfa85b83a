"""What an operator sees of boards and events. An operator cannot tell a blind audit from a call.

A person who answers calls must not find out in another place which of them are audits. So for the key of an operator an
audit is a call of its board everywhere, for ever; all other keys see the truth, and the verify page alone keeps it from
everybody. Figures of the whole line are not masked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from coe.core import Verdict, worst
from coe.serve import board_units
from coe.serve.board_units import BoardUnit, layout_of
from coe.serve.database import blind, call_rows, findings
from coe.serve.database import board_rows as rows
from coe.serve.database.tables import Board, Call, Event, Key, Recipe
from coe.serve.enums import BoardState, CallKind, CallReason, EventKind, Role
from coe.serve.gate.json_form import JsonForm

_FACTS = ("board", "key", "serial", "panel", "side", "work_order", "recipe", "pass")
_HIDDEN = (EventKind.CALL_VERIFIED, EventKind.BOARD_VERIFIED, EventKind.BOARD_REPAIRED)
_REDUCED = (EventKind.BOARD_DECIDED, EventKind.BOARD_AMENDED)


def is_blind(key: Key | None) -> bool:
    """Return whether the holder of a key answers calls blindly, or may be seen by those who do."""
    return key is not None and key.role in (Role.OPERATOR, Role.VIEWER)


def calls_of(connection: Connection, board_id: int, key: Key | None) -> list[Call]:
    """Return the calls of a board as the holder of a key sees them, in the order in which they were opened."""
    defects = [call for call in call_rows.of_board(connection, board_id) if call.kind is CallKind.DEFECT]
    if not is_blind(key):
        return defects
    audits = blind.of_boards(connection, [board_id])
    if any(audit.shown_board_id is not None for audit in audits):
        # A known defect lies in the view of another board, where its part may lie elsewhere.
        at = {part.refdes: part.place for part in findings.unpack(rows.findings_of(connection, board_id))}
        audits = [
            audit if audit.shown_board_id is None else replace(audit, place=at.get(audit.refdes)) for audit in audits
        ]
    return [blind.masked(call) for call in sorted((*defects, *audits), key=lambda call: call.id)]


def count_open_of(connection: Connection, board_id: int, key: Key | None) -> int:
    """Return how many calls of a board are open as the holder of a key sees them."""
    return sum(call.is_open for call in calls_of(connection, board_id, key))


def board_of(connection: Connection, board: Board, key: Key | None) -> Board:
    """Return a board as the holder of a key sees it."""
    return boards_of(connection, [board], key)[0]


def boards_of(connection: Connection, boards: Sequence[Board], key: Key | None) -> list[Board]:
    """Return boards as the holder of a key sees them: verdict, state and number of calls fit the calls."""
    if not is_blind(key):
        return list(boards)
    audits: dict[int, list[Call]] = defaultdict(list)
    for audit in blind.of_boards(connection, [board.id for board in boards]):
        shown = blind.masked(audit)
        assert shown.board_id is not None
        audits[shown.board_id].append(shown)
    answered = blind.last_answers(connection, [audit.id for of_board in audits.values() for audit in of_board])
    return [_seen(board, audits[board.id], answered) if board.id in audits else board for board in boards]


def _seen(board: Board, audits: Sequence[Call], answered: dict[int, int]) -> Board:
    assert board.verdict is not None
    is_open = any(audit.is_open for audit in audits)
    moments = [answered[audit.id] for audit in audits if audit.id in answered]
    return replace(
        board,
        verdict=worst([board.verdict, *(audit.verdict for audit in audits)]),
        calls=board.calls + len(audits),
        state=BoardState.DECIDED if is_open else board.state,
        verified_us=None if is_open or board.verified_us is None else max([board.verified_us, *moments]),
    )


def event_of(event: Event, key: Key | None) -> Event | None:
    """Return an event as the holder of a key sees it; None for an event that tells of calls alone."""
    if not is_blind(key) or event.kind not in _HIDDEN + _REDUCED:
        return event
    if event.kind in _HIDDEN:
        return None
    return replace(event, body={name: event.body[name] for name in _FACTS if name in event.body})


UNIT = JsonForm(
    "PanelUnit", BoardUnit, "number serial", {"verdict": Verdict | None}, unit="name", bad_mark="is_skipped"
)


@dataclass(frozen=True, slots=True)
class UnitView:
    """A unit of a panel with its verdict; None if it was skipped, or if the board is not decided."""

    unit: BoardUnit
    verdict: Verdict | None

    @property
    def facts(self) -> dict[str, Any]:
        """It as JSON."""
        return UNIT(self.unit, verdict=self.verdict)


def units_of(board: Board, recipe: Recipe, calls: Sequence[Call]) -> list[UnitView]:
    """Return the units of a panel with their verdicts, from its calls as somebody sees them; none of another board."""
    skipped = [call.refdes for call in calls if call.reason is CallReason.SKIPPED]
    serial = board.serial or board.key
    units = board_units.units_of(layout_of(recipe.content), board.request, serial, skipped, None)
    called = [(call.refdes, call.verdict) for call in calls]
    views = [UnitView(one, board_units.verdict_of(one, units, called, board.verdict, board.reason)) for one in units]
    return views if units[0].name else []
