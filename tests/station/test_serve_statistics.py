"""Statistics: values computed by hand, what must hold for any counts, and the figures over HTTP."""

import csv
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serve_rows import accepted, decide, decision, late, ng
from serving import activated, hand_in, problem, say
from tiny_line import TINY

from coe.results.csv_table import guarded
from coe.serve import statistics
from coe.serve.clock import now_us
from coe.serve.database import board_rows, call_rows, recipe_versions, repairs, row_types, verifications
from coe.serve.database.hourly import BoardCount, CallCount
from coe.serve.database.tables import Board, NewEscape, NewVerification
from coe.serve.enums import Outcome
from coe.serve.gate import report_routes
from coe.serve.recipe_content import RecipeContent
from coe.serve.statistics import By, Subgroup, Unit, figure, pareto

CONFIRMED, FALSE, ACCEPTED = Outcome.CONFIRMED, Outcome.FALSE_CALL, Outcome.ACCEPTED


def boards(boards, clean, *, verified=0, good=0, recipe=1):
    return BoardCount(0, recipe, boards, clean, 0, verified, good, 0)


def calls(number, outcome=None, component="R0402"):
    return CallCount(1, component, "body", "cracked", outcome, number)


def test_a_shift_that_was_counted_by_hand():
    # 80 boards of 50 opportunities and 20 of 100: 6,000. Of 31 calls, 3 are open: 25 false, 2 confirmed, 1 accepted.
    decided = [boards(80, 74, verified=78, good=77), boards(20, 16, verified=20, good=19, recipe=2)]
    answered = [calls(25, FALSE), calls(2, CONFIRMED), calls(1, ACCEPTED), calls(3)]
    found = {one.name: one for one in statistics.figures(decided, answered, 1, {1: 50, 2: 100}, {})}
    assert found["raw_fpy"].value == pytest.approx(90.0)
    assert found["final_fpy"].value == pytest.approx(100 * 96 / 98)
    assert found["false_call_ppm"].value == pytest.approx(25e6 / 6000)
    assert (found["false_call_ppm"].asked, found["false_call_ppm"].open, found["final_fpy"].open) == (31, 3, 2)
    assert found["dpmo"].value == pytest.approx(2e6 / 6000)
    assert found["escape_rate"].value == pytest.approx(100 / 3)
    assert all(one.definition for one in found.values())


def test_bounds_of_a_table():
    # Clopper and Pearson, 95 %: 0 of 10 is 0 to 0.30850; 5 of 10 is 0.18709 to 0.81291.
    none = figure("x", "X", Unit.PERCENT, "", 0, 10, "")
    half = figure("x", "X", Unit.PERCENT, "", 5, 10, "")
    assert (none.lower, none.upper) == (pytest.approx(0), pytest.approx(30.850, abs=1e-3))
    assert (half.lower, half.upper) == (pytest.approx(18.709, abs=1e-3), pytest.approx(81.291, abs=1e-3))


def test_what_nobody_has_reported_or_answered_is_no_zero():
    answered, waiting = [calls(5, CONFIRMED)], [calls(3)]
    for found, missing in (
        (statistics.escape_rate(answered, 0), "no escapes reported"),
        (statistics.false_calls(waiting, 100), "no calls answered"),
        (statistics.defects(waiting, 100), "no calls answered"),
    ):
        assert (found.value, found.missing) == (None, missing)
    assert statistics.escape_rate(answered, 1).value == pytest.approx(100 / 6)
    assert statistics.false_calls([], 100).value == 0
    assert statistics.false_calls([calls(1), calls(9, CONFIRMED)], 100).value == 0
    found = statistics.false_calls([calls(5, FALSE)], 4)  # more calls than opportunities
    assert (found.value, found.lower, found.upper) == (1.25e6, None, None)


def test_a_shift_whose_calls_are_open_is_no_good_shift():
    # One clean board is verified at once; 121 wait for answers, of which one came.
    decided = [boards(122, 1, verified=2, good=2)]
    answered = [calls(1, FALSE), calls(120)]
    found = {one.name: one for one in statistics.figures(decided, answered, 0, {1: 100}, {})}
    for name in ("final_fpy", "false_call_ppm", "dpmo"):
        assert found[name].value is None
        assert found[name].missing.startswith("open: ")
    assert found["final_fpy"].lower < 2
    assert found["final_fpy"].upper > 99
    assert found["dpmo"].upper > 1e6 * 120 / 12_200


@given(st.lists(st.sampled_from([*Outcome, None]), min_size=1, max_size=30), st.data())
def test_bounds_hold_whatever_the_open_calls_will_be(outcomes, data):
    later = [data.draw(st.sampled_from(Outcome)) if outcome is None else outcome for outcome in outcomes]

    def seen(said):
        counted = [calls(1, outcome) for outcome in said]
        verified = sum(outcome is not None for outcome in said)
        good = sum(outcome in (FALSE, ACCEPTED) for outcome in said)
        of_boards = [boards(len(said), 0, verified=verified, good=good)]
        return [statistics.final_fpy(of_boards), statistics.false_calls(counted, 100), statistics.defects(counted, 100)]

    for now, then in zip(seen(outcomes), seen(later), strict=True):
        if now.lower is not None and now.upper is not None and then.value is not None:
            assert now.lower <= then.value + 1e-9
            assert then.value <= now.upper + 1e-9


def test_a_pareto_by_hand():
    rows = [calls(6, FALSE), calls(2, CONFIRMED), calls(1, None, component="U1"), calls(1, ACCEPTED, component="C1")]
    first, *others = pareto(rows, By.COMPONENT)
    assert (first.name, first.calls, first.false_calls, first.confirmed, first.cumulative) == ("R0402", 8, 6, 2, 0.8)
    assert [(one.name, one.open, one.accepted, one.cumulative) for one in others] == [
        ("C1", 0, 1, 0.9),
        ("U1", 1, 0, 1),
    ]


def test_laneys_chart_by_hand():
    # Nine hours of 100 opportunities: mean 0.1, deviation sqrt(0.1 / 100) = 0.0316; z is -3.162 and 3.953 in turn.
    samples = [Subgroup(hour, 0 if hour % 2 == 0 else 22.5, 100) for hour in range(9)]
    chart = statistics.u_chart(samples)
    assert chart.mean == pytest.approx(0.1)
    assert chart.sigma_z == pytest.approx(0.225 / math.sqrt(0.001) / 1.128)
    assert chart.points[0].upper == pytest.approx(0.1 + 3 * math.sqrt(0.001) * chart.sigma_z)
    assert chart.points[0].lower == 0
    assert not any(point.signals for point in chart.points)


def test_an_hour_of_many_calls_signals_and_rates_that_never_vary_are_in_control():
    amounts = [10, 12, 9, 11, 10, 8, 12, 10, 11, 9, 10, 12, 60, 11]
    chart = statistics.u_chart([Subgroup(hour, amount, 1000) for hour, amount in enumerate(amounts)])
    assert [point.at_us for point in chart.points if point.signals] == [12]
    chart = statistics.u_chart([Subgroup(hour, 7 * hour, 90 * hour) for hour in range(1, 20)])
    assert not any(point.signals for point in chart.points)


COUNTS = st.integers(0, 300)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from([None, *Outcome]), st.integers(1, 99))))
def test_a_pareto_loses_no_call_and_never_rises(rows):
    bars = pareto([calls(number, outcome, component=name) for name, outcome, number in rows], By.COMPONENT)
    assert sum(bar.calls for bar in bars) == sum(number for _, _, number in rows)
    assert [bar.calls for bar in bars] == sorted((bar.calls for bar in bars), reverse=True)
    assert all(bar.confirmed + bar.false_calls + bar.accepted + bar.open == bar.calls for bar in bars)
    assert not bars or bars[-1].cumulative == 1


@given(COUNTS, COUNTS, st.integers(1, 5))
def test_a_rate_lies_between_its_bounds(some, more, factor):
    one = figure("x", "X", Unit.PPM, "", some, some + more, "none")
    if some + more == 0:
        assert (one.value, one.missing) == (None, "none")
        return
    assert 0 <= one.lower <= one.value + 1e-6
    assert one.value <= one.upper + 1e-6 <= 1e6 + 1
    surer = figure("x", "X", Unit.PPM, "", some * factor, (some + more) * factor, "none")
    assert surer.upper <= one.upper + 1e-3


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1000)), max_size=40))
def test_a_chart_has_a_point_for_each_hour_with_boards_and_its_mean_is_inside(rows):
    samples = [Subgroup(hour, min(amount, size), size) for hour, (amount, size) in enumerate(rows)]
    chart = statistics.u_chart(samples)
    used = [one for one in samples if one.size]
    assert [point.at_us for point in chart.points] == ([one.at_us for one in used] if len(used) >= 8 else [])
    assert all(point.lower <= chart.mean + 1e-12 and chart.mean <= point.upper + 1e-12 for point in chart.points)


def with_history(served):
    """Decide four boards of the tiny recipe now; one has a confirmed call, one a false call, one an open call."""
    for number in range(4):
        hand_in(served.feeder, f"k{number}", {"R1": "A"}, serial=f"SN{number}")
        decide(served.database, f"k{number}", *([ng()] if number else []))
    served.database.write(repairs.report_escape, NewEscape("SN0", now_us(), "ann"))
    for id, outcome in ((1, Outcome.CONFIRMED), (2, Outcome.FALSE_CALL)):
        say(served.operator, id, outcome)


def test_figures_come_with_definition_value_and_bounds_and_bars_and_charts_with_them(served):
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
    (bar,) = served.operator.get("/api/v1/stats/pareto?by=label").json()["bars"]
    assert (bar["name"], bar["calls"], bar["confirmed"], bar["false_calls"], bar["open"]) == ("cracked", 3, 1, 1, 1)
    assert "limits need 8" in served.operator.get("/api/v1/stats/spc").json()["calls"]["missing"]
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


def test_a_query_that_cannot_be_answered_is_refused(served):
    for query in (
        *("hours=0", "hours=x", "hours=1.9", "hours=%C2%B2", "hours=1&hours=2"),
        *("until=yesterday", "until=2026-03-01T08:00+02:00", "by=person", "since=1", "recipe=tinny"),
        *("until=0001-01-01", "until=9999-12-31T23:59:59", "recipe=%00", "recipe=%1b[2J"),
    ):
        problem(served.operator.get(f"/api/v1/stats/pareto?{query}"), 400, "bad-request")
        assert served.operator.get(f"/statistics?{query}").status_code == 400
    problem(served.engineer.post("/api/v1/exports", json={"recipe": "tinny"}), 400, "bad-request")
    for query in ("status=answered&after=1", "status=answered&component=A", "before=1", "limit=1.5"):
        assert served.operator.get(f"/api/v1/calls?{query}").status_code == 400, query


def test_a_time_with_an_offset_is_that_time(served):
    for until, utc in (("T08:00+02:00", "T06:00"), ("T08:00-05:30", "T13:30"), ("T08:00", "T08:00")):
        answer = served.operator.get("/api/v1/stats/fpy", params={"hours": 1, "until": f"2026-03-01{until}"})
        assert answer.json()["until"].startswith(f"2026-03-01{utc}")


NAMES = ("=HYPERLINK(1)", "Ü-7", 'a"b,c', "R$1$")


def table(answer):
    return list(csv.DictReader(io.StringIO(answer.content.decode("utf-8-sig"))))


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
            board_rows.decide(connection, decision(found, ng(name), late("R9"), at_us=now_us()))
        call = call_rows.of_component(connection, 1, NAMES[0])
        word = NewVerification(CONFIRMED, now_us(), "op", "=said", "note\nof two lines")
        verifications.record_verification(connection, call, word)
    return served


def test_calls_are_a_table_with_the_newest_answers(worked, monkeypatch):
    monkeypatch.setattr(report_routes, "TOGETHER", 3)
    worked.gate.config = worked.gate.config.model_copy(update={"zone": "Asia/Tokyo"})
    answer = worked.engineer.get("/api/v1/reports/calls.csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = table(answer)
    assert len(rows) == 2 * len(NAMES)
    assert [row["serial"] for row in rows[::2]] == [guarded(name) for name in NAMES]
    assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row.values())
    assert (rows[0]["outcome"], rows[0]["by"], rows[0]["said_label"]) == ("confirmed", "op", "'=said")
    assert rows[0]["decided"].endswith("+09:00")
    assert worked.operator.get("/api/v1/reports/calls.csv").status_code == 403
    assert table(worked.engineer.get("/api/v1/reports/calls.csv?recipe=tiny")) == []


def test_figures_are_a_table_with_their_bounds(worked):
    rows = {row["name"]: row for row in table(worked.operator.get("/api/v1/reports/figures.csv"))}
    assert (rows["raw_fpy"]["value"], rows["raw_fpy"]["events"], rows["raw_fpy"]["trials"]) == ("0.0", "0", "4")
    assert rows["dpmo"]["missing"] == "open: 7 of 8"
    assert rows["dpmo"]["value"] == ""
    assert float(rows["dpmo"]["lower"]) < float(rows["dpmo"]["upper"])
    calls = table(worked.engineer.get("/api/v1/reports/calls.csv"))
    assert (calls[4]["serial"], calls[4]["version"]) == ('a"b,c', "1")
