"""Counts by the hour always are what a look at every row would give."""

import itertools
import threading
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from serve_rows import NOON, decided, decision, late, ng, recipe, the
from sqlalchemy import select
from thorough import THOROUGH

from coe.board.parts_list import Side
from coe.core import Verdict
from coe.serve.clock import HOUR_US, hour_of
from coe.serve.database import board_rows, call_rows, hourly, repairs, row_types, verifications
from coe.serve.database.board_rows import Amendment
from coe.serve.database.hourly import BoardCount, Window
from coe.serve.database.tables import Board, Call, NewBoard, NewEscape, NewVerification, board, call, verification
from coe.serve.enums import BoardState, Dimension, Outcome

MINUTE_US = HOUR_US // 60
ALWAYS = Window(0, 2 * NOON)
_keys = itertools.count()


def accept(connection, serial="", recipe_name="demo"):
    new = NewBoard(
        f"n{next(_keys)}", "d", recipe(connection, recipe_name).id, serial, "", Side.TOP, "", {}, "f", NOON, None
    )
    return board_rows.accept(connection, new)


def looked_at(connection, window):
    """Return what docs/serve.md says of boards and calls, from every row, without the service's queries."""
    answers = {row.id: row for row in connection.execute(select(verification))}
    words = [(row, answers.get(row.verification_id)) for row in connection.execute(select(call))]
    found = {}
    counted = Counter()
    for row in connection.execute(select(board)):
        if row.decided_us is None or row.pass_number != 1 or not window.start_us <= row.decided_us < window.end_us:
            continue
        mine = [(one, answer) for one, answer in words if one.board_id == row.id]
        is_verified = row.state is BoardState.VERIFIED
        confirmed = any(answer and answer.outcome is Outcome.CONFIRMED for _, answer in mine)
        key = (hour_of(row.decided_us), row.recipe_id)
        before = found.get(key) or BoardCount(*key, 0, 0, 0, 0, 0)
        found[key] = BoardCount(
            *key,
            before.boards + 1,
            before.clean + (row.verdict is Verdict.OK and row.calls == 0),
            before.late + row.late,
            before.verified + is_verified,
            before.good + (is_verified and not confirmed),
        )
        for one, answer in mine:
            outcome = answer.outcome if answer else None
            counted[(*key, one.component, *seen(one, answer), outcome)] += 1
    return [found[key] for key in sorted(found)], counted


def seen(one, answer):
    """Return the expert and the label of a call; the label that a person gave comes first."""
    return one.expert, (answer and answer.label) or one.label


def as_counted(found):
    told = {one: {name: value for name, value in asdict(one).items() if name != "calls"} for one in found}
    assert all((key.pop("refdes"), key.pop("feeder")) == ("", "") for key in told.values())
    counted = Counter({tuple(key.values()): one.calls for one, key in told.items()})
    assert len(counted) == len(found)
    return counted


@dataclass(frozen=True)
class Step:
    """Something that happens to the board, or the call, of a number; what cannot happen is left out."""

    what: str
    which: int
    minute: int
    outcome: Outcome
    label: str
    calls: tuple[str, ...]


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(["accept", "accept", "decide", "decide", "verify", "verify", "amend", "abort", "escape"]),
        st.integers(0, 30),
        st.integers(0, 200),
        st.sampled_from(list(Outcome)),
        st.sampled_from(["", "chipped"]),
        st.lists(st.sampled_from(["ng", "late", "review"]), max_size=3).map(tuple),
    ),
    max_size=25,
)


class Shift:
    """What happens in a shift, through the functions that the service uses."""

    def __init__(self, connection):
        self._connection = connection
        self._boards = []

    def take(self, step):
        if step.what == "accept":
            serial = f"SN{step.which % 3}" if step.which % 2 else ""
            self._boards.append(accept(self._connection, serial, ("demo", "other")[step.which % 5 == 0]))
        elif step.what == "verify":
            self._verify(step)
        elif self._boards:
            self._happens(step, self._boards[step.which % len(self._boards)])

    def _happens(self, step, one):
        at_us = NOON + step.minute * MINUTE_US
        if step.what == "decide":
            decision_made = decision(one, *self._new_calls(step.calls), at_us=at_us)
            if "review" in step.calls:
                decision_made = replace(decision_made, verdict=Verdict.REVIEW)
            board_rows.decide(self._connection, decision_made)
        elif step.what == "abort":
            board_rows.abort(self._connection, one, at_us, reason="taken back")
        elif step.what == "amend":
            found = row_types.get(self._connection, Board, one.id)
            if found is not None and found.verdict is not None:
                new = replace(ng("P0"), label="lifted")
                board_rows.amend(self._connection, Amendment(one.id, at_us, [new]))
        elif step.what == "escape" and one.serial:
            repairs.report_escape(self._connection, NewEscape(one.serial, at_us, "ann"))

    def _new_calls(self, kinds):
        made = {"ng": ng, "late": late}
        return [made[kind](f"P{number}") for number, kind in enumerate(kinds) if kind in made]

    def _verify(self, step):
        ids = self._connection.scalars(select(call.c.id)).all()
        if ids:
            seen = the(row_types.get(self._connection, Call, ids[-1 - step.which % len(ids)]))
            word = NewVerification(step.outcome, NOON + step.minute * MINUTE_US, "ann", step.label)
            verifications.record_verification(self._connection, seen, word)


@given(STEPS, st.integers(-90, 250), st.integers(0, 250))
@settings(max_examples=15 * THOROUGH)
def test_counts_are_what_a_look_at_every_row_gives(database, steps, begins, lasts):
    window = Window(NOON + begins * MINUTE_US, NOON + (begins + lasts) * MINUTE_US)
    with database.writing() as connection:
        shift = Shift(connection)
        for step in steps:
            shift.take(step)
        for one in (ALWAYS, window):
            expected_boards, expected_calls = looked_at(connection, one)
            assert hourly.board_counts(connection, one) == expected_boards
            assert as_counted(hourly.call_counts(connection, one)) == expected_calls
            by_hour = Counter[Any]()
            for key, number in expected_calls.items():
                by_hour[key[0], key[5]] += number
            told = hourly.call_counts(connection, one, by=[Dimension.HOUR])
            assert {(one.hour_us, one.outcome): one.calls for one in told} == by_hour
        connection.rollback()


def test_all_passes_count_as_decided_and_first_passes_alone_in_a_yield(database):
    with database.writing() as connection:
        first, second = accept(connection, "SN1"), accept(connection, "SN1")
        board_rows.decide(connection, decision(first, ng()))
        board_rows.decide(connection, decision(second))
        assert hourly.decisions(connection) == {Verdict.NG: 1, Verdict.OK: 1}
        (count,) = hourly.board_counts(connection, ALWAYS)
    assert (count.boards, count.clean) == (1, 0)


def test_an_amendment_moves_a_board_to_its_new_verdict(database):
    with database.writing() as connection:
        board = decided(connection, "k1", late("R1"))
        assert board_rows.amend(connection, Amendment(board.id, NOON + 9, [ng("R1")]))
        (count,) = hourly.call_counts(connection, ALWAYS)
    assert (count.label, count.outcome, count.calls) == ("cracked", None, 1)


def test_two_people_who_answer_the_last_two_calls_at_once_close_the_board(database):
    with database.writing() as connection:
        board = decided(connection, "k1", ng("R1"), ng("R2"))
        first, second = call_rows.of_board(connection, board.id)

    def answer_second():
        database.write(verifications.record_verification, second, NewVerification(Outcome.FALSE_CALL, NOON, "bea"))

    other = threading.Thread(target=answer_second)
    with database.writing() as connection:
        verifications.record_verification(connection, first, NewVerification(Outcome.CONFIRMED, NOON, "ann"))
        other.start()
        # The other answer must not end before this one: it could not see it.
        other.join(0.3)
        assert other.is_alive()
    other.join()
    with database.reading() as connection:
        (count,) = hourly.board_counts(connection, ALWAYS)
        expected_boards, expected_calls = looked_at(connection, ALWAYS)
        assert (count.verified, count.good) == (1, 0)
        assert [count] == expected_boards
        assert as_counted(hourly.call_counts(connection, ALWAYS)) == expected_calls
