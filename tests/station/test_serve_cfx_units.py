"""IPC-CFX by unit: each has its serial, number and result; a station says that it comes, and who it is."""

from contextlib import closing
from dataclasses import replace

import pytest
from serve_rows import NOON, decision, ng
from serving import signed_in
from test_serve_cfx import answer, bodies, names
from tiny_line import TINY
from whole_boards import whole_of

from coe.board.parts_list import BoardPart, Side
from coe.core import Verdict
from coe.serve.bridge.cfx import PUBLISHED, CfxFormat
from coe.serve.bridge.sinks import Origin, Sign, StationStatus
from coe.serve.database import board_rows, event_log, recipe_versions
from coe.serve.database.board_rows import Amendment
from coe.serve.database.tables import NewBoard, NewCall
from coe.serve.enums import CallReason, EventKind, Intake, LineState, Outcome

PANEL = whole_of(
    (BoardPart("P1", 4, 5, 0, Side.TOP, "A"), BoardPart("P4", 6, 9, 0, Side.TOP, "C")),
    panel={"array": {"rows": 1, "columns": 3, "first": [0, 0], "pitch": [5, 0]}},
)
REQUEST = {"serials": {"r1c1": "U1"}, "bad_marks": ["r1c3"]}
SKIPPED = NewCall("r1c3", "", Verdict.REVIEW, CallReason.SKIPPED)
ENDPOINT = CfxFormat(Origin("aoi-1", "acme.aoi.7", request_uri="amqp://broker:5672/", request_address="/queue/aoi-1"))


def panel(connection):
    recipe = recipe_versions.add(connection, "panel", {"rules": TINY, "whole": PANEL}, by="ann", now_us=NOON)
    new = NewBoard("k1", "d", recipe.id, "SN1", "", Side.TOP, "", REQUEST, "feeder", NOON, None)
    return board_rows.accept(connection, new)


def positions(message):
    said = ("UnitIdentifier", "PositionNumber", "PositionName", "X", "Status")
    return [tuple(unit[name] for name in said) for unit in message["Units"]]


def results(message):
    said = ("UnitIdentifier", "UnitPositionNumber", "OverallResult", "Verification", "TotalInspectionCount")
    return [tuple(unit[name] for name in said) for unit in message["InspectedUnits"]]


def test_each_unit_of_a_panel_has_its_serial_number_and_status(sqlite_database):
    with sqlite_database.writing() as connection:
        board = panel(connection)
        board_rows.decide(connection, decision(board, ng("r1c2/P4"), SKIPPED))
    [arrived], [departed] = bodies(sqlite_database, "UnitsArrived"), bodies(sqlite_database, "UnitsDeparted")
    assert arrived["UnitCount"] == 3
    assert positions(arrived) == [
        ("U1", 1, "r1c1", 0.0, "Pass"),
        ("SN1-r1c2", 2, "r1c2", 5.0, "Pass"),
        ("SN1-r1c3", 3, "r1c3", 10.0, "Skip"),
    ]
    assert [unit["Status"] for unit in departed["Units"]] == ["Pass", "Fail", "Skip"]
    assert departed["PrimaryIdentifier"] == "SN1"
    [inspected] = bodies(sqlite_database, "UnitsInspected")
    assert results(inspected) == [
        ("U1", 1, "Passed", "NotVerifiedYet", 2),
        ("SN1-r1c2", 2, "Failed", "NotVerifiedYet", 2),
        ("SN1-r1c3", 3, "Skipped", "NotVerifiedYet", 0),
    ]
    [part] = inspected["InspectedUnits"][1]["Inspections"]
    assert part["DefectsFound"][0]["ComponentOfInterest"]["ReferenceDesignator"] == "P4"
    [mark] = inspected["InspectedUnits"][2]["Inspections"]
    assert (mark["Result"], mark["DefectsFound"]) == ("Skipped", [])
    assert (inspected["InspectedPanel"]["OverallResult"], inspected["InspectedPanel"]["UnitIdentifier"]) == (
        "Failed",
        "SN1",
    )


@pytest.mark.parametrize(
    ("outcome", "result", "verification"),
    [(Outcome.CONFIRMED, "Failed", "DefectConfirmed"), (Outcome.FALSE_CALL, "Passed", "DefectRejected")],
)
def test_a_persons_words_count_for_their_unit_and_a_bad_mark_never_becomes_good(
    sqlite_database, outcome, result, verification
):
    with sqlite_database.writing() as connection:
        board = panel(connection)
        board_rows.decide(connection, decision(board, ng("r1c2/P4"), SKIPPED))
    answer(sqlite_database, board.id, **{"r1c2/P4": outcome, "r1c3": Outcome.FALSE_CALL})
    human = bodies(sqlite_database, "UnitsInspected")[-1]
    assert [unit[2:4] for unit in results(human)] == [
        ("Passed", "NotVerifiedYet"),
        (result, verification),
        ("Skipped", "DefectRejected"),
    ]


def test_a_panel_that_is_in_doubt_as_a_whole_has_no_unit_that_passed(sqlite_database):
    with sqlite_database.writing() as connection:
        board = panel(connection)
        doubt = replace(decision(board, SKIPPED), verdict=Verdict.REVIEW, reason="its code says 'SN2'")
        board_rows.decide(connection, doubt)
    [inspected], [completed] = bodies(sqlite_database, "UnitsInspected"), bodies(sqlite_database, "WorkCompleted")
    assert [unit[2] for unit in results(inspected)] == ["Failed", "Failed", "Skipped"]
    assert [unit["Status"] for unit in completed["Units"]] == ["Fail", "Fail", "Skip"]


def test_an_amendment_speaks_of_the_units_alone_that_became_worse(sqlite_database):
    with sqlite_database.writing() as connection:
        board = panel(connection)
        late = NewCall("r1c1/P1", "A", Verdict.REVIEW, CallReason.LATE, late=True)
        board_rows.decide(connection, decision(board, late, ng("r1c2/P4")))
        board_rows.amend(connection, Amendment(board.id, NOON + 2, [ng("r1c1/P1")]))
    amended = bodies(sqlite_database, "UnitsInspected")[-1]
    assert [unit[:3] for unit in results(amended)] == [("U1", 1, "Failed")]


def test_a_board_that_is_taken_back_departs_whether_it_was_begun_or_not(sqlite_database):
    with sqlite_database.writing() as connection:
        board_rows.abort(connection, panel(connection), NOON, reason="x")
    assert names(sqlite_database) == ["UnitsArrived", "UnitsDeparted"]
    [departed] = bodies(sqlite_database, "UnitsDeparted")
    assert [unit["Status"] for unit in departed["Units"]] == ["Fail", "Fail", "Skip"]


def test_the_api_and_the_page_have_the_verdict_of_each_unit(served):
    board = served.database.write(panel)
    assert {unit["verdict"] for unit in served.operator.get("/api/v1/boards/1").json()["units"]} == {None}
    served.database.write(board_rows.decide, decision(board, ng("r1c2/P4"), SKIPPED))
    units = served.operator.get("/api/v1/boards/1").json()["units"]
    assert [tuple(unit[name] for name in ("number", "unit", "serial", "verdict", "bad_mark")) for unit in units] == [
        (1, "r1c1", "U1", "OK", False),
        (2, "r1c2", "SN1-r1c2", "NG", False),
        (3, "r1c3", "SN1-r1c3", None, True),
    ]
    with closing(signed_in(served)) as person:
        assert "SN1-r1c2" in person.get("/boards/1").text


def test_no_unit_of_a_panel_that_is_in_doubt_as_a_whole_is_ok_in_the_api(served):
    with served.database.writing() as connection:
        doubt = replace(decision(panel(connection), ng("r1c2/P4"), SKIPPED), reason="its code says 'SN2'")
        board_rows.decide(connection, doubt)
    units = served.operator.get("/api/v1/boards/1").json()["units"]
    assert [unit["verdict"] for unit in units] == ["REVIEW", "NG", None]


def test_a_recipe_that_is_activated_is_told_with_its_units_and_components(sqlite_database):
    with sqlite_database.writing() as connection:
        recipe_versions.add(connection, "panel", {"rules": TINY, "whole": PANEL}, by="ann", now_us=NOON)
        body = {"name": "panel", "version": 1, "reason": "", "by": "ann"}
        event_log.append(connection, EventKind.RECIPE_ACTIVATED, NOON, body)
    [told] = bodies(sqlite_database, "RecipeActivated")
    said = ("RecipeName", "Revision", "ExpectedUnitsPerWorkTransaction", "NumberOfComponentsPerUnit", "RelevantSurface")
    assert [told[name] for name in said] == ["panel", "1", 3.0, 2.0, "PrimarySurface"]


def test_a_station_says_that_it_comes_and_goes():
    status = StationStatus(LineState.WAITING, Intake.OPEN, [], NOON)
    come, gone = (ENDPOINT.sign(sign, status).body for sign in (Sign.CONNECTED, Sign.ENDING))
    assert (come["MessageName"], gone["MessageName"]) == ("CFX.EndpointConnected", "CFX.EndpointShuttingDown")
    assert come["MessageBody"] == {
        "$type": "CFX.EndpointConnected, CFX",
        "CFXHandle": "acme.aoi.7",
        "RequestNetworkUri": "amqp://broker:5672/",
        "RequestTargetAddress": "/queue/aoi-1",
    }


def asked(name, **more):
    request = {"MessageName": f"CFX.{name}", "Source": "mes", "RequestID": "r7", "MessageBody": more}
    message = ENDPOINT.answer(request, NOON)
    return None if message is None else dict(message.body)


def test_who_asks_gets_an_answer_with_the_number_of_the_request():
    there = asked("AreYouThereRequest", CFXHandle="acme.aoi.7")
    assert [there[name] for name in ("MessageName", "Source", "Target", "RequestID")] == [
        "CFX.AreYouThereResponse", "acme.aoi.7", "mes", "r7",
    ]  # fmt: skip
    assert there["MessageBody"]["Result"]["Result"] == "Success"
    known = asked("GetEndpointInformationRequest", CFXHandle="acme.aoi.7")
    about = known["MessageBody"]["EndpointInformation"]
    assert [about[name] for name in ("Vendor", "ModelNumber", "SerialNumber")] == ["acme", "aoi", "7"]
    topics = {topic["TopicName"]: set(topic["SupportedMessages"]) for topic in about["SupportedTopics"]}
    assert set(topics) == set(PUBLISHED)
    assert topics["CFX"] >= {there["MessageName"], known["MessageName"], "CFX.Heartbeat", "CFX.WhoIsThereResponse"}
    assert topics["CFX.Production"] >= {"CFX.Production.RecipeActivated", "CFX.Production.WorkStarted"}
    refused = asked("GetSomethingRequest")
    assert refused["MessageName"] == "CFX.NotSupportedResponse"


@pytest.mark.parametrize(
    "request_of",
    [
        {"MessageName": "CFX.AreYouThereRequest", "MessageBody": {"CFXHandle": "acme.aoi.8"}},
        {"MessageName": "CFX.AreYouThereRequest", "Target": "acme.aoi.8", "MessageBody": {}},
        {"MessageName": "CFX.Heartbeat", "MessageBody": {}},
        {"MessageName": "CFX.AreYouThereRequest", "MessageBody": [1]},
        {"MessageName": 7},
        {},
    ],
)
def test_what_is_no_request_or_is_for_another_endpoint_has_no_answer(request_of):
    assert ENDPOINT.answer(request_of, NOON) is None


@pytest.mark.parametrize(
    ("way", "topics", "answers"),
    [
        ("Ignore", ["CFX.Nothing"], True),
        ("Any", ["CFX.Nothing", "CFX.Production"], True),
        ("Any", ["CFX.Nothing"], False),
        ("All", ["CFX", "CFX.Production"], True),
        ("All", ["CFX.Nothing", "CFX.Production"], False),
    ],
)
def test_who_looks_for_topics_finds_the_station_if_it_has_them(way, topics, answers):
    wanted = [{"TopicName": name, "TopicSupportType": "Publisher", "SupportedMessages": []} for name in topics]
    found = asked("WhoIsThereRequest", SupportedTopicQueryType=way, SupportedTopics=wanted)
    assert (found is not None) == answers
