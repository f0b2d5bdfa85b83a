"""Decisions of boards. A board gets one decision, in one transaction; later findings only raise its severity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, bindparam, update

from coe.core import Verdict
from coe.helpers.visible import visible
from coe.serve.database import board_rows, call_rows, event_log, hourly, row_types, stop_alarms
from coe.serve.database.findings import GoodComponent, pack
from coe.serve.database.row_types import add_up, shown
from coe.serve.database.tables import Board, NewCall, Tally, board, decision_count
from coe.serve.enums import UNDECIDED, BoardState, EventKind
from coe.serve.stop_rules import NO_RULES, StopRules

# Statements of the line are built once: to build them takes longer than to run them.
_DECIDE = update(board).where(board.c.id == bindparam("decided_id"), board.c.state.in_(UNDECIDED))


@dataclass(frozen=True, slots=True)
class Decision:
    """A board's verdict with all that goes into the history with it.

    `calls` are the components that are not OK; `good` are those that are OK. `late` says that a
    component had no finding in time. `reason` says why the whole board is not OK, if that is no component's fault.
    """

    board: Board
    verdict: Verdict
    decided_us: int
    late: bool
    calls: Sequence[NewCall]
    good: Sequence[GoodComponent]
    tallies: Sequence[Tally]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Amendment:
    """Findings of a decided board that came late: `raised` are components that are worse than the decision said."""

    board_id: int
    amended_us: int
    raised: Sequence[NewCall]
    tallies: Sequence[Tally]


def write(connection: Connection, decision: Decision, rules: StopRules = NO_RULES) -> bool:
    """Write a decision, its calls, its event, and the alarms that it gives by stop rules.

    False if the board has a decision or was aborted.

    A board that is OK and has no calls needs nobody's word, so it counts as verified at once. Whether it
    is a first pass is counted now: boards may be decided in another order than they came, and not all are.
    """
    stop_alarms.begin(connection, rules)
    decided = replace(decision.board, pass_number=board_rows.pass_of(connection, decision.board))
    defects = len(decision.calls)
    needs_word = defects > 0 or decision.verdict is not Verdict.OK
    state = BoardState.DECIDED if needs_word else BoardState.VERIFIED
    values = {
        "state": state,
        "verdict": decision.verdict,
        "late": decision.late,
        "pass_number": decided.pass_number,
        "decided_us": decision.decided_us,
        "verified_us": None if needs_word else decision.decided_us,
        "components": defects + len(decision.good),
        "calls": defects,
        "findings": pack(decision.good),
        "reason": visible(decision.reason, lines=True),
    }
    id = decision.board.id
    if not connection.execute(_DECIDE, {"decided_id": id, **values}).rowcount:
        return False
    call_rows.add(connection, id, decision.calls, decision.decided_us)
    _tally(connection, decided, decision.tallies)
    body = {
        **decided.facts,
        "verdict": decision.verdict,
        "late": decision.late,
        "components": values["components"],
        "reason": decision.reason,
        "calls": [_said(call) for call in decision.calls],
    }
    event_log.append(connection, EventKind.BOARD_DECIDED, decision.decided_us, body, id)
    add_up(connection, decision_count, [{"verdict": decision.verdict, "boards": 1}])
    stop_alarms.look(connection, rules, id, decision.decided_us)
    return True


def _tally(connection: Connection, one: Board, added: Sequence[Tally]) -> None:
    """Count findings of a first pass: a board that comes back says nothing about the process, nor do its scores."""
    if one.pass_number == 1:
        hourly.add_tallies(connection, added)


def amend(connection: Connection, amendment: Amendment, rules: StopRules = NO_RULES) -> bool:
    """Add findings that came after the decision; return whether the severity of a component rose.

    A component that the decision called REVIEW, because it was late, becomes NG if its finding says so. A verdict is
    never lowered, and a call that a person has answered stays as it is. Tallies of a first pass count in any case.
    """
    stop_alarms.begin(connection, rules)
    board_rows.lock(connection, amendment.board_id)
    amended = row_types.get(connection, Board, amendment.board_id)
    assert amended is not None
    _tally(connection, amended, amendment.tallies)
    is_raised = _raise(connection, amended, amendment)
    if is_raised:
        stop_alarms.look(connection, rules, amendment.board_id, amendment.amended_us)
    return is_raised


def _raise(connection: Connection, amended: Board, amendment: Amendment) -> bool:
    raised: list[NewCall] = []
    for new in amendment.raised:
        before = call_rows.of_component(connection, amendment.board_id, new.refdes)
        if before is not None and call_rows.raise_verdict(connection, before, new):
            raised.append(new)
    if not raised:
        return False
    worst = max((call.verdict for call in raised), key=lambda verdict: verdict.severity)
    assert amended.verdict is not None
    verdict = worst if worst.severity > amended.verdict.severity else amended.verdict
    connection.execute(
        update(board).where(board.c.id == amended.id).values(verdict=verdict, revision=board.c.revision + 1)
    )
    body = {
        **amended.facts,
        "verdict": verdict,
        "revision": amended.revision + 1,
        "calls": [_said(call) for call in raised],
    }
    event_log.append(connection, EventKind.BOARD_AMENDED, amendment.amended_us, body, amended.id)
    return True


def _said(call: NewCall) -> dict[str, object]:
    return shown(call, "refdes component verdict reason label score late")
