"""Words of people on calls. A verification is added, never changed; a correction supersedes an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select

from coe.errors import CoeError
from coe.serve.database import board_rows, call_rows, event_log, fault_log, row_types
from coe.serve.database.row_types import change, listed, shown, values_of
from coe.serve.database.tables import Board, Call, NewVerification, Verification, board, call, verification
from coe.serve.enums import BoardState, EventKind, Outcome
from coe.serve.stop_rules import NO_RULES, Countable, StopRules


class CallChanged(CoeError):
    """The call changed since the person saw it: another person answered it, or a later finding raised its verdict."""

    def __init__(self, id: int) -> None:
        super().__init__(f"call {id} has changed since you saw it; look at it again and then decide")


def move_on(connection: Connection, seen: Call) -> None:
    """Count up the revision of a call; raises CallChanged if it is another than that of `seen`."""
    is_as_seen = (call.c.id == seen.id, call.c.revision == seen.revision)
    if not change(connection, call, *is_as_seen, revision=seen.revision + 1):
        raise CallChanged(seen.id)


def record_verification(
    connection: Connection, seen: Call, new: NewVerification, rules: StopRules = NO_RULES
) -> Verification:
    """Add a person's word on a call as it was seen, and append the events.

    Once the last open call of a board is answered, the board is verified. A confirmed defect may give an alarm by
    `rules`.
    A call that was answered before may be answered again: the new word supersedes the old. Raises CallChanged if the
    call's revision is another than that of `seen`.
    """
    fault_log.begin(connection, rules)
    board_rows.lock(connection, seen.board_id)
    added = _record(connection, seen, new)
    if new.outcome is Outcome.CONFIRMED:
        of_words = {name: rule for name, rule in rules.items() if rule.counts is Countable.CONFIRMED}
        fault_log.look(connection, of_words, seen.board_id, new.verified_us)
    return added


def _record(connection: Connection, seen: Call, new: NewVerification) -> Verification:
    move_on(connection, seen)
    row = values_of(new) | {"call_id": seen.id, "supersedes": seen.verification_id}
    added = row_types.add(connection, Verification, row)
    change(connection, call, call.c.id == seen.id, verification_id=added.id)
    _tell(connection, seen, added)
    _close(connection, seen.board_id, added)
    return added


def _tell(connection: Connection, seen: Call, added: Verification) -> None:
    body = {
        **shown(seen, "refdes component", call="id", board="board_id"),
        **shown(added, "outcome", by="verified_by"),
        "label": added.label or seen.label,
    }
    event_log.append(connection, EventKind.CALL_VERIFIED, added.verified_us, body, seen.board_id)


def _close(connection: Connection, board_id: int, added: Verification) -> None:
    """Make a board verified if none of its calls is open any more; what changes for a verified board is told again."""
    if call_rows.count_open_of(connection, board_id):
        return
    is_waiting = (board.c.id == board_id, board.c.state == BoardState.DECIDED)
    is_closed = change(connection, board, *is_waiting, state=BoardState.VERIFIED, verified_us=added.verified_us)
    if is_closed or added.supersedes is not None:
        verified = row_types.get(connection, Board, board_id)
        assert verified is not None
        assert verified.verdict is not None
        confirmed = [
            answered.refdes
            for answered in call_rows.of_board(connection, board_id)
            if is_confirmed(connection, answered)
        ]
        body = {
            **verified.facts,
            "verdict": verified.verdict,
            "confirmed": confirmed,
            "by": added.verified_by,
            "calls": answers(connection, board_id),
        }
        event_log.append(connection, EventKind.BOARD_VERIFIED, added.verified_us, body, board_id)


def answers(connection: Connection, board_id: int) -> list[dict[str, object]]:
    """Return the calls of a board as JSON, each with its newest verification."""
    query = (
        select(call, verification.c.outcome, verification.c.label.label("seen_label"))
        .join(verification, verification.c.id == call.c.verification_id)
        .where(call.c.board_id == board_id)
        .order_by(call.c.id)
    )
    return [_answer(row) for row in connection.execute(query)]


def _answer(row: Any) -> dict[str, object]:
    return shown(row, "refdes component verdict reason score late outcome") | {"label": row.seen_label or row.label}


def is_confirmed(connection: Connection, answered: Call) -> bool:
    """Return whether the newest word on a call is that the defect is real."""
    return (
        connection.scalar(select(verification.c.outcome).where(verification.c.id == answered.verification_id))
        is Outcome.CONFIRMED
    )


def of_calls(connection: Connection, call_ids: Sequence[int]) -> list[Verification]:
    """Return all words on some calls, the oldest first; the last one of a call counts."""
    return listed(connection, Verification, verification.c.call_id.in_(call_ids))
