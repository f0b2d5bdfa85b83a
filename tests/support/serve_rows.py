"""Rows for tests of the service's database, with as few words as a test needs."""

from coe.board.parts_list import Side
from coe.core import Verdict
from coe.serve.clock import now_us
from coe.serve.database import board_rows, call_rows, recipe_versions, row_types, verifications
from coe.serve.database.board_rows import Decision, GoodComponent
from coe.serve.database.tables import Board, NewBoard, NewCall, NewVerification, View, view
from coe.serve.enums import CallReason

NOON = 1_700_000_000_000_000
"""A time in UTC microseconds."""


def the(row):
    assert row is not None
    return row


def files_of_views(connection):
    return {one.file for one in row_types.listed(connection, View, view.c.removed_us.is_(None))}


def recipe(connection, name="demo", rules="board: demo", **content):
    return recipe_versions.add(connection, name, {"rules": rules, **content}, by="ann", now_us=NOON)


def accepted(connection, key="k1", *, serial="", due_us=None, at_us=NOON, of=None, **request):
    """Accept a board of a recipe, or of `demo`, as the gate does."""
    id = (of or recipe(connection)).id
    new = NewBoard(key, "d" * 64, id, serial, "", Side.TOP, "", request, "feeder", at_us, due_us)
    return board_rows.accept(connection, new)


def ng(refdes="R1", verdict=Verdict.NG, view_id=None):
    return NewCall(
        refdes, "R0402", verdict, CallReason.EXPERT, view_id=view_id, expert="body", label="cracked", score=0.9
    )


def late(refdes="R1"):
    return NewCall(refdes, "R0402", Verdict.REVIEW, CallReason.LATE, late=True)


def good(refdes="R9"):
    return GoodComponent(refdes, "R0402", 1, None, [{"expert": "body", "label": "ok", "score": 0.99}])


def decision(board, *calls, at_us=NOON + 1, fine=None):
    verdict = max((call.verdict for call in calls), key=lambda one: one.severity, default=Verdict.OK)
    parts = [good()] if fine is None else fine
    return Decision(board, verdict, at_us, any(call.late for call in calls), calls, parts)


def decided(connection, key, *calls):
    board = accepted(connection, key)
    assert board_rows.decide(connection, decision(board, *calls))
    return row_types.get(connection, Board, board.id)


def decide(database, key, *calls, fine=None):
    with database.writing() as connection:
        board = the(board_rows.of_key(connection, key))
        assert board_rows.decide(connection, decision(board, *calls, fine=fine, at_us=now_us()))
    return board


def answer(database, board_id, **outcomes):
    """Let a person answer the calls of these parts."""
    with database.writing() as connection:
        for refdes, outcome in outcomes.items():
            call = call_rows.of_component(connection, board_id, refdes)
            verifications.record_verification(connection, call, NewVerification(outcome, NOON + 9, "ann"))
