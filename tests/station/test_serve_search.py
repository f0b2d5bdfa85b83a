"""Boards are found by what people know of them."""

import itertools
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serve_rows import NOON, decision, ng, recipe, the
from serving import hand_in, problem, signed_in
from sqlalchemy import event, text
from thorough import THOROUGH

from coe.board.parts_list import Side
from coe.core import Verdict
from coe.helpers.spelling import composed
from coe.lab import past_boards
from coe.serve.clock import SECOND_US, iso
from coe.serve.database import board_rows, call_rows, row_types, verifications
from coe.serve.database.board_rows import BoardFilter
from coe.serve.database.tables import Board, Call, NewBoard, NewVerification
from coe.serve.enums import BoardState, Outcome

SERIALS = ["", "SN 1", "SN/1", "Größe", "Gro\u0308ße", "100%", "a+b&c=d#e?f"]
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
    id = recipe(connection).id
    new = NewBoard(
        key, "d" * 64, id, composed(drawn.serial), "", Side.TOP, "", {"serials": units}, "feeder", at_us, None
    )
    board = board_rows.accept(connection, new)
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
    """Look at every board."""

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


@settings(max_examples=10 * THOROUGH, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    id = answer.json()["board"]
    return id


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


def test_pages_of_the_answer_follow_each_other_while_boards_come(served):
    ids = [a_board(served, f"k{number}", "SN") for number in range(5)]
    first = served.operator.get("/api/v1/boards", params={"limit": 2, "serial": "SN"}).json()
    a_board(served, "new", "SN")
    then = served.operator.get("/api/v1/boards", params={"limit": 2, "serial": "SN", "after": first["next"]}).json()
    last = served.operator.get("/api/v1/boards", params={"limit": 2, "serial": "SN", "after": then["next"]}).json()
    listed = [one["board"] for answer in (first, then, last) for one in answer["boards"]]
    assert (listed, last["next"]) == (ids[::-1], None)
    row = first["boards"][0]
    assert (row["recipe"], row["version"], row["called"], row["verdict"]) == ("tiny", 1, 0, None)
    assert set(row) - {"called"} <= set(served.operator.get(f"/api/v1/boards/{row['board']}").json())


def test_a_page_of_boards_leads_to_the_older_ones_with_the_same_question(served):
    ids = [a_board(served, f"k{number}", "a/b ü") for number in range(3)]
    with closing(signed_in(served)) as person:
        first = person.get("/boards", params={"scan": "a/b ü", "limit": 2, "verdict": ""})
        (way,) = re.findall(r'href="(/boards\?[^"]*)"', first.text)
        assert re.findall(r'href="/boards/(\d+)"', person.get(way.replace("&amp;", "&")).text) == [str(ids[0])]


def test_what_is_no_search_is_refused_with_a_way_out(served):
    for query in ("serail=x", "verdict=ok", "state=new", "limit=0", "limit=501", "after=-1", "after=99", "since=noon",
                  "serial=%00", "serial=a&serial=b", "until=0001-01-01"):  # fmt: skip
        problem(served.operator.get(f"/api/v1/boards?{query}"), 400, "bad-request")


def test_boards_are_found_by_who_may_read_them_and_an_empty_field_is_no_condition(served):
    id = a_board(served, "k1", "SN")
    for client in (served.feeder, served.operator, served.engineer):
        assert found(client, serial="", key="", verdict="", component="", state="", since="", until="", after="") == [
            id
        ]
    problem(served.nobody.get("/api/v1/boards"), 401, "no-key")
    accepted_us = the(the_board(served, id)).accepted_us
    assert found(served.operator, since=iso(accepted_us)) == [id]
    assert found(served.operator, until=iso(accepted_us)) == []
    described = served.operator.get("/openapi.json").json()["paths"]["/api/v1/boards"]["get"]
    names = [one["name"] for one in described["parameters"]]
    assert names == ["serial", "key", "verdict", "component", "state", "since", "until", "limit", "after"]


def the_board(served, id):
    return served.database.read(row_types.get, Board, id)


@pytest.fixture
def corrected(served):
    """A board with three calls; a person corrected the answer of another."""
    id = a_board(served, "k1", "SN")
    with served.database.writing() as connection:
        board = the(row_types.get(connection, Board, id))
        at_us = board.accepted_us
        made = decision(board, ng("R1"), ng("R2", Verdict.REVIEW), ng("R8"), at_us=at_us + SECOND_US)
        assert board_rows.decide(connection, made)
        one, other, third = (call.id for call in call_rows.of_board(connection, id))
        said = [(one, Outcome.FALSE_CALL, "ann"), (third, Outcome.ACCEPTED, "eve"), (one, Outcome.CONFIRMED, "bob")]
        for number, (call_id, outcome, by) in enumerate([*said, (other, Outcome.FALSE_CALL, "ann")], 2):
            answered(connection, call_id, outcome, at_us + number * SECOND_US, by)
    return id


def history(page):
    (section,) = re.findall(r'<section class="history">.*?</section>', page, re.DOTALL)
    rows = re.findall(r"<tr.*?</tr>", section, re.DOTALL)[1:]
    return [" ".join(re.sub(r"<[^>]*>", " ", row).split()[2:]) for row in rows]


def test_the_page_of_a_board_has_every_answer_and_correction_in_order(served, corrected):
    with closing(signed_in(served)) as operator:
        told = history(operator.get(f"/boards/{corrected}").text)
    said = [
        "answer: false call corrected later R1 ann",
        "answer: accepted R8 eve",
        "correction: confirmed R1 bob",
        "answer: false call R2 ann",
        "verified",
    ]
    way = ["accepted feeder", "decided", "NG cracked R1 body", "Review cracked R2 body"]
    assert told == [*way, "NG cracked R8 body", *said]
