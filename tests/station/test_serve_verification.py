"""People answer calls, once each, as they saw them; what becomes of defects at the repair station."""

import json
from contextlib import closing, contextmanager

import pytest
from serve_rows import NOON, accepted, answer, decided, decision, late, ng, the
from serving import client_of, csrf, hand_in, problem, say, signed_in
from test_serve_cfx import bodies

from coe.serve.clock import now_us
from coe.serve.database import audit, board_rows, call_rows, event_log, hourly, keys, repairs, verifications
from coe.serve.database.hourly import Window
from coe.serve.database.repairs import NothingToRepair
from coe.serve.database.tables import NewRepair
from coe.serve.enums import BoardState, EventKind, Outcome, RepairOutcome, Role
from coe.serve.gate import call_routes
from coe.serve.gate.access import CSRF_HEADER
from coe.serve.gate.pages import board_page

CONFIRMED = {"outcome": "confirmed"}


def with_calls(served, *calls, key="k1"):
    return served.database.write(decided, key, *calls)


def test_a_board_is_verified_once_its_last_call_is_answered(served):
    board = with_calls(served, ng("R1"), ng("R2"))
    first, second = served.operator.get("/api/v1/calls?status=open").json()["calls"]
    answer = say(served.operator, first["call"], "false call", note="a shadow")
    assert (answer.status_code, answer.headers["etag"]) == (201, '"1"')
    assert served.operator.get(f"/api/v1/boards/{board.id}").json()["state"] == BoardState.DECIDED
    say(served.operator, second["call"], "confirmed")
    assert served.operator.get(f"/api/v1/boards/{board.id}").json()["state"] == BoardState.VERIFIED
    assert served.operator.get("/api/v1/calls").json() == {"calls": []}
    newest, proof = served.database.read(event_log.after, 0)[-1], served.database.read(audit.prove)
    assert (newest.kind, newest.body["confirmed"]) == (EventKind.BOARD_VERIFIED, ["R2"])
    assert (proof.sound, proof.broken_id) == (2, None)


def test_a_second_word_supersedes_the_first_and_what_is_refused_writes_none(served):
    with_calls(served, ng())
    problem(served.operator.post("/api/v1/calls/1/verification", json=CONFIRMED), 428, "no-match-given")
    for client, status in ((served.feeder, 403), (served.nobody, 401)):
        assert say(client, 1, "confirmed").status_code == status
    assert [say(served.operator, *what).status_code for what in ((1, "fine"), (9, "confirmed"))] == [422, 404]
    assert served.operator.get("/api/v1/calls?status=all").status_code == 400
    say(served.operator, 1, "confirmed")
    problem(say(served.operator, 1, "confirmed"), 412, "changed")
    assert say(served.engineer, 1, "accepted", seen=1, label="chipped").json()["supersedes"] == 1
    words = served.operator.get("/api/v1/calls/1").json()["verifications"]
    assert [(word["outcome"], word["by"]) for word in words] == [("confirmed", "operator"), ("accepted", "engineer")]
    problem(served.operator.get("/api/v1/calls/1/reference"), 404, "no-reference")
    problem(served.operator.get("/api/v1/calls/1/picture"), 404, "not-found")


def test_two_operators_never_get_the_same_call(served):
    with_calls(served, ng("R1"), ng("R2"))
    key = keys.generate()
    served.database.write(keys.add, "bea", Role.OPERATOR, key, now_us=now_us())
    with client_of(served.address, key) as bea:
        mine, hers = (client.post("/api/v1/calls/next").json() for client in (served.operator, bea))
        assert (mine["refdes"], hers["refdes"]) == ("R1", "R2")
        assert served.operator.post("/api/v1/calls/next").status_code == 204, "another program may have the same key"
        claim = f"/api/v1/calls/{mine['call']}/claim"
        assert served.operator.post(claim).status_code == 200
        problem(say(bea, mine["call"], "confirmed"), 409, "conflict")
        assert bea.post(claim).status_code == 409
        served.operator.delete(claim)
        assert bea.post(claim).status_code == 200
        assert served.operator.post("/api/v1/calls/next").status_code == 204


@contextmanager
def browser(served):
    """Give a client with a session of its own by the operator's key, which sends what its pages send."""
    key = served.operator.headers["Authorization"].removeprefix("Bearer ")
    with client_of(served.address) as person:
        person.post("/api/v1/session", json={"key": key}, headers={CSRF_HEADER: "1"})
        person.headers[CSRF_HEADER] = csrf(person.get("/verify").text)
        yield person


def test_a_call_is_reserved_for_a_session_and_not_for_its_key(served):
    with_calls(served, ng("R1"), ng("R2"))
    with browser(served) as ann, browser(served) as bea:
        mine, hers = (person.post("/api/v1/calls/next").json() for person in (ann, bea))
        assert (mine["refdes"], hers["refdes"]) == ("R1", "R2")
        assert ann.post("/api/v1/calls/next").json()["refdes"] == "R1", "a page that is loaded again shows its call"
        path = f"/api/v1/calls/{mine['call']}"
        for other in (bea, served.operator):
            assert other.post(f"{path}/claim").status_code == 409
            assert other.delete(f"{path}/claim").status_code == 409
            assert say(other, mine["call"], "confirmed").status_code == 409
        assert say(ann, mine["call"], "confirmed").status_code == 201


def test_a_call_that_was_left_out_comes_again(database):
    with database.writing() as connection:
        decided(connection, "k1", ng("R1"), ng("R2"))
        times = {"by": "ann", "now_us": NOON, "until_us": NOON + 1}
        ids, after = [], {}
        for _ in range(3):
            after = {"after_id": call_rows.claim_next(connection, **times, **after).id}
            ids += after.values()
    assert ids == [1, 2, 1]


def test_answered_calls_are_listed_the_newest_first(served):
    with_calls(served, ng("R1"), late("R2"), ng("R3"))
    for id in (1, 2):
        say(served.operator, id, "confirmed")
    listed = served.operator.get("/api/v1/calls?status=answered").json()["calls"]
    assert [call["refdes"] for call in listed] == ["R2", "R1"]
    assert [call["refdes"] for call in served.operator.get("/api/v1/calls?after=0&limit=1").json()["calls"]] == ["R3"]


def test_an_amendment_between_look_and_answer_asks_to_look_again(served):
    board = with_calls(served, late())
    served.database.write(board_rows.amend, board_rows.Amendment(board.id, NOON + 2, [ng()]))
    problem(say(served.operator, 1, "confirmed"), 412, "changed")
    assert served.database.read(verifications.of_calls, [1]) == []


def test_an_escape_counts_for_the_newest_decided_board_of_its_serial(served):
    with served.database.writing() as connection:
        first = accepted(connection, "k1", serial="SN1")
        board_rows.decide(connection, decision(first))
        accepted(connection, "k2", serial="SN1")
    report = {"serial": "SN1", "refdes": "R3", "label": "cold joint", "found_at": "ICT"}
    answer = served.operator.post("/api/v1/escapes", json=report)
    assert (answer.status_code, answer.json()["board"]) == (201, first.id)
    assert served.operator.post("/api/v1/escapes", json=report).json() == answer.json(), "its sender had no answer"
    unknown = served.operator.post("/api/v1/escapes", json={"serial": "SN9"})
    assert (unknown.status_code, unknown.json()["board"]) == (201, None)
    assert served.operator.post("/api/v1/escapes", json={}).status_code == 422


def test_a_part_that_nobody_saw_is_neither_good_nor_accepted(served):
    hand_in(served.feeder, "k0", {"R1": "A"})
    with_calls(served, ng("R1", view_id=1), ng("R2"))
    with browser(served) as ann:
        for id, drawn in ((1, {}), (1, {"drawn": False}), (2, {"drawn": True})):
            for outcome in ("false call", "accepted"):
                problem(say(ann, id, outcome, **drawn), 422, "unseen")
        assert say(ann, 1, "false call", drawn=True).status_code == 201
    problem(say(served.operator, 2, "accepted", drawn=False), 422, "unseen")
    assert say(served.operator, 2, "confirmed", drawn=False).status_code == 201
    entries = served.database.read(audit.newest, limit=2)
    assert [entry.detail["drawn"] for entry in entries] == [False, True]


def test_calls_whose_answers_are_held_do_not_come_again(served):
    with_calls(served, ng("R1"), ng("R2"), ng("R3"))
    with browser(served) as ann:
        for query, refdes in (("without=1,3", "R2"), ("after=1&without=2,3", "R1")):
            assert ann.post(f"/api/v1/calls/next?{query}").json()["refdes"] == refdes
        assert ann.post("/api/v1/calls/next?without=1,2,3").status_code == 204
        problem(ann.post("/api/v1/calls/next?without=1,x"), 400, "bad-request")


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
    [entry] = [entry for entry in served.database.read(audit.newest) if entry.action == "repair"]
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
        headers = {"If-Match": '"1"', "X-CSRF-Token": csrf(page)}
        body = json.dumps({"outcome": "repaired"})
        assert person.post("/api/v1/calls/1/repair", content=body, headers=headers).status_code == 201
        assert 'aria-pressed="true"' in person.get("/repair/1").text
        assert "repair: <b>repaired</b>" in person.get("/boards/1").text
        assert person.get("/repair/9").status_code == 404
