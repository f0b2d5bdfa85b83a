"""Pages do not grow with the history: no query of theirs reads all boards, calls, events or entries of the audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from serving import Served
from sqlalchemy import event
from sqlalchemy.engine import Engine

from coe.bench.service import history
from coe.bench.service.parts import PAGES
from coe.serve.database import recipes
from coe.serve.moments import now_us
from coe.serve.retention import sweep

GROWING = ("board", "view", "call", "verification", "event", "audit")
"""The tables that have a row, or several, for each board."""
STEP = 100
"""SQLite's own instructions are counted by the hundred."""
ALSO = (*PAGES, "/statistics?hours=168&recipe=tiny")


def fill(served: Served, boards: int) -> None:
    with served.database.reading() as connection:
        (recipe,) = recipes.all_active(connection)
    history.fill(served.database, recipe.id, ["A", "B", "C"], boards, now_us())


@contextmanager
def statements(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    """Collect all statements with their parameters."""
    seen: list[tuple[str, Any]] = []

    def see(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE")) and not executemany:
            seen.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", see)
    yield seen
    event.remove(engine, "before_cursor_execute", see)


def scans(plan: Sequence[str], statement: str) -> list[str]:
    """Return the steps that read a whole table; a look at its newest or oldest rows ends at its limit."""
    ends_early = "LIMIT" in statement and not any("TEMP B-TREE FOR ORDER BY" in step for step in plan)
    found = [step for step in plan if any(step.split()[:2] == ["SCAN", table] for table in GROWING)]
    return [] if ends_early else found


def test_no_page_and_no_sweep_reads_a_whole_table(served: Served) -> None:
    fill(served, 60)
    with statements(served.database.engine) as seen:
        for path in ALSO:
            assert served.admin.get(path.format(board=60)).status_code == 200, path
        served.operator.post("/api/v1/calls/next", json={})
        sweep(served.database, served.gate.pictures, served.gate.config.retention, now_us(), since_us=now_us())
    assert len(seen) > 60
    with served.database.reading() as connection:
        for statement, parameters in dict(seen).items():
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            plan = [row[3] for row in rows]
            assert not scans(plan, statement), (statement, plan)


@pytest.mark.slow
def test_what_pages_read_does_not_grow_with_the_history(served: Served) -> None:
    """The same week with 2,000 and with 100,000 boards: a page may read the boards of the hour that has just begun."""
    fill(served, 2_000)
    before = {path: steps_of(served, path.format(board=1)) for path in PAGES}
    fill(served, 98_000)
    after = {path: steps_of(served, path.format(board=1)) for path in PAGES}
    grown = {path: (before[path], after[path]) for path in PAGES if after[path] > 10 * before[path] + 100_000}
    assert not grown


def steps_of(served: Served, path: str) -> int:
    """Return how many instructions SQLite executes for a page."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += STEP
        return 0

    def count(connection: Any, record: object, proxy: object) -> None:
        connection.set_progress_handler(step, STEP)

    event.listen(served.database.engine, "checkout", count)
    try:
        assert served.admin.get(path).status_code == 200
    finally:
        event.remove(served.database.engine, "checkout", count)
    return steps
