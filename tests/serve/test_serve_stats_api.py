"""The statistics over HTTP: each figure with its definition, for operators and above."""

from __future__ import annotations

from serve_rows import accepted, decision, ng, the
from serving import Served, activated, hand_in, problem
from tiny_line import TINY

from coe.serve.clock import now_us
from coe.serve.database import board_rows, decisions, repairs
from coe.serve.database.repairs import NewEscape
from coe.serve.enums import Outcome


def with_history(served: Served) -> None:
    """Decide four boards of the tiny recipe now; one has a confirmed call, one a false call, one an open call."""
    for number in range(4):
        hand_in(served.feeder, f"k{number}", {"R1": "A"}, serial=f"SN{number}")
    with served.database.writing() as connection:
        for number in range(4):
            board = the(board_rows.of_key(connection, f"k{number}"))
            found = [ng()] if number else []
            decisions.write(connection, decision(board, *found, at_us=now_us()))
        repairs.report_escape(connection, NewEscape("SN0", now_us(), "ann"))
    for id, outcome in ((1, Outcome.CONFIRMED), (2, Outcome.FALSE_CALL)):
        path = f"/api/v1/calls/{id}/verification"
        served.operator.post(path, json={"outcome": outcome}, headers={"If-Match": '"0"'})


def test_figures_come_with_definition_value_and_bounds(served: Served) -> None:
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
    assert figures["audit_ppm"]["value"] is None
    assert figures["audit_ppm"]["missing"] == "no audits"
    assert figures["raw_fpy"]["lower"] < 25 < figures["raw_fpy"]["upper"]
    assert all(one["definition"] for one in figures.values())
    activated(served.database, TINY, name="other")
    assert served.operator.get("/api/v1/stats/fpy?recipe=other").json()["figures"][0]["value"] is None


def test_a_recipe_that_an_update_refuses_leaves_the_figures_that_need_it_out(served: Served) -> None:
    with_history(served)
    with served.database.writing() as connection:
        old = accepted(connection, "old")  # of a recipe whose rules are none today
        decisions.write(connection, decision(old, ng(), at_us=now_us()))
    figures = {one["name"]: one for one in served.operator.get("/api/v1/stats/fpy?hours=2").json()["figures"]}
    assert (figures["raw_fpy"]["trials"], figures["dpmo"]["value"], figures["dpmo"]["trials"]) == (5, None, 0)
    for path in ("stats/trend", "stats/spc", "stats/pareto", "reports/figures.csv", "reports/report.pdf"):
        assert served.operator.get(f"/api/v1/{path}").status_code == 200


def test_pareto_trend_and_charts(served: Served) -> None:
    with_history(served)
    (bar,) = served.operator.get("/api/v1/stats/pareto?by=label").json()["bars"]
    assert (bar["name"], bar["calls"], bar["confirmed"], bar["false_calls"], bar["open"]) == ("cracked", 3, 1, 1, 1)
    points = served.operator.get("/api/v1/stats/trend").json()["points"]
    assert sum(point["boards"] for point in points) == 4
    spc = served.operator.get("/api/v1/stats/spc").json()
    assert "limits need 8" in spc["calls"]["missing"]
    assert spc["scores"]["definition"]


def test_a_query_that_cannot_be_answered_is_refused(served: Served) -> None:
    for query in (
        *("hours=0", "hours=x", "hours=1.9", "hours=%C2%B2", "hours=1&hours=2"),
        *("until=yesterday", "until=2026-03-01T08:00+02:00", "by=person", "since=1", "recipe=tinny"),
    ):
        problem(served.operator.get(f"/api/v1/stats/pareto?{query}"), 400, "bad-request")


def test_sql_in_a_filter_is_a_name_like_any_other(served: Served) -> None:
    answer = served.operator.get("/api/v1/stats/fpy", params={"recipe": "tiny' OR 1=1 --"})
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:coe:problem:bad-request")


def test_a_time_with_an_offset_is_that_time(served: Served) -> None:
    for until, utc in (("T08:00+02:00", "T06:00"), ("T08:00-05:30", "T13:30"), ("T08:00", "T08:00")):
        answer = served.operator.get("/api/v1/stats/fpy", params={"hours": 1, "until": f"2026-03-01{until}"})
        assert answer.json()["until"].startswith(f"2026-03-01{utc}")


def test_scores_say_which_hours_they_are_of(served: Served) -> None:
    scores = served.operator.get("/api/v1/stats/spc", params={"hours": 1, "until": "2026-03-01T08:30"}).json()["scores"]
    assert (scores["from"][11:16], scores["until"][11:16]) == ("07:00", "09:00")


def test_what_a_list_of_calls_would_ignore_is_refused(served: Served) -> None:
    for query in ("status=answered&after=1", "status=answered&component=A", "before=1", "limit=1.5"):
        assert served.operator.get(f"/api/v1/calls?{query}").status_code == 400, query


def test_an_export_of_an_unknown_recipe_is_refused(served: Served) -> None:
    assert served.engineer.post("/api/v1/exports", json={"recipe": "tinny"}).status_code == 400


def test_feeders_read_no_statistics(served: Served) -> None:
    assert served.feeder.get("/api/v1/stats/fpy").status_code == 403
    assert served.nobody.get("/api/v1/stats/spc").status_code == 401
