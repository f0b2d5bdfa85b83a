"""IPC-CFX: envelope and bodies as the standard's SDK has them; REVIEW is Failed until a person says it is not."""

import json
import uuid

import pytest
from serve_rows import NOON, accepted, decided, decision, late, ng
from tiny_line import TINY
from whole_boards import WHOLE

from coe.board.parts_list import Side
from coe.core import Verdict
from coe.serve.bridge.cfx import CfxFormat, time_span
from coe.serve.bridge.outbox_relay import envelope_of
from coe.serve.bridge.sinks import Origin, Sign, StationStatus
from coe.serve.database import board_rows, call_rows, event_log, fault_log, recipe_versions, states
from coe.serve.database.board_rows import Amendment
from coe.serve.database.recipe_versions import KeptRecipes
from coe.serve.database.tables import NewBoard, NewFault, NewVerification
from coe.serve.database.verifications import record_verification
from coe.serve.enums import EventKind, FaultKind, Intake, LineState, Outcome, Process, Subject

WORDS = CfxFormat(Origin("aoi-1", "acme.aoi.7"))


def messages(database):
    """Return the envelopes of all events, as they are sent."""
    with database.reading() as connection:
        envelopes = [envelope_of(connection, event, KeptRecipes()) for event in event_log.after(connection, 0)]
    return [json.loads(message.encoded) for one in envelopes for message in WORDS.messages(one)]


def names(database):
    return [message["MessageName"].rpartition(".")[2] for message in messages(database)]


def bodies(database, name):
    return [message["MessageBody"] for message in messages(database) if message["MessageName"].endswith(f".{name}")]


def answer(database, board_id, **outcomes):
    with database.writing() as connection:
        for refdes, outcome in outcomes.items():
            call = call_rows.of_component(connection, board_id, refdes)
            assert call is not None
            record_verification(connection, call, NewVerification(outcome, NOON + 9, "ann"))


def test_the_envelope_is_that_of_the_standard(sqlite_database):
    sqlite_database.write(accepted, "k1", serial="SN1")
    [message] = messages(sqlite_database)
    assert list(message) == [
        "MessageName", "Version", "TimeStamp", "UniqueID", "Source", "Target", "RequestID", "MessageBody",
    ]  # fmt: skip
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
    assert [(one["InspectionName"], one["Result"], one["Error"]) for one in unit["Inspections"]] == [
        ("R1", "Failed", "late"),
        ("R2", "Failed", None),
    ]
    [defect] = unit["Inspections"][1]["DefectsFound"]
    assert (defect["DefectCode"], defect["ConfidenceLevel"]) == ("cracked", 90.0)
    assert defect["ComponentOfInterest"] == {"ReferenceDesignator": "R2", "UnitPosition": None, "PartNumber": "R0402"}
    [completed] = bodies(sqlite_database, "WorkCompleted")
    assert (completed["Result"], completed["Units"][0]["Status"]) == ("Completed", "Fail")


@pytest.mark.parametrize(
    ("outcomes", "result", "verification"),
    [
        ((Outcome.FALSE_CALL, Outcome.FALSE_CALL), "Passed", "DefectRejected"),
        ((Outcome.FALSE_CALL, Outcome.CONFIRMED), "Failed", "DefectConfirmed"),
        ((Outcome.ACCEPTED, Outcome.FALSE_CALL), "Passed", "DefectAccepted"),
    ],
)
def test_after_the_operator_the_board_is_sent_again_with_the_method_human(
    sqlite_database, outcomes, result, verification
):
    board = sqlite_database.write(decided, "k1", ng("R1"), ng("R2"))
    answer(sqlite_database, board.id, R1=outcomes[0], R2=outcomes[1])
    first, second = bodies(sqlite_database, "UnitsInspected")
    assert second["TransactionId"] == first["TransactionId"]
    assert (second["InspectionMethod"], second["Inspector"]["OperatorIdentifier"]) == ("Human", "ann")
    [unit] = second["InspectedUnits"]
    assert (unit["OverallResult"], unit["Verification"]) == (result, verification)
    expected = {
        Outcome.CONFIRMED: ("Failed", "DefectConfirmed"),
        Outcome.FALSE_CALL: ("Passed", "DefectRejected"),
        Outcome.ACCEPTED: ("Passed", "DefectAccepted"),
    }
    said = [(one["Result"], one["DefectsFound"][0]["Verification"]) for one in unit["Inspections"]]
    assert said == [expected[outcome] for outcome in outcomes]


def test_a_part_of_a_whole_board_has_its_outline_in_millimetres(sqlite_database):
    with sqlite_database.writing() as connection:
        content = {"rules": TINY, "whole": WHOLE}
        recipe = recipe_versions.add(connection, "whole", content, by="ann", now_us=NOON)
        new = NewBoard("k1", "d", recipe.id, "SN1", "", Side.TOP, "", {}, "feeder", NOON, None)
        board = board_rows.accept(connection, new)
        board_rows.decide(connection, decision(board, ng("P1"), ng("P2"), ng("U7")))
    inspections = bodies(sqlite_database, "UnitsInspected")[0]["InspectedUnits"][0]["Inspections"]
    first, turned, unknown = (one["DefectsFound"][0]["RegionOfInterest"] for one in inspections)
    # P1 is 2.8 x 1.6 mm with its margin, in the middle at (5, 5).
    assert (first["StartPointX"], first["StartPointY"]) == (3.6, 5.8)
    assert [(at["X"], at["Y"]) for at in first["RegionSegments"]] == [(6.4, 5.8), (6.4, 4.2), (3.6, 4.2), (3.6, 5.8)]
    # P2 is turned by 90 degrees, so that its top left lies at the lower left as the camera sees it.
    assert (turned["StartPointX"], turned["StartPointY"]) == (8.75, 6.75)
    assert unknown is None


def test_a_correction_of_a_verified_board_is_sent_too(sqlite_database):
    board = sqlite_database.write(decided, "k1", ng("R1"))
    answer(sqlite_database, board.id, R1=Outcome.FALSE_CALL)
    answer(sqlite_database, board.id, R1=Outcome.CONFIRMED)
    sent = [one["InspectedUnits"][0]["OverallResult"] for one in bodies(sqlite_database, "UnitsInspected")]
    assert sent == ["Failed", "Passed", "Failed"]


def test_an_amendment_is_sent_with_what_was_raised(sqlite_database):
    with sqlite_database.writing() as connection:
        board = decided(connection, "k1", late("R1"))
        board_rows.amend(connection, Amendment(board.id, NOON + 2, [ng("R1", Verdict.NG)]))
    [_, amended] = bodies(sqlite_database, "UnitsInspected")
    assert amended["InspectedUnits"][0]["Inspections"][0]["DefectsFound"][0]["DefectCode"] == "cracked"


def test_a_board_that_is_taken_back_is_completed_only_if_it_was_begun(sqlite_database):
    with sqlite_database.writing() as connection:
        board_rows.abort(connection, accepted(connection, "k1"), NOON, reason="x")
        begun = accepted(connection, "k2")
        board_rows.begin(connection, begun.id, NOON)
        board_rows.abort(connection, begun, NOON, reason="x")
    [completed] = bodies(sqlite_database, "WorkCompleted")
    assert (completed["Result"], completed["Units"][0]["UnitIdentifier"]) == ("Aborted", "k2")


def test_states_are_those_of_semi_e58_with_how_long_the_last_one_lasted(sqlite_database):
    with sqlite_database.writing() as connection:
        states.change(connection, Subject.LINE, LineState.WAITING, by="line", now_us=NOON)
        states.change(connection, Subject.INTAKE, Intake.DRAINING, by="ann", now_us=NOON)
        states.change(connection, Subject.LINE, LineState.RUNNING, by="line", now_us=NOON + 85_500_000)
    said = [
        (one["OldState"], one["OldStateDuration"], one["NewState"])
        for one in bodies(sqlite_database, "StationStateChanged")
    ]
    assert said == [(5000, None, 2202), (2202, "00:01:25.5000000", 1100)]


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


def test_the_same_event_gives_the_same_messages(sqlite_database):
    sqlite_database.write(decided, "k1", ng())
    assert messages(sqlite_database) == messages(sqlite_database)
    assert len({message["UniqueID"] for message in messages(sqlite_database)}) == 4


def test_lengths_of_time_are_written_as_the_messages_have_them():
    assert time_span(60_000_000) == "00:01:00"
    assert time_span(93_784_500_000) == "1.02:03:04.5000000"
    assert time_span(-5) == "00:00:00"
