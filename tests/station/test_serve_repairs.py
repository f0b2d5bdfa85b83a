"""The repair station: what becomes of confirmed defects is told, counted, and never overwritten."""

import json
from contextlib import closing

import pytest
from serve_rows import NOON, decided, ng, the
from serving import problem, signed_in
from sqlalchemy.exc import DBAPIError
from test_serve_cfx import answer, bodies

from coe.serve.database import audit, call_rows, event_log, hourly, repairs
from coe.serve.database.connecting import DatabaseError
from coe.serve.database.hourly import Window
from coe.serve.database.repairs import NothingToRepair
from coe.serve.database.tables import NewRepair, repair
from coe.serve.enums import EventKind, Outcome, RepairOutcome, Role
from coe.serve.gate import call_routes
from coe.serve.gate.pages import board_page

REPAIRED, SCRAPPED, NO_DEFECT = RepairOutcome.REPAIRED, RepairOutcome.SCRAPPED, RepairOutcome.NO_DEFECT
ALL = Window(0, 2 * NOON)


def mend(database, refdes, outcome, board_id=1):
    def record(connection):
        call = the(call_rows.of_component(connection, board_id, refdes))
        return repairs.record_repair(connection, call, NewRepair(outcome, NOON + 20, "eve"))

    return database.write(record)


def told(database):
    events = database.read(event_log.after, 0)
    return [dict(event.body) for event in events if event.kind is EventKind.BOARD_REPAIRED]


def outcomes_of(database):
    counted = database.read(hourly.call_counts, ALL, by=())
    return {count.outcome: count.calls for count in counted}


def verified(database, *calls, **outcomes):
    database.write(decided, "k1", *calls)
    answer(database, 1, **outcomes)


def test_once_each_confirmed_defect_has_a_word_the_board_is_told(database):
    verified(database, ng("R1"), ng("R2"), ng("R3"), R1=Outcome.CONFIRMED, R2=Outcome.CONFIRMED, R3=Outcome.FALSE_CALL)
    assert [(board.id, number) for board, number in database.read(repairs.waiting, limit=9)] == [(1, 2)]
    mend(database, "R1", REPAIRED)
    assert told(database) == []
    mend(database, "R2", SCRAPPED)
    [event] = told(database)
    assert (event["outcome"], event["by"]) == ("scrapped", "eve")
    assert [(one["refdes"], one["repair"]) for one in event["repairs"]] == [("R1", "repaired"), ("R2", "scrapped")]
    assert database.read(repairs.waiting, limit=9) == []
    assert database.read(repairs.outcomes, ALL) == {REPAIRED: 1, SCRAPPED: 1}


def test_a_defect_that_is_none_in_the_hand_is_a_false_call_from_then_on(database):
    verified(database, ng("R1"), R1=Outcome.CONFIRMED)
    mend(database, "R1", NO_DEFECT)
    assert outcomes_of(database) == {Outcome.FALSE_CALL: 1}
    assert [event["outcome"] for event in told(database)] == ["no defect"]
    again = mend(database, "R1", REPAIRED)  # it was one after all
    assert (outcomes_of(database), again.supersedes) == ({Outcome.CONFIRMED: 1}, 1)
    assert [event["outcome"] for event in told(database)] == ["no defect", "repaired"]
    assert database.read(repairs.outcomes, ALL) == {REPAIRED: 1}


def test_what_nobody_confirmed_is_not_repaired_and_open_calls_come_first(database):
    verified(database, ng("R1"), ng("R2"), R1=Outcome.CONFIRMED)
    with pytest.raises(NothingToRepair):
        mend(database, "R1", REPAIRED)
    answer(database, 1, R2=Outcome.ACCEPTED)
    with pytest.raises(NothingToRepair):
        mend(database, "R2", REPAIRED)
    mend(database, "R1", REPAIRED)


@pytest.mark.parametrize("change", [repair.update().values(note="x"), repair.delete()])
def test_no_word_is_overwritten(database, change):
    verified(database, ng("R1"), R1=Outcome.CONFIRMED)
    mend(database, "R1", REPAIRED)
    with pytest.raises((DBAPIError, DatabaseError)), database.writing() as connection:
        connection.execute(change)


def test_ipc_cfx_hears_of_the_repair_with_the_defects_that_were_told(sqlite_database):
    verified(sqlite_database, ng("R1"), ng("R2"), R1=Outcome.CONFIRMED, R2=Outcome.CONFIRMED)
    mend(sqlite_database, "R1", REPAIRED)
    mend(sqlite_database, "R2", NO_DEFECT)
    [message] = bodies(sqlite_database, "UnitsRepaired")
    inspected = bodies(sqlite_database, "UnitsInspected")
    defects = [one["DefectsFound"][0]["UniqueIdentifier"] for one in inspected[0]["InspectedUnits"][0]["Inspections"]]
    [unit] = message["RepairedUnits"]
    assert (unit["UnitIdentifier"], unit["UnitPositionNumber"], unit["OverallResult"]) == ("k1", 1, "RepairSuccessful")
    assert [one["RelatedDefectIdentifiers"] for one in unit["Repairs"]] == [[defects[0]], [defects[1]]]
    assert [len(one["ReclassifiedDefects"]) for one in unit["Repairs"]] == [0, 1]
    assert unit["Repairs"][1]["ReclassifiedDefects"][0]["Verification"] == "DefectRejected"
    # The board is told again as verified, because an answer was corrected.
    assert [one["InspectedUnits"][0]["Verification"] for one in inspected] == [
        "NotVerifiedYet", "DefectConfirmed", "DefectConfirmed",
    ]  # fmt: skip
    assert message["TransactionId"] == inspected[0]["TransactionId"]


def test_a_list_that_is_cut_says_so(served, monkeypatch):
    monkeypatch.setattr(call_routes, "_MOST", 1)
    monkeypatch.setattr(board_page, "_LISTED", 1)
    verified(served.database, ng("R1"), R1=Outcome.CONFIRMED)
    assert served.operator.get("/api/v1/repairs").json()["more"] is False
    served.database.write(decided, "k2", ng("R1"))
    answer(served.database, 2, R1=Outcome.CONFIRMED)
    answered = served.operator.get("/api/v1/repairs").json()
    assert ([board["board"] for board in answered["boards"]], answered["more"]) == ([2], True)
    with closing(signed_in(served)) as person:
        assert "Older boards" in person.get("/repair").text


def test_the_api_takes_a_word_on_the_call_as_it_was_seen(served):
    verified(served.database, ng("R1"), R1=Outcome.CONFIRMED)
    path, word = "/api/v1/calls/1/repair", {"outcome": "repaired", "note": "new part"}
    problem(served.operator.post(path, json=word), 428, "no-match-given")
    problem(served.operator.post(path, json=word, headers={"If-Match": '"0"'}), 412, "changed")
    problem(served.feeder.post(path, json=word, headers={"If-Match": '"1"'}), 403, "wrong-role")
    assert [board["defects"] for board in served.operator.get("/api/v1/repairs").json()["boards"]] == [1]
    added = served.operator.post(path, json=word, headers={"If-Match": '"1"'})
    assert (added.status_code, added.headers["etag"]) == (201, '"2"')
    assert added.json()["by"] == "operator"
    assert served.operator.get("/api/v1/repairs").json() == {"boards": [], "more": False}
    with served.database.reading() as connection:
        [entry] = [entry for entry in audit.newest(connection) if entry.action == "repair"]
    assert (entry.actor, entry.about, entry.detail["outcome"]) == ("operator", "call 1", "repaired")
    figures = served.operator.get("/api/v1/stats/fpy").json()["figures"]
    assert {one["name"]: one["trials"] for one in figures}["repair_no_defect"] == 1


def test_a_scan_at_the_repair_station_opens_the_defects_of_the_board(served):
    verified(served.database, ng("R1"), ng("R2"), R1=Outcome.CONFIRMED, R2=Outcome.FALSE_CALL)
    with closing(signed_in(served, Role.OPERATOR)) as person:
        assert "/repair/1" in person.get("/repair").text
        found = person.get("/repair", params={"scan": " k1 "})
        assert (found.status_code, found.headers["location"]) == (303, "/repair/1")
        page = person.get("/repair/1").text
        assert 'data-outcome="scrapped"' in page
        assert ("/api/v1/calls/1/repair" in page, "/api/v1/calls/2/repair" in page) == (True, False)
        headers = {"If-Match": '"1"', "X-CSRF-Token": page.partition('name="csrf" content="')[2].partition('"')[0]}
        body = json.dumps({"outcome": "repaired"})
        assert person.post("/api/v1/calls/1/repair", content=body, headers=headers).status_code == 201
        assert 'aria-pressed="true"' in person.get("/repair/1").text
        assert "repair: <b>repaired</b>" in person.get("/boards/1").text
        assert person.get("/repair/9").status_code == 404


def test_a_client_that_knows_the_description_alone_answers_a_call_and_says_what_became_of_it(served):
    served.database.write(decided, "k1", ng("R1"))
    paths = served.operator.get("/openapi.json").json()["paths"]
    given = paths["/api/v1/calls/{id}"]["get"]["responses"]["200"]["headers"]
    headers = served.operator.get("/api/v1/calls/1").headers
    for word, body in (("verification", {"outcome": "confirmed"}), ("repair", {"outcome": "repaired"})):
        told = paths[f"/api/v1/calls/{{id}}/{word}"]["post"]
        [source] = given
        [needed] = [one["name"] for one in told["parameters"] if one["in"] == "header" and one["required"]]
        sent = served.operator.post(f"/api/v1/calls/1/{word}", json=body, headers={needed: headers[source]})
        assert (sent.status_code, "201" in told["responses"]) == (201, True)
        given, headers = told["responses"]["201"]["headers"], sent.headers
