"""Pages do not grow with the history: no query of theirs reads all boards, calls, events or entries of the audit."""

from contextlib import contextmanager

import pytest
from serve_rows import decision
from sqlalchemy import event, text

from coe.board.parts_list import Side
from coe.core import Verdict
from coe.lab import past_boards
from coe.lab.serve_bench import PAGES
from coe.serve.clock import HOUR_US, hour_of, now_us
from coe.serve.database import board_rows, recipe_versions, repairs, tables
from coe.serve.database.tables import NewBoard, NewEscape
from coe.serve.enums import BoardState
from coe.serve.retention import sweep

GROWING = ("board", "view", "call", "verification", "event", "audit")
"""The tables that have a row, or several, for each board."""
STEP = 100
"""SQLite's own instructions are counted by the hundred."""
MORE = 200_000
"""How many instructions more a page may take: a look at each of 100,000 boards takes a million at least."""
SEARCHES = (
    "/boards",
    "/boards?scan=SN0000007",
    "/boards?scan=history-0000007",
    *(f"/boards?verdict={verdict}" for verdict in Verdict),
    *(f"/boards?state={state}" for state in BoardState),
    "/boards?component=none",
    "/boards?since=2020-01-01&until=2020-01-02",
    "/boards?verdict=NG&state=verified&until=2020-01-02",
)
OF_A_TIME = ("/statistics", "/experts", "/api/v1/stats/")
ALSO = (*PAGES, *SEARCHES, "/statistics?hours=168&recipe=tiny")


def fill(served, boards, end_us):
    (recipe,) = served.database.read(recipe_versions.all_active)
    past_boards.fill(served.database, recipe.id, ["A", "B", "C"], boards, end_us)


@contextmanager
def statements(engine):
    """Collect all statements with their parameters."""
    seen = []

    def see(connection, cursor, statement, parameters, context, executemany):
        if statement.startswith(("SELECT", "UPDATE", "DELETE")) and not executemany:
            seen.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", see)
    yield seen
    event.remove(engine, "before_cursor_execute", see)


def scans(plan, statement):
    """Return the steps that read a whole table; a look at its newest or oldest rows ends at its limit."""
    ends_early = "LIMIT" in statement and not any("TEMP B-TREE FOR ORDER BY" in step for step in plan)
    found = [step for step in plan if any(step.split()[:2] == ["SCAN", table] for table in GROWING)]
    return [] if ends_early else found


def test_no_page_and_no_sweep_reads_a_whole_table(served):
    fill(served, 60, now_us())
    with statements(served.database.engine) as seen:
        for path in ALSO:
            for client in (served.engineer, served.operator):
                assert client.get(path.format(board=60)).status_code in (200, 303), path
        served.operator.post("/api/v1/calls/next", json={})
        sweep(served.database, served.gate.pictures, served.gate.config.retention, now_us(), since_us=now_us())
    assert len(seen) > 60
    with served.database.reading() as connection:
        for statement, parameters in dict(seen).items():
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            plan = [row[3] for row in rows]
            assert not scans(plan, statement), (statement, plan)


def test_a_board_and_an_escape_are_found_by_their_serials_alone(served):
    fill(served, 60, now_us())
    with served.database.writing() as connection, statements(served.database.engine) as seen:
        (recipe,) = recipe_versions.all_active(connection)
        new = NewBoard("k", "d" * 64, recipe.id, "SN0000001", "", Side.TOP, "", {}, "f", now_us(), None)
        assert board_rows.decide(connection, decision(board_rows.accept(connection, new), at_us=now_us()))
        assert repairs.report_escape(connection, NewEscape("SN0000001", now_us(), "ann")).board_id
        for statement, parameters in seen:
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            assert not scans(plan, statement), (statement, plan)
            assert not any("ix_board_recipe_id" in step for step in plan), (statement, plan)


def test_the_page_of_recipes_asks_no_more_for_a_recipe_of_many_versions(served):
    numbers = []
    for number in range(3):
        served.database.write(recipe_versions.add, "whole", {"whole": {}, "n": number}, by="ann", now_us=now_us())
        with statements(served.database.engine) as seen:
            assert served.engineer.get("/recipes").status_code == 200
        numbers.append(len(seen))
    assert len({*numbers}) == 1


def multiply(served, times):
    """Copy all boards with all that belongs to them, into the same hours, until there are so many times as many."""
    shifted, renamed = ("id", "board_id", "call_id", "verification_id"), ("key", "board_key", "file", "uuid", "hash")
    with served.database.writing() as connection:
        for table in ("board", "view", "call", "verification", "event", "audit"):
            columns = [column.name for column in tables.metadata.tables[table].c]
            copied = [
                f"{name} + :number * 1000000" if name in shifted
                else f"\"{name}\" || '-' || :number" if name in renamed
                else f"\"{name}\""
                for name in columns
            ]  # fmt: skip
            names = ", ".join(f'"{name}"' for name in columns)
            copy = text(f'INSERT INTO "{table}" ({names}) SELECT {", ".join(copied)} FROM "{table}" WHERE id < 1000000')
            for number in range(1, times):
                connection.execute(copy, {"number": number})


@pytest.mark.slow
def test_what_pages_read_does_not_grow_with_the_history(served, monkeypatch):
    """With 2,000 and with 100,000 boards before this shift; figures of a time read the boards of that time."""
    monkeypatch.setattr(past_boards, "HOURS", 160)
    fill(served, 2_000, hour_of(now_us()) - 8 * HOUR_US)
    before = {path: steps_of(served, path.format(board=1)) for path in (*PAGES, *SEARCHES)}
    multiply(served, 50)
    after = {path: steps_of(served, path.format(board=1)) for path in (*PAGES, *SEARCHES)}
    grown = {
        path: (before[path], after[path])
        for path in after
        if after[path] > before[path] + MORE and not path.startswith(OF_A_TIME)
    }
    assert not grown


def steps_of(served, path):
    """Return how many instructions SQLite executes for a page."""
    steps = 0

    def step():
        nonlocal steps
        steps += STEP
        return 0

    def count(connection, record, proxy):
        connection.set_progress_handler(step, STEP)

    event.listen(served.database.engine, "checkout", count)
    try:
        assert served.operator.get(path).status_code in (200, 303)
    finally:
        event.remove(served.database.engine, "checkout", count)
    return steps
