"""What the database finds and counts is what a look at every row would give."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serve_rows import NOON, accepted, decision, late, ng, recipe, the
from serving import hand_in, problem, signed_in
from sqlalchemy import event, select, text
from thorough import THOROUGH

from coe.core import Verdict
from coe.helpers.spelling import composed
from coe.lab import past_boards
from coe.serve.clock import HOUR_US, SECOND_US, hour_of, iso
from coe.serve.database import board_rows, call_rows, hourly, repairs, row_types, verifications
from coe.serve.database.board_rows import Amendment, BoardFilter
from coe.serve.database.hourly import BoardCount, Window
from coe.serve.database.tables import Board, Call, NewEscape, NewVerification, board, call, verification
from coe.serve.enums import BoardState, By, Dimension, Outcome

SERIALS = ["", "1%", "SN 1", "SN/1", "Größe", "Gro\u0308ße", "100%", "a+b&c=d#e?f"]
COMPONENTS = ["R0402", "C0603"]
_numbers = itertools.count()


@dataclass(frozen=True)
class Drawn:
    """A board of a history: its calls as verdict, component and answer of a person."""

    serial: str
    unit: str
    second: int
    state: BoardState
    parts: Sequence[tuple[Verdict, str, Outcome | None]]


PART = st.tuples(
    st.sampled_from([Verdict.NG, Verdict.REVIEW]), st.sampled_from(COMPONENTS), st.none() | st.sampled_from(Outcome)
)
BOARD = st.builds(
    Drawn,
    st.sampled_from(SERIALS),
    st.sampled_from(SERIALS),
    st.integers(0, 5),
    st.sampled_from([BoardState.ACCEPTED, BoardState.ABORTED, BoardState.DECIDED, BoardState.DECIDED]),
    st.lists(PART, max_size=3),
)
TIMES = st.none() | st.integers(0, 6).map(lambda second: NOON + second * SECOND_US)
FILTER = st.builds(
    BoardFilter,
    serial=st.none() | st.sampled_from(SERIALS[1:]),
    key=st.none() | st.just("k"),
    verdict=st.none() | st.sampled_from(Verdict),
    component=st.none() | st.sampled_from(COMPONENTS),
    state=st.none() | st.sampled_from(BoardState),
    since_us=TIMES,
    until_us=TIMES,
)


def handed_in(connection, drawn, key):
    units = {"left": composed(drawn.unit)} if drawn.unit else {}
    at_us = NOON + drawn.second * SECOND_US
    board = accepted(connection, key, serial=composed(drawn.serial), at_us=at_us, serials=units)
    if drawn.state is BoardState.ABORTED:
        assert board_rows.abort(connection, board, at_us, reason="taken back")
    if drawn.state is BoardState.DECIDED:
        calls = [replace(ng(f"R{number}", part[0]), component=part[1]) for number, part in enumerate(drawn.parts)]
        assert board_rows.decide(connection, decision(board, *calls, at_us=at_us))
        for row, part in zip(call_rows.of_board(connection, board.id), drawn.parts, strict=True):
            if part[2] is not None:
                answered(connection, row.id, part[2])
    return the(row_types.get(connection, Board, board.id))


def answered(connection, call_id, outcome, at_us=NOON + 9, by="ann"):
    seen = the(row_types.get(connection, Call, call_id))
    verifications.record_verification(connection, seen, NewVerification(outcome, at_us, by))
    return seen


def naive(connection, asked):
    def is_found(board):
        units = [serial for serial in board.request["serials"].values() if serial]
        called = [one.component for one in call_rows.of_board(connection, board.id)]
        return (
            (asked.serial is None or composed(asked.serial) in [board.serial, *units])
            and asked.key in (None, board.key)
            and asked.verdict in (None, board.verdict)
            and asked.state in (None, board.state)
            and (asked.component is None or asked.component in called)
            and (asked.since_us is None or board.accepted_us >= asked.since_us)
            and (asked.until_us is None or board.accepted_us < asked.until_us)
        )

    shown = board_rows.newest(connection, limit=1000)
    return [one.id for one in sorted(shown, key=lambda one: (-one.accepted_us, -one.id)) if is_found(one)]


def paged(connection, asked, limit):
    found = []
    after = None
    while page := board_rows.find(connection, asked, limit=limit, after=after):
        assert len(page) <= limit
        found += [one.id for one in page]
        after = page[-1]
    return found


@settings(max_examples=6 * THOROUGH, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(BOARD, max_size=7), st.lists(FILTER, min_size=8, max_size=8), st.integers(1, 4))
def test_what_is_found_is_what_a_look_at_every_board_finds(database, boards, filters, limit):
    with database.writing() as connection:
        # Times and serials of a run are its own by the key; earlier examples stay, and are looked at as well.
        for number, drawn in enumerate(boards):
            run = next(_numbers)
            handed_in(connection, drawn, "k" if not run else f"k{run}-{number}")
        for asked in filters:
            assert paged(connection, asked, limit) == naive(connection, asked), asked


SEARCHES = [
    BoardFilter(),
    BoardFilter(serial="SN0000007"),
    BoardFilter(key="history-0000007"),
    *(BoardFilter(verdict=verdict) for verdict in Verdict),
    *(BoardFilter(state=state) for state in BoardState),
    BoardFilter(component="A", since_us=NOON - 3600 * SECOND_US),
    BoardFilter(verdict=Verdict.NG, state=BoardState.VERIFIED, until_us=NOON),
    BoardFilter(since_us=NOON - 60 * SECOND_US, until_us=NOON),
]


@pytest.mark.slow
def test_postgresql_reads_no_board_without_an_index(postgresql_database):
    id = postgresql_database.write(recipe).id
    past_boards.fill(postgresql_database, id, ["A", "B"], 3000, NOON)
    with postgresql_database.writing() as connection:
        connection.execute(text("ANALYZE"))
    for asked in SEARCHES:
        with postgresql_database.reading() as connection:
            after = row_types.get(connection, Board, 2000)
            for plan in plans_of(connection, asked, after):
                assert "Seq Scan on board" not in plan, (asked, plan)


def plans_of(connection, asked, after):
    statements = []

    def see(conn, cursor, statement, parameters, context, executemany):
        statements.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", see)
    board_rows.find(connection, asked, limit=100, after=after)
    event.remove(connection, "before_cursor_execute", see)
    return [
        "\n".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {statement}", parameters))
        for statement, parameters in statements
    ]


def a_board(served, key, serial, **more):
    answer = hand_in(served.feeder, key, {"R1": "A"}, serial=serial, **more)
    assert answer.status_code == 202
    return answer.json()["board"]


def found(client, **asked):
    answer = client.get("/api/v1/boards", params={name: str(value) for name, value in asked.items()})
    assert answer.status_code == 200, answer.text
    return [one["board"] for one in answer.json()["boards"]]


@pytest.mark.parametrize("serial", SERIALS[1:])
def test_every_serial_leads_to_its_board_over_the_api_and_by_a_scan(served, serial):
    other, id = a_board(served, "k1", "SN"), a_board(served, "k2", serial)
    assert found(served.feeder, serial=serial) == [id]
    with closing(signed_in(served)) as person:
        answer = person.get("/boards", params={"scan": f"{serial} "})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/boards/{id}")
        assert person.get(answer.headers["location"]).status_code == 200
        assert person.get("/boards", params={"scan": "k1"}).headers["location"] == f"/boards/{other}"
        again = a_board(served, "k3", serial)
        listed = person.get("/boards", params={"scan": serial})
        assert listed.status_code == 200
        assert re.findall(r'href="/boards/(\d+)"', listed.text) == [str(again), str(id)]


def test_pages_of_the_answer_follow_each_other_while_boards_come_and_so_do_those_for_people(served):
    asked = {"limit": 2, "serial": "a/b ü"}
    ids = [a_board(served, f"k{number}", "a/b ü") for number in range(5)]
    with closing(signed_in(served)) as person:
        first = person.get("/boards", params={"scan": "a/b ü", "limit": 2, "verdict": ""})
        (way,) = re.findall(r'href="(/boards\?[^"]*)"', first.text)
        older = person.get(way.replace("&amp;", "&")).text
    assert re.findall(r'href="/boards/(\d+)"', older) == [str(id) for id in ids[2:0:-1]]
    first = served.operator.get("/api/v1/boards", params=asked).json()
    a_board(served, "new", "a/b ü")
    then = served.operator.get("/api/v1/boards", params={**asked, "after": first["next"]}).json()
    last = served.operator.get("/api/v1/boards", params={**asked, "after": then["next"]}).json()
    listed = [one["board"] for answer in (first, then, last) for one in answer["boards"]]
    assert (listed, last["next"]) == (ids[::-1], None)
    row = first["boards"][0]
    assert (row["recipe"], row["version"], row["called"], row["verdict"]) == ("tiny", 1, 0, None)
    assert set(row) - {"called"} <= set(served.operator.get(f"/api/v1/boards/{row['board']}").json())


def test_what_is_no_search_is_refused_with_a_way_out(served):
    for query in ("serail=x", "verdict=ok", "state=new", "limit=0", "limit=501", "after=-1", "after=99", "since=noon",
                  "serial=%00", "serial=a&serial=b", "until=0001-01-01"):  # fmt: skip
        problem(served.operator.get(f"/api/v1/boards?{query}"), 400, "bad-request")


def test_boards_are_found_by_who_may_read_them_and_an_empty_field_is_no_condition(served):
    id = a_board(served, "k1", "SN")
    for client in (served.feeder, served.operator, served.engineer):
        empty = dict.fromkeys(("serial", "key", "verdict", "component", "state", "since", "until", "after"), "")
        assert found(client, **empty) == [id]
    problem(served.nobody.get("/api/v1/boards"), 401, "no-key")
    accepted_us = served.database.read(row_types.get, Board, id).accepted_us
    assert found(served.operator, since=iso(accepted_us)) == [id]
    assert found(served.operator, until=iso(accepted_us)) == []


def history(page):
    (section,) = re.findall(r'<section class="history">.*?</section>', page, re.DOTALL)
    rows = re.findall(r"<tr.*?</tr>", section, re.DOTALL)[1:]
    return [" ".join(re.sub(r"<[^>]*>", " ", row).split()[2:]) for row in rows]


def test_the_page_of_a_board_has_every_answer_and_correction_in_order(served):
    id = a_board(served, "k1", "SN")
    with served.database.writing() as connection:
        board = the(row_types.get(connection, Board, id))
        made = decision(board, ng("R1"), ng("R2", Verdict.REVIEW), ng("R8"), at_us=board.accepted_us + SECOND_US)
        assert board_rows.decide(connection, made)
        one, other, third = (call.id for call in call_rows.of_board(connection, id))
        said = [(one, Outcome.FALSE_CALL, "ann"), (third, Outcome.ACCEPTED, "eve"), (one, Outcome.CONFIRMED, "bob")]
        for number, (call_id, outcome, by) in enumerate([*said, (other, Outcome.FALSE_CALL, "ann")], 2):
            answered(connection, call_id, outcome, board.accepted_us + number * SECOND_US, by)
    with closing(signed_in(served)) as operator:
        assert history(operator.get(f"/boards/{id}").text) == [
            "accepted feeder",
            "decided",
            "NG cracked R1 body",
            "Review cracked R2 body",
            "NG cracked R8 body",
            "answer: false call corrected later R1 ann",
            "answer: accepted R8 eve",
            "correction: confirmed R1 bob",
            "answer: false call R2 ann",
            "verified",
        ]


MINUTE_US = HOUR_US // 60
ALWAYS = Window(0, 2 * NOON)
_keys = itertools.count()


def accept(connection, serial="", recipe_name="demo"):
    return accepted(connection, f"n{next(_keys)}", serial=serial, of=recipe(connection, recipe_name))


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
        before = found.get(key) or BoardCount(*key, 0, 0, 0, 0, 0, 0)
        found[key] = BoardCount(
            *key,
            before.boards + 1,
            before.clean + (row.verdict is Verdict.OK and row.calls == 0),
            before.late + row.late,
            before.verified + is_verified,
            before.good + (is_verified and not confirmed),
            before.calls + len(mine),
        )
        for one, answer in mine:
            outcome = answer.outcome if answer else None
            counted[row.recipe_id, one.component, *seen(one, answer), outcome, one.refdes] += 1
    return [found[key] for key in sorted(found)], counted


def seen(one, answer):
    """Return the expert and the label of a call; the label that a person gave comes first."""
    return one.expert, (answer and answer.label) or one.label


def as_counted(found):
    told = {one: {name: value for name, value in asdict(one).items() if name != "calls"} for one in found}
    assert all(key.pop("feeder") == "" for key in told.values())
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
@settings(max_examples=9 * THOROUGH)
def test_counts_are_what_a_look_at_every_row_gives(database, steps, begins, lasts):
    window = Window(NOON + begins * MINUTE_US, NOON + (begins + lasts) * MINUTE_US)
    with database.writing() as connection:
        shift = Shift(connection)
        for step in steps:
            shift.take(step)
        for one in (ALWAYS, window):
            expected_boards, expected_calls = looked_at(connection, one)
            assert hourly.board_counts(connection, one) == expected_boards
            assert as_counted(hourly.call_counts(connection, one, by=Dimension)) == expected_calls
            by_component = Counter[Any]()
            for key, number in expected_calls.items():
                by_component[key[1], key[4]] += number
            told = hourly.calls_by(connection, one, By.COMPONENT)
            assert {(one.component, one.outcome): one.calls for one in told} == by_component
        connection.rollback()


def test_all_passes_count_as_decided_and_first_passes_alone_in_a_yield(database):
    with database.writing() as connection:
        first, second = accept(connection, "SN1"), accept(connection, "SN1")
        board_rows.decide(connection, decision(first, ng()))
        board_rows.decide(connection, decision(second, late()))
        (one,) = call_rows.of_board(connection, first.id)
        for outcome, label in ((Outcome.FALSE_CALL, ""), (Outcome.CONFIRMED, "chipped")):
            word = NewVerification(outcome, NOON, "ann", label)
            verifications.record_verification(connection, the(row_types.get(connection, Call, one.id)), word)
        assert hourly.decisions(connection) == {Verdict.NG: 1, Verdict.REVIEW: 1}
        (count,), (found,) = (
            hourly.board_counts(connection, ALWAYS),
            hourly.call_counts(connection, ALWAYS, by=Dimension),
        )
    assert (count.boards, count.late, count.good) == (1, 0, 0)
    assert (found.calls, found.label, found.outcome) == (1, "chipped", Outcome.CONFIRMED)
