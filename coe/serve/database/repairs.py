"""What later stations say: what became of confirmed defects, and escapes, defects of boards that had passed.

Who has the board in hands knows more than who saw a picture: a defect that is none there is a false call from then on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection, exists, func, select, union

from coe.errors import CoeError
from coe.serve.database import board_rows, call_rows, event_log, row_types, verifications
from coe.serve.database import tables as t
from coe.serve.database.hourly import Window, of_recipe
from coe.serve.database.row_types import in_turn, listed, shown, values_of
from coe.serve.database.tables import Board, Call, Escape, NewEscape, NewRepair, NewVerification, Repair
from coe.serve.enums import EventKind, Outcome, RepairOutcome

_LOOKED_THROUGH = 20_000  # of the newest calls, so that the search for waiting boards stays short


class NothingToRepair(CoeError):
    """Nobody confirmed the defect, or calls of its board are open."""


def record_repair(connection: Connection, seen: Call, new: NewRepair) -> Repair:
    """Add what became of a confirmed defect as it was seen; once all of its board's have a word, that is told.

    Raises CallChanged if the call's revision is another than that of `seen`, and NothingToRepair.
    """
    before = of_calls(connection, [seen.id])
    if not (before or verifications.is_confirmed(connection, seen)):
        raise NothingToRepair(f"no person confirmed a defect in call {seen.id}, so there is nothing to repair")
    expect_answered(seen.board_id, call_rows.count_open_of(connection, seen.board_id))
    verifications.move_on(connection, seen)
    row = values_of(new) | {"call_id": seen.id, "supersedes": before[-1].id if before else None}
    added = row_types.add(connection, Repair, row)
    word = Outcome.FALSE_CALL if new.outcome is RepairOutcome.NO_DEFECT else Outcome.CONFIRMED
    if verifications.is_confirmed(connection, seen) != (word is Outcome.CONFIRMED):
        said = NewVerification(word, new.repaired_us, new.repaired_by, note=f"at repair: {new.outcome}")
        verifications.record_verification(connection, replace(seen, revision=seen.revision + 1), said)
    _tell(connection, seen.board_id, added)
    return added


def expect_answered(board_id: int, open: int) -> None:
    """Raise NothingToRepair if so many calls of a board are open that there are any."""
    if open:
        raise NothingToRepair(f"{open} calls of board {board_id} are open; verify them first")


def _tell(connection: Connection, board_id: int, added: Repair) -> None:
    """Append the event if no confirmed defect of the board waits for its word any more."""
    found = defects(connection, board_id)
    words = {one.refdes: word for one, word in found if word is not None}
    if len(words) < len(found):
        return
    of_board = row_types.get(connection, Board, board_id)
    assert of_board is not None
    answers = verifications.answers(connection, board_id)
    said = [
        answer | shown(words[refdes], "note repaired_us", repair="outcome")
        for answer in answers
        if (refdes := str(answer["refdes"])) in words
    ]
    body = {**of_board.facts, "outcome": worst(list(words.values())), "by": added.repaired_by, "repairs": said}
    event_log.append(connection, EventKind.BOARD_REPAIRED, added.repaired_us, body, board_id)


def worst(words: Sequence[Repair]) -> RepairOutcome:
    """Return what became of a board: scrapped with any of its defects, else repaired if one was there."""
    found = {word.outcome for word in words}
    return next(outcome for outcome in _WORST_FIRST if outcome in found)


_WORST_FIRST = (RepairOutcome.SCRAPPED, RepairOutcome.REPAIRED, RepairOutcome.NO_DEFECT)


def defects(connection: Connection, board_id: int) -> list[tuple[Call, Repair | None]]:
    """Return the confirmed defects of a board, also those that repair did not find, each with its newest word."""
    of_board = call_rows.of_board(connection, board_id)
    words = {word.call_id: word for word in of_calls(connection, [one.id for one in of_board])}
    return [
        (one, words.get(one.id)) for one in of_board if one.id in words or verifications.is_confirmed(connection, one)
    ]


def of_calls(connection: Connection, call_ids: Sequence[int]) -> list[Repair]:
    """Return all words on some calls, the oldest first; the last one of a call counts."""
    return listed(connection, Repair, t.repair.c.call_id.in_(call_ids))


def waiting(connection: Connection, *, limit: int) -> list[tuple[Board, int]]:
    """Return boards with confirmed defects that have no word yet, the newest first, each with how many."""
    newest = select(func.coalesce(func.max(t.call.c.id), 0)).scalar_subquery()
    query = (
        select(t.call.c.board_id, func.count().label("defects"))
        .join(t.verification, t.verification.c.id == t.call.c.verification_id)
        .where(t.call.c.id > newest - _LOOKED_THROUGH, t.verification.c.outcome == Outcome.CONFIRMED)
        .where(t.call.c.board_id.is_not(None), ~exists().where(t.repair.c.call_id == t.call.c.id))
        .group_by(t.call.c.board_id)
        .order_by(t.call.c.board_id.desc())
        .limit(limit)
    )
    of_boards = {row.board_id: row.defects for row in connection.execute(query)}
    boards = listed(connection, Board, t.board.c.id.in_(of_boards), newest=True)
    return [(one, of_boards[one.id]) for one in boards]


def outcomes(connection: Connection, window: Window) -> Mapping[RepairOutcome, int]:
    """Return how many defects got which word within a window; a word that was corrected does not count."""
    later = t.repair.alias()
    at_us = t.repair.c.repaired_us
    query = (
        select(t.repair.c.outcome, func.count().label("number"))
        .where(at_us >= window.start_us, at_us < window.end_us, ~exists().where(later.c.supersedes == t.repair.c.id))
        .group_by(t.repair.c.outcome)
    )
    if window.recipe:
        query = query.join(t.call, t.call.c.id == t.repair.c.call_id).join(t.board, t.board.c.id == t.call.c.board_id)
        query = query.where(of_recipe(window.recipe, t.board.c.recipe_id))
    return {row.outcome: row.number for row in connection.execute(query)}


def report_escape(connection: Connection, new: NewEscape) -> Escape:
    """Add an escape of the serial's newest decided board with its event; the same report again adds nothing."""
    in_turn(connection, t.escape)
    board_id = board_rows.newest_decided(connection, new.serial)
    row = values_of(new) | {"board_id": board_id}
    said = [t.escape.c[name].is_not_distinct_from(row[name]) for name in row if not name.startswith("reported_")]
    if before := listed(connection, Escape, *said, limit=1):
        return before[0]
    added = row_types.add(connection, Escape, row)
    body = shown(added, "board_id serial refdes component label found_at")
    event_log.append(connection, EventKind.ESCAPE_REPORTED, new.reported_us, body, board_id)
    return added


class SuspectedPictures:
    """The parts that the reports of escapes may mean, whenever they came, and whichever of a serial's boards."""

    def __init__(self, connection: Connection) -> None:
        said, serial = t.escape.c.refdes, t.escape.c.serial
        known = union(
            select(t.escape.c.board_id, said).where(t.escape.c.board_id.is_not(None)),
            select(t.board.c.id, said).join(t.escape, (serial == t.board.c.serial) & (t.board.c.serial != "")),
            select(t.unit_serial.c.board_id, said).join(t.escape, serial == t.unit_serial.c.serial),
        )
        self._found = defaultdict[int, set[str]](set)
        for id, refdes in connection.execute(known):
            self._found[id].add(refdes.casefold())

    def has(self, board_id: int, refdes: str) -> bool:
        """Tell whether a report may mean a part: it names no part, or this one, as a test of the unit alone does."""
        return not self._found.get(board_id, set()).isdisjoint({"", *_names(refdes)})

    def names(self, board_id: int, refdes: str) -> bool:
        """Tell whether a report names a part."""
        return not self._found.get(board_id, set()).isdisjoint(_names(refdes))


def _names(refdes: str) -> set[str]:
    name = refdes.casefold()
    return {name, name.rpartition("/")[2]}
