"""The statistics over HTTP: each figure with its definition, for operators and above."""

import csv
import io
from zoneinfo import ZoneInfo

import pytest
from serve_rows import accepted, decision, late, ng, the
from serving import activated, hand_in, problem
from tiny_line import TINY

from coe.results.csv_table import restored
from coe.serve.clock import now_us
from coe.serve.database import board_rows, call_rows, recipe_versions, repairs, row_types, verifications
from coe.serve.database.tables import Board, NewEscape, NewVerification
from coe.serve.enums import Outcome
from coe.serve.gate import report_routes
from coe.serve.recipe_content import RecipeContent


def with_history(served):
    """Decide four boards of the tiny recipe now; one has a confirmed call, one a false call, one an open call."""
    for number in range(4):
        hand_in(served.feeder, f"k{number}", {"R1": "A"}, serial=f"SN{number}")
    with served.database.writing() as connection:
        for number in range(4):
            board = the(board_rows.of_key(connection, f"k{number}"))
            found = [ng()] if number else []
            board_rows.decide(connection, decision(board, *found, at_us=now_us()))
        repairs.report_escape(connection, NewEscape("SN0", now_us(), "ann"))
    for id, outcome in ((1, Outcome.CONFIRMED), (2, Outcome.FALSE_CALL)):
        path = f"/api/v1/calls/{id}/verification"
        served.operator.post(path, json={"outcome": outcome}, headers={"If-Match": '"0"'})


def test_figures_come_with_definition_value_and_bounds(served):
    with_history(served)
    body = served.operator.get("/api/v1/stats/fpy?hours=2").json()
    figures = {one["name"]: one for one in body["figures"]}
    assert figures["raw_fpy"]["value"] == 25
    final = figures["final_fpy"]
    assert (final["events"], final["trials"], final["asked"], final["open"]) == (2, 4, 4, 1)
    assert final["value"] is None  # a quarter of the boards is not verified
    assert final["lower"] < 50
    assert final["upper"] > 75
    assert figures["escape_rate"]["value"] == 50
    assert figures["raw_fpy"]["lower"] < 25 < figures["raw_fpy"]["upper"]
    assert all(one["definition"] for one in figures.values())
    activated(served.database, TINY, name="other")
    assert served.operator.get("/api/v1/stats/fpy?recipe=other").json()["figures"][0]["value"] is None


def test_a_recipe_that_an_update_refuses_leaves_the_figures_that_need_it_out(served):
    with_history(served)
    with served.database.writing() as connection:
        old = accepted(connection, "old")  # of a recipe whose rules are none today
        board_rows.decide(connection, decision(old, ng(), at_us=now_us()))
    figures = {one["name"]: one for one in served.operator.get("/api/v1/stats/fpy?hours=2").json()["figures"]}
    assert (figures["raw_fpy"]["trials"], figures["dpmo"]["value"], figures["dpmo"]["trials"]) == (5, None, 0)
    for path in ("stats/spc", "stats/pareto", "reports/figures.csv"):
        assert served.operator.get(f"/api/v1/{path}").status_code == 200


def test_pareto_and_chart(served):
    with_history(served)
    (bar,) = served.operator.get("/api/v1/stats/pareto?by=label").json()["bars"]
    assert (bar["name"], bar["calls"], bar["confirmed"], bar["false_calls"], bar["open"]) == ("cracked", 3, 1, 1, 1)
    spc = served.operator.get("/api/v1/stats/spc").json()
    assert "limits need 8" in spc["calls"]["missing"]


def test_a_query_that_cannot_be_answered_is_refused(served):
    for query in (
        *("hours=0", "hours=x", "hours=1.9", "hours=%C2%B2", "hours=1&hours=2"),
        *("until=yesterday", "until=2026-03-01T08:00+02:00", "by=person", "since=1", "recipe=tinny"),
    ):
        problem(served.operator.get(f"/api/v1/stats/pareto?{query}"), 400, "bad-request")


def test_sql_in_a_filter_is_a_name_like_any_other(served):
    answer = served.operator.get("/api/v1/stats/fpy", params={"recipe": "tiny' OR 1=1 --"})
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:coe:problem:bad-request")


def test_a_time_with_an_offset_is_that_time(served):
    for until, utc in (("T08:00+02:00", "T06:00"), ("T08:00-05:30", "T13:30"), ("T08:00", "T08:00")):
        answer = served.operator.get("/api/v1/stats/fpy", params={"hours": 1, "until": f"2026-03-01{until}"})
        assert answer.json()["until"].startswith(f"2026-03-01{utc}")


def test_what_a_list_of_calls_would_ignore_is_refused(served):
    for query in ("status=answered&after=1", "status=answered&component=A", "before=1", "limit=1.5"):
        assert served.operator.get(f"/api/v1/calls?{query}").status_code == 400, query


def test_an_export_of_an_unknown_recipe_is_refused(served):
    assert served.engineer.post("/api/v1/exports", json={"recipe": "tinny"}).status_code == 400


def test_feeders_read_no_statistics(served):
    assert served.feeder.get("/api/v1/stats/fpy").status_code == 403
    assert served.nobody.get("/api/v1/stats/spc").status_code == 401


NAMES = ("=HYPERLINK(1)", "Ü-7", 'a"b,c', "R$1$")


def table(answer):
    text = answer.content.decode("utf-8-sig")
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def worked(served):
    """A gate with a board for each name, of which people answered one call."""
    with served.database.writing() as connection:
        content = RecipeContent(rules=TINY).model_dump(mode="json")
        version = recipe_versions.add(connection, "tiny2", content, by="ann", now_us=now_us())
        for number, name in enumerate(NAMES):
            board = accepted(connection, f"k{number}", serial=name)
            connection.execute(
                board_rows.board.update().where(board_rows.board.c.id == board.id).values(recipe_id=version.id)
            )
            found = row_types.get(connection, Board, board.id)
            assert found is not None
            board_rows.decide(connection, decision(found, ng(name), late("R9"), at_us=now_us()))
        call = call_rows.of_component(connection, 1, NAMES[0])
        assert call is not None
        word = NewVerification(Outcome.CONFIRMED, now_us(), "op", "=said", "note\nof two lines")
        verifications.record_verification(connection, call, word)
    return served


def test_calls_are_a_table_with_the_newest_answers(worked, monkeypatch):
    monkeypatch.setattr(report_routes, "TOGETHER", 3)
    local = worked.gate.config.model_copy(update={"zone": "Asia/Tokyo"})
    worked.gate.config = local
    answer = worked.engineer.get("/api/v1/reports/calls.csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = table(answer)
    assert len(rows) == 2 * len(NAMES)
    assert [restored(row["serial"]) for row in rows[::2]] == list(NAMES)
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row.values())
    assert (rows[0]["outcome"], rows[0]["by"], restored(rows[0]["said_label"])) == ("confirmed", "op", "=said")
    assert rows[0]["decided"].endswith("+09:00")
    assert ZoneInfo("Asia/Tokyo").key == worked.gate.config.local.zone
    assert worked.operator.get("/api/v1/reports/calls.csv").status_code == 403
    assert table(worked.engineer.get("/api/v1/reports/calls.csv?recipe=tiny")) == []


def test_figures_are_a_table_with_their_bounds(worked):
    rows = {row["name"]: row for row in table(worked.operator.get("/api/v1/reports/figures.csv"))}
    assert (rows["raw_fpy"]["value"], rows["raw_fpy"]["events"], rows["raw_fpy"]["trials"]) == ("0.0", "0", "4")
    assert rows["dpmo"]["missing"] == "open: 7 of 8"
    assert rows["dpmo"]["value"] == ""
    assert float(rows["dpmo"]["lower"]) < float(rows["dpmo"]["upper"])
    calls = table(worked.engineer.get("/api/v1/reports/calls.csv"))
    assert (restored(calls[4]["serial"]), calls[4]["version"]) == ('a"b,c', "1")
