"""IPC-CFX: envelope and bodies as the standard's SDK has them; REVIEW is Failed until a person says it is not."""

import json
import uuid
from contextlib import closing
from dataclasses import replace

import pytest
from serve_rows import NOON, accepted, answer, decided, decision, late, ng, recipe
from serving import signed_in
from tiny_line import TINY
from whole_boards import WHOLE, whole_of

from coe.board.parts_list import BoardPart, Side
from coe.core import Verdict
from coe.serve.bridge.cfx import PUBLISHED, CfxFormat, time_span
from coe.serve.bridge.outbox_relay import envelope_of
from coe.serve.bridge.sinks import Origin, Sign, StationStatus
from coe.serve.database import board_rows, event_log, fault_log, recipe_versions, states
from coe.serve.database.board_rows import Amendment
from coe.serve.database.recipe_versions import KeptRecipes
from coe.serve.database.tables import NewCall, NewFault
from coe.serve.enums import CallReason, EventKind, FaultKind, Intake, LineState, Outcome, Process, Subject

WORDS = CfxFormat(Origin("aoi-1", "acme.aoi.7"))


def messages(database):
    with database.reading() as connection:
        envelopes = [envelope_of(connection, event, KeptRecipes()) for event in event_log.after(connection, 0)]
    return [json.loads(message.encoded) for one in envelopes for message in WORDS.messages(one)]


def names(database):
    return [message["MessageName"].rpartition(".")[2] for message in messages(database)]


def bodies(database, name):
    return [message["MessageBody"] for message in messages(database) if message["MessageName"].endswith(f".{name}")]


def test_the_envelope_is_that_of_the_standard(sqlite_database):
    sqlite_database.write(accepted, "k1", serial="SN1")
    [message] = messages(sqlite_database)
    fields = ("MessageName", "Version", "TimeStamp", "UniqueID", "Source", "Target", "RequestID", "MessageBody")
    assert tuple(message) == fields
    assert message["MessageName"] == "CFX.Production.UnitsArrived"
    assert (message["Version"], message["Source"]) == ("2.1", "acme.aoi.7")
    assert message["TimeStamp"] == "2023-11-14T22:13:20.000000Z"
    assert uuid.UUID(message["UniqueID"])
    assert next(iter(message["MessageBody"].items())) == ("$type", "CFX.Production.UnitsArrived, CFX")
    assert message["MessageBody"]["Units"][0]["UnitIdentifier"] == "SN1"
    assert message["MessageBody"]["UnitCount"] == 1


def test_a_board_makes_one_transaction(sqlite_database):
    with sqlite_database.writing() as connection:
        board = accepted(connection, "k1")
        board_rows.begin(connection, board.id, NOON)
        event_log.append(connection, EventKind.BOARD_STARTED, NOON, board.facts, board.id)
        board_rows.decide(connection, decision(board))
    assert names(sqlite_database) == ["UnitsArrived", "WorkStarted", "UnitsInspected", "WorkCompleted", "UnitsDeparted"]
    [started] = bodies(sqlite_database, "WorkStarted")
    [inspected] = bodies(sqlite_database, "UnitsInspected")
    [completed] = bodies(sqlite_database, "WorkCompleted")
    assert started["TransactionID"] == inspected["TransactionId"] == completed["TransactionID"]
    assert (started["RecipeName"], started["Revision"], started["RelevantSurface"]) == ("demo", "1", "PrimarySurface")
    assert (completed["Result"], completed["Units"][0]["Status"]) == ("Completed", "Pass")
    [unit] = inspected["InspectedUnits"]
    assert (unit["OverallResult"], unit["Inspections"], unit["TotalInspectionCount"]) == ("Passed", [], 1)
    assert inspected["InspectionMethod"] == "AOI"


def test_review_is_sent_as_failed_and_not_verified_yet(sqlite_database):
    sqlite_database.write(decided, "k1", late("R1"), ng("R2"))
    [inspected] = bodies(sqlite_database, "UnitsInspected")
    [unit] = inspected["InspectedUnits"]
    assert (unit["OverallResult"], unit["Verification"]) == ("Failed", "NotVerifiedYet")
    said = [(one["InspectionName"], one["Result"], one["Error"]) for one in unit["Inspections"]]
    assert said == [("R1", "Failed", "late"), ("R2", "Failed", None)]
    assert messages(sqlite_database) == messages(sqlite_database)
    assert len({message["UniqueID"] for message in messages(sqlite_database)}) == 4
    [defect] = unit["Inspections"][1]["DefectsFound"]
    assert (defect["DefectCode"], defect["ConfidenceLevel"]) == ("cracked", 90.0)
    assert defect["ComponentOfInterest"] == {"ReferenceDesignator": "R2", "UnitPosition": None, "PartNumber": "R0402"}
    [completed] = bodies(sqlite_database, "WorkCompleted")
    assert (completed["Result"], completed["Units"][0]["Status"]) == ("Completed", "Fail")


SAID = {
    Outcome.CONFIRMED: ("Failed", "DefectConfirmed"),
    Outcome.FALSE_CALL: ("Passed", "DefectRejected"),
    Outcome.ACCEPTED: ("Passed", "DefectAccepted"),
}


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ((Outcome.FALSE_CALL, Outcome.FALSE_CALL), Outcome.FALSE_CALL),
        ((Outcome.FALSE_CALL, Outcome.CONFIRMED), Outcome.CONFIRMED),
        ((Outcome.ACCEPTED, Outcome.FALSE_CALL), Outcome.ACCEPTED),
    ],
)
def test_after_the_operator_and_each_correction_the_board_is_sent_again_with_the_method_human(
    sqlite_database, outcomes, said
):
    board = sqlite_database.write(decided, "k1", ng("R1"), ng("R2"))
    answer(sqlite_database, board.id, R1=outcomes[0], R2=outcomes[1])
    first, second = bodies(sqlite_database, "UnitsInspected")
    assert second["TransactionId"] == first["TransactionId"]
    assert (second["InspectionMethod"], second["Inspector"]["OperatorIdentifier"]) == ("Human", "ann")
    [unit] = second["InspectedUnits"]
    assert (unit["OverallResult"], unit["Verification"]) == SAID[said]
    parts = [(one["Result"], one["DefectsFound"][0]["Verification"]) for one in unit["Inspections"]]
    assert parts == [SAID[outcome] for outcome in outcomes]
    answer(sqlite_database, board.id, R1=Outcome.CONFIRMED)  # a correction is sent, too
    assert bodies(sqlite_database, "UnitsInspected")[2]["InspectedUnits"][0]["OverallResult"] == "Failed"


def test_a_part_of_a_whole_board_has_its_outline_in_millimetres(sqlite_database):
    with sqlite_database.writing() as connection:
        board = accepted(connection, of=recipe(connection, "whole", TINY, whole=WHOLE))
        board_rows.decide(connection, decision(board, ng("P1"), ng("P2"), ng("U7")))
    inspections = bodies(sqlite_database, "UnitsInspected")[0]["InspectedUnits"][0]["Inspections"]
    first, turned, unknown = (one["DefectsFound"][0]["RegionOfInterest"] for one in inspections)
    # P1 is 2.8 x 1.6 mm with its margin, in the middle at (5, 5).
    assert (first["StartPointX"], first["StartPointY"]) == (3.6, 5.8)
    assert [(at["X"], at["Y"]) for at in first["RegionSegments"]] == [(6.4, 5.8), (6.4, 4.2), (3.6, 4.2), (3.6, 5.8)]
    # P2 is turned by 90 degrees, so that its top left lies at the lower left as the camera sees it.
    assert (turned["StartPointX"], turned["StartPointY"]) == (8.75, 6.75)
    assert unknown is None


def test_states_are_those_of_semi_e58_with_how_long_the_last_one_lasted(sqlite_database):
    with sqlite_database.writing() as connection:
        states.change(connection, Subject.LINE, LineState.WAITING, by="line", now_us=NOON)
        states.change(connection, Subject.INTAKE, Intake.DRAINING, by="ann", now_us=NOON)
        states.change(connection, Subject.LINE, LineState.RUNNING, by="line", now_us=NOON + 85_500_000)
    said = ("OldState", "OldStateDuration", "NewState")
    changed = [tuple(one[name] for name in said) for one in bodies(sqlite_database, "StationStateChanged")]
    assert changed == [(5000, None, 2202), (2202, "00:01:25.5000000", 1100)]
    assert (time_span(93_784_500_000), time_span(-5)) == ("1.02:03:04.5000000", "00:00:00")


def test_every_state_and_every_kind_of_fault_has_its_message(sqlite_database):
    with sqlite_database.writing() as connection:
        for state in LineState:
            states.change(connection, Subject.LINE, state, by="line", now_us=NOON)
        for kind in FaultKind:
            fault_log.note(connection, NewFault(Process.WORKER, kind, "it broke"), NOON)
    assert names(sqlite_database).count("StationStateChanged") == len(LineState)
    assert names(sqlite_database).count("FaultOccurred") == len(FaultKind)


def test_a_fault_keeps_its_id_until_it_is_cleared_and_stands_in_signs_of_life(sqlite_database):
    with sqlite_database.writing() as connection:
        fault = fault_log.note(connection, NewFault(Process.WORKER, FaultKind.INSPECTOR_FAILED, "it broke"), NOON)
        status = StationStatus(LineState.DOWN, Intake.OPEN, fault_log.open_faults(connection), NOON)
        fault_log.clear(connection, fault.id, by="ann", now_us=NOON + 1)
    [occurred] = bodies(sqlite_database, "FaultOccurred")
    [cleared] = bodies(sqlite_database, "FaultCleared")
    beat = json.loads(WORDS.sign(Sign.ALIVE, status).encoded)["MessageBody"]
    assert (occurred["Fault"]["Severity"], occurred["Fault"]["Description"]) == ("Error", "it broke")
    assert cleared["FaultOccurrenceId"] == occurred["Fault"]["FaultOccurrenceId"]
    assert cleared["Operator"]["OperatorIdentifier"] == "ann"
    assert (beat["CFXHandle"], beat["HeartbeatFrequency"]) == ("acme.aoi.7", "00:01:00")
    assert beat["ActiveFaults"] == [occurred["Fault"]]


PANEL = whole_of(
    (BoardPart("P1", 4, 5, 0, Side.TOP, "A"), BoardPart("P4", 6, 9, 0, Side.TOP, "C")),
    panel={"array": {"rows": 1, "columns": 3, "first": [0, 0], "pitch": [5, 0]}},
)
REQUEST = {"serials": {"r1c1": "U1"}, "bad_marks": ["r1c3"]}
SKIPPED = NewCall("r1c3", "", Verdict.REVIEW, CallReason.SKIPPED)
ENDPOINT = CfxFormat(Origin("aoi-1", "acme.aoi.7", request_uri="amqp://broker:5672/", request_address="/queue/aoi-1"))


def panel(connection, key="k1"):
    return accepted(connection, key, serial="SN1", of=recipe(connection, "panel", TINY, whole=PANEL), **REQUEST)


def decided_panel(connection):
    board = panel(connection)
    board_rows.decide(connection, decision(board, ng("r1c2/P4"), SKIPPED))
    return board


def positions(message):
    said = ("UnitIdentifier", "PositionNumber", "PositionName", "X", "Status")
    return [tuple(unit[name] for name in said) for unit in message["Units"]]


def results(message):
    said = ("UnitIdentifier", "UnitPositionNumber", "OverallResult", "Verification", "TotalInspectionCount")
    return [tuple(unit[name] for name in said) for unit in message["InspectedUnits"]]


def test_each_unit_of_a_panel_has_its_serial_number_and_status(sqlite_database):
    sqlite_database.write(decided_panel)
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
    of_panel = inspected["InspectedPanel"]
    assert (of_panel["OverallResult"], of_panel["UnitIdentifier"]) == ("Failed", "SN1")


@pytest.mark.parametrize("outcome", [Outcome.CONFIRMED, Outcome.FALSE_CALL])
def test_a_persons_words_count_for_their_unit_and_a_bad_mark_never_becomes_good(sqlite_database, outcome):
    board = sqlite_database.write(decided_panel)
    answer(sqlite_database, board.id, **{"r1c2/P4": outcome, "r1c3": Outcome.FALSE_CALL})
    human = [unit[2:4] for unit in results(bodies(sqlite_database, "UnitsInspected")[-1])]
    assert human == [("Passed", "NotVerifiedYet"), SAID[outcome], ("Skipped", "DefectRejected")]


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
    assert amended["InspectedUnits"][0]["Inspections"][0]["DefectsFound"][0]["DefectCode"] == "cracked"


def test_a_board_that_is_taken_back_is_completed_only_if_it_was_begun_and_departs_whether_it_was_begun_or_not(
    sqlite_database,
):
    with sqlite_database.writing() as connection:
        board_rows.abort(connection, panel(connection), NOON, reason="x")
        begun = accepted(connection, "k2")
        board_rows.begin(connection, begun.id, NOON)
        board_rows.abort(connection, begun, NOON, reason="x")
    assert names(sqlite_database)[:2] == ["UnitsArrived", "UnitsDeparted"]
    departed, _ = bodies(sqlite_database, "UnitsDeparted")
    assert [unit["Status"] for unit in departed["Units"]] == ["Fail", "Fail", "Skip"]
    [completed] = bodies(sqlite_database, "WorkCompleted")
    assert (completed["Result"], completed["Units"][0]["UnitIdentifier"]) == ("Aborted", "k2")


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
    with served.database.writing() as connection:
        doubt = replace(decision(panel(connection, "k2"), ng("r1c2/P4"), SKIPPED), reason="its code says 'SN2'")
        board_rows.decide(connection, doubt)
    units = served.operator.get("/api/v1/boards/2").json()["units"]
    assert [unit["verdict"] for unit in units] == ["REVIEW", "NG", None], "no unit of a doubtful panel is OK"


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
    envelope = {"MessageName": "CFX.AreYouThereResponse", "Source": "acme.aoi.7", "Target": "mes", "RequestID": "r7"}
    assert there.items() >= envelope.items()
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
