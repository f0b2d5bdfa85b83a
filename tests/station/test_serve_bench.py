"""A long history, with which pages do not grow; `coe-bench serve` and the demo, which make one."""

import json
from argparse import Namespace
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from unittest.mock import Mock

import httpx
import psutil
import pytest
from quick_line import QuickDevice
from serve_rows import accepted, decision
from serving import png
from sqlalchemy import event, select, text
from stations import LIGHT, deciding, quick_opener

from apps.serve_demo import history, line
from coe.board import rules
from coe.core import Verdict
from coe.lab import past_boards, serve_bench
from coe.lab.serve_bench import PAGES, PARTS, QUICK, Measured, Service
from coe.lab.workloads import synthetic
from coe.pictures.photographs import Photograph
from coe.serve.clock import HOUR_US, hour_of, now_us
from coe.serve.database import audit, board_rows, recipe_versions, repairs, tables
from coe.serve.database.hourly import Window, board_counts
from coe.serve.database.tables import NewEscape
from coe.serve.enums import BoardState
from coe.serve.picture_folder import Pictures
from coe.serve.retention import sweep


def test_goals_are_upper_bounds_unless_they_say_otherwise():
    for at_least, met in ((False, [True, True, False]), (True, [False, True, True])):
        assert [Measured("pages", "/", value, "ms", 1, 5, at_least).is_met for value in (4, 5, 6)] == met
    assert Measured("pages", "/", 1, "ms", 1).is_met is None


def test_a_history_is_one_that_the_service_could_have_written(served):
    fill(served, 50, now_us())
    with served.database.reading() as connection:
        assert audit.prove(connection).broken_id is None
        counted = board_counts(connection, Window(0, now_us() + 1))
    assert sum(one.boards for one in counted) == 49  # one in fifty is a second pass


@pytest.mark.slow
def test_each_part_measures_a_running_service(served, tiny, tmp_path):
    path = tmp_path / "part.png"
    path.write_bytes(LIGHT)
    roles = ("feeder", "operator", "engineer")
    keys = {role: getattr(served, role).headers["Authorization"].removeprefix("Bearer ") for role in roles}
    url = served.database.url.render_as_string(hide_password=False)
    config = served.gate.config.model_copy(update={"station": "tiny", "database": url})
    service = Service(served.address, config, keys, psutil.Process())
    past_boards.fill(served.database, 1, ["C"], 20, now_us())
    much, pictures = replace(QUICK, clients=3), [Photograph(path, "C")]
    with deciding(served.gate.config, served.database, quick_opener(tiny, QuickDevice())):
        measures = (serve_bench.decisions, serve_bench.intake, serve_bench.pages, serve_bench.clients, serve_bench.pace)
        figures = [figure for measure in measures for figure in measure(service, pictures, much)]
    assert [one.name for one in figures if one.part == "pages"] == list(PAGES)
    assert all(one.value >= 0 for one in figures)
    by_name = {one.name: one for one in figures}
    # Each client hears of the acceptance, the start and the decision of each board, and of the verification.
    assert by_name["an event at 3 clients, p50"].samples >= 3 * 20 * 3
    assert by_name["an event at 3 clients, p99"].note.startswith("0 of")


def test_a_wrong_part_is_told(call):
    said = call("serve", "--parts", "speeed")
    assert said.status == 2
    assert "'speeed'; did you mean 'speed'" in said.words


@pytest.mark.slow
def test_the_command_starts_the_service_and_measures_every_part(call, tmp_path):
    board, store = synthetic.synthetic_board(tmp_path, kind="resnet18", experts=2, input_size=32, seed=0)
    for number, component in enumerate(rules.load(board).components):
        path = tmp_path / "images" / "S1" / f"P{number}__{component}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
    figures = tmp_path / "figures.json"
    said = call(
        *("serve", "--quick", "--board", board, "--store", store.root, "--memory", "500MB"),
        *("--images", tmp_path / "images", "--json", figures),
    )
    assert said.status == 0, said.err
    assert {figure["part"] for figure in json.loads(figures.read_text())} == set(PARTS)
    assert "machine: " in said.out


def test_boards_go_on_coming_after_a_gate_has_died_and_end_with_the_service(capsys):
    answers = [httpx.Response(202), httpx.RemoteProtocolError("it closed"), httpx.Response(503), httpx.Response(202)]
    gate = Mock(side_effect=answers)
    client = httpx.Client(base_url="http://127.0.0.1:1", transport=httpx.MockTransport(gate))
    line.feed(client, {"SN1": []}, 0, is_running=lambda: gate.call_count < len(answers))
    died, refused = capsys.readouterr().out.splitlines()[:2]
    assert died == "board 1 was not accepted: it closed"
    assert all(word in refused for word in ("board 2", "503"))


def test_the_newest_boards_of_a_history_have_pictures(sqlite_database, tmp_path):
    pictures = Pictures(tmp_path / "pictures")
    pictures.prepare()
    recipe = sqlite_database.write(history.recipe_of)
    wanted = Namespace(boards=3, hours=1.0, pictured=2, seed=1)
    history.fill(sqlite_database, recipe, wanted, pictures, now_us())
    with sqlite_database.reading() as connection:
        views = connection.execute(select(tables.view.c.file, tables.view.c.sha256)).all()
    assert views
    assert all(sha256((pictures.folder / file).read_bytes()).hexdigest() == digest for file, digest in views)


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
    seen = []

    def see(connection, cursor, statement, parameters, context, executemany):
        if statement.startswith(("SELECT", "UPDATE", "DELETE")) and not executemany:
            seen.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", see)
    yield seen
    event.remove(engine, "before_cursor_execute", see)


def steps_of_plan(connection, statement, parameters):
    return [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]


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
            plan = steps_of_plan(connection, statement, parameters)
            assert not scans(plan, statement), (statement, plan)


def test_a_board_and_an_escape_are_found_by_their_serials_alone(served):
    fill(served, 60, now_us())
    with served.database.writing() as connection, statements(served.database.engine) as seen:
        (recipe,) = recipe_versions.all_active(connection)
        board = accepted(connection, serial="SN0000001", of=recipe, at_us=now_us())
        assert board_rows.decide(connection, decision(board, at_us=now_us()))
        assert repairs.report_escape(connection, NewEscape("SN0000001", now_us(), "ann")).board_id
        for statement, parameters in seen:
            plan = steps_of_plan(connection, statement, parameters)
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
        for table in GROWING:
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
    paths = [path for path in (*PAGES, *SEARCHES) if not path.startswith(OF_A_TIME)]
    before = {path: steps_of(served, path.format(board=1)) for path in paths}
    multiply(served, 50)
    after = {path: steps_of(served, path.format(board=1)) for path in paths}
    assert not {path: (before[path], after[path]) for path in paths if after[path] > before[path] + MORE}


def steps_of(served, path):
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
