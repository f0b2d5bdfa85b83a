"""People answer calls: once each, as they saw them."""

import re
from contextlib import contextmanager

from serve_rows import NOON, accepted, decided, decision, late, ng, the
from serving import client_of, hand_in, problem

from coe.board.parts_list import Side
from coe.serve.clock import now_us
from coe.serve.database import audit, board_rows, call_rows, event_log, keys, verifications
from coe.serve.database.tables import NewBoard
from coe.serve.enums import BoardState, EventKind, Role
from coe.serve.gate.access import CSRF_HEADER
from coe.serve.gate.call_routes import CLAIM_S

CONFIRMED = {"outcome": "confirmed"}


def with_calls(served, *calls, key="k1"):
    return served.database.write(decided, key, *calls)


def second_operator(served):
    key = keys.generate()
    served.database.write(keys.add, "bea", Role.OPERATOR, key, now_us=now_us())
    return {"Authorization": f"Bearer {key}"}


def test_a_board_is_verified_once_its_last_call_is_answered(served):
    board = with_calls(served, ng("R1"), ng("R2"))
    first, second = served.operator.get("/api/v1/calls?status=open").json()["calls"]
    answer = served.operator.post(
        f"/api/v1/calls/{first['call']}/verification",
        json={"outcome": "false call", "note": "a shadow"},
        headers={"If-Match": '"0"'},
    )
    assert (answer.status_code, answer.headers["etag"]) == (201, '"1"')
    assert served.operator.get(f"/api/v1/boards/{board.id}").json()["state"] == BoardState.DECIDED
    served.operator.post(f"/api/v1/calls/{second['call']}/verification", json=CONFIRMED, headers={"If-Match": '"0"'})
    assert served.operator.get(f"/api/v1/boards/{board.id}").json()["state"] == BoardState.VERIFIED
    assert served.operator.get("/api/v1/calls").json() == {"calls": []}
    with served.database.reading() as connection:
        newest = event_log.after(connection, 0)[-1]
        proof = audit.prove(connection)
    assert (newest.kind, newest.body["confirmed"]) == (EventKind.BOARD_VERIFIED, ["R2"])
    assert (proof.sound, proof.broken_id) == (2, None)


def test_a_second_word_supersedes_the_first_and_both_stay(served):
    with_calls(served, ng())
    path = "/api/v1/calls/1/verification"
    served.operator.post(path, json=CONFIRMED, headers={"If-Match": '"0"'})
    assert served.operator.post(path, json=CONFIRMED, headers={"If-Match": '"0"'}).status_code == 412
    again = served.engineer.post(path, json={"outcome": "accepted", "label": "chipped"}, headers={"If-Match": '"1"'})
    assert again.json()["supersedes"] == 1
    words = served.operator.get("/api/v1/calls/1").json()["verifications"]
    assert [(word["outcome"], word["by"]) for word in words] == [("confirmed", "operator"), ("accepted", "engineer")]


def test_without_if_match_nothing_is_written(served):
    with_calls(served, ng())
    answer = served.operator.post("/api/v1/calls/1/verification", json=CONFIRMED)
    assert (answer.status_code, answer.json()["type"]) == (428, "urn:coe:problem:no-match-given")
    assert served.operator.get("/api/v1/calls/1").json()["verifications"] == []


def test_feeders_do_not_verify_and_unknown_outcomes_are_refused(served):
    with_calls(served, ng())
    path, tag = "/api/v1/calls/1/verification", {"If-Match": '"0"'}
    assert served.feeder.post(path, json=CONFIRMED, headers=tag).status_code == 403
    assert served.nobody.post(path, json=CONFIRMED, headers=tag).status_code == 401
    assert served.feeder.get("/api/v1/calls").status_code == 403
    refused = served.operator.post(path, json={"outcome": "fine"}, headers=tag)
    assert refused.status_code == 422
    assert served.operator.get("/api/v1/calls?status=all").status_code == 400
    assert served.operator.post("/api/v1/calls/9/verification", json=CONFIRMED, headers=tag).status_code == 404


def test_two_operators_never_get_the_same_call(served):
    with_calls(served, ng("R1"), ng("R2"))
    bea = second_operator(served)
    mine = served.operator.post("/api/v1/calls/next").json()
    hers = served.nobody.post("/api/v1/calls/next", headers=bea).json()
    assert (mine["refdes"], hers["refdes"]) == ("R1", "R2")
    assert served.operator.post("/api/v1/calls/next").status_code == 204, "another program may have the same key"
    assert served.operator.post(f"/api/v1/calls/{mine['call']}/claim").status_code == 200
    refused = served.nobody.post(
        f"/api/v1/calls/{mine['call']}/verification", json=CONFIRMED, headers={**bea, "If-Match": '"0"'}
    )
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:coe:problem:conflict")
    assert served.nobody.post(f"/api/v1/calls/{mine['call']}/claim", headers=bea).status_code == 409
    served.operator.delete(f"/api/v1/calls/{mine['call']}/claim")
    assert served.nobody.post(f"/api/v1/calls/{mine['call']}/claim", headers=bea).status_code == 200
    assert served.operator.post("/api/v1/calls/next").status_code == 204


@contextmanager
def browser(served, key):
    """Give a client with a session of its own, which sends what its pages send."""
    with client_of(served.address) as person:
        person.post("/api/v1/session", json={"key": key}, headers={CSRF_HEADER: "1"})
        token = the(re.search(r'name="csrf" content="([^"]+)"', person.get("/verify").text))
        person.headers[CSRF_HEADER] = token[1]
        yield person


def test_a_call_is_reserved_for_a_session_and_not_for_its_key(served):
    with_calls(served, ng("R1"), ng("R2"))
    key = served.operator.headers["Authorization"].removeprefix("Bearer ")
    with browser(served, key) as ann, browser(served, key) as bea:
        mine, hers = (person.post("/api/v1/calls/next").json() for person in (ann, bea))
        assert (mine["refdes"], hers["refdes"]) == ("R1", "R2")
        assert ann.post("/api/v1/calls/next").json()["refdes"] == "R1", "a page that is loaded again shows its call"
        path, tag = f"/api/v1/calls/{mine['call']}", {"If-Match": '"0"'}
        for other in (bea, served.operator):
            assert other.post(f"{path}/claim").status_code == 409
            assert other.delete(f"{path}/claim").status_code == 409
            assert other.post(f"{path}/verification", json=CONFIRMED, headers=tag).status_code == 409
        assert ann.post(f"{path}/verification", json=CONFIRMED, headers=tag).status_code == 201


def test_a_claim_ends_by_itself(database):
    with database.writing() as connection:
        decided(connection, "k1", ng())
        end_us = NOON + CLAIM_S * 1_000_000
        assert call_rows.claim_next(connection, by="ann", now_us=NOON, until_us=end_us)
        assert call_rows.claim_next(connection, by="bea", now_us=end_us - 1, until_us=end_us) is None
        taken = call_rows.claim_next(connection, by="bea", now_us=end_us, until_us=end_us + 1)
    assert taken.claimed_by == "bea"


def test_a_call_that_was_left_out_comes_again(database):
    with database.writing() as connection:
        decided(connection, "k1", ng("R1"), ng("R2"))
        times = {"by": "ann", "now_us": NOON, "until_us": NOON + 1}
        first = the(call_rows.claim_next(connection, **times))
        second = the(call_rows.claim_next(connection, after_id=first.id, **times))
        again = call_rows.claim_next(connection, after_id=second.id, **times)
    assert (first.refdes, second.refdes) == ("R1", "R2")
    assert again.refdes == "R1"


def test_answered_calls_are_listed_the_newest_first(served):
    with_calls(served, ng("R1"), late("R2"), ng("R3"))
    for id in (1, 2):
        served.operator.post(f"/api/v1/calls/{id}/verification", json=CONFIRMED, headers={"If-Match": '"0"'})
    listed = served.operator.get("/api/v1/calls?status=answered").json()["calls"]
    assert [call["refdes"] for call in listed] == ["R2", "R1"]
    assert [call["refdes"] for call in served.operator.get("/api/v1/calls?after=0&limit=1").json()["calls"]] == ["R3"]


def test_an_amendment_between_look_and_answer_asks_to_look_again(served):
    board = with_calls(served, late())
    served.database.write(board_rows.amend, board_rows.Amendment(board.id, NOON + 2, [ng()]))
    answer = served.operator.post("/api/v1/calls/1/verification", json=CONFIRMED, headers={"If-Match": '"0"'})
    assert (answer.status_code, answer.json()["type"]) == (412, "urn:coe:problem:changed")
    assert served.database.read(verifications.of_calls, [1]) == []


def test_an_escape_counts_for_the_newest_decided_board_of_its_serial(served):
    with served.database.writing() as connection:
        first = accepted(connection, "k1", serial="SN1")
        board_rows.decide(connection, decision(first))
    report = {"serial": "SN1", "refdes": "R3", "label": "cold joint", "found_at": "ICT"}
    answer = served.operator.post("/api/v1/escapes", json=report)
    assert (answer.status_code, answer.json()["board"]) == (201, first.id)
    assert served.operator.post("/api/v1/escapes", json=report).json() == answer.json(), "its sender had no answer"
    unknown = served.operator.post("/api/v1/escapes", json={"serial": "SN9"})
    assert (unknown.status_code, unknown.json()["board"]) == (201, None)
    assert served.feeder.post("/api/v1/escapes", json=report).status_code == 403
    assert served.operator.post("/api/v1/escapes", json={}).status_code == 422


def test_a_part_that_nobody_saw_is_neither_good_nor_accepted(served):
    hand_in(served.feeder, "k0", {"R1": "A"})
    with_calls(served, ng("R1", view_id=1), ng("R2"))
    key = served.operator.headers["Authorization"].removeprefix("Bearer ")
    tag = {"If-Match": '"0"'}
    with browser(served, key) as ann:
        for id, drawn in ((1, {}), (1, {"drawn": False}), (2, {"drawn": True})):
            for outcome in ("false call", "accepted"):
                word = {"outcome": outcome, **drawn}
                answer = ann.post(f"/api/v1/calls/{id}/verification", json=word, headers=tag)
                problem(answer, 422, "unseen")
        seen = {"outcome": "false call", "drawn": True}
        assert ann.post("/api/v1/calls/1/verification", json=seen, headers=tag).status_code == 201
    path = "/api/v1/calls/2/verification"
    unseen = {"outcome": "accepted", "drawn": False}
    problem(served.operator.post(path, json=unseen, headers=tag), 422, "unseen")
    assert served.operator.post(path, json={**CONFIRMED, "drawn": False}, headers=tag).status_code == 201
    entries = served.database.read(audit.newest, limit=2)
    assert [entry.detail["drawn"] for entry in entries] == [False, True]


def test_a_missing_reference_is_told_from_one_that_cannot_be_shown(served):
    with_calls(served, ng("R1"))
    problem(served.operator.get("/api/v1/calls/1/reference"), 404, "no-reference")
    problem(served.operator.get("/api/v1/calls/1/picture"), 404, "not-found")


def test_calls_whose_answers_are_held_do_not_come_again(served):
    with_calls(served, ng("R1"), ng("R2"), ng("R3"))
    key = served.operator.headers["Authorization"].removeprefix("Bearer ")
    with browser(served, key) as ann:
        assert ann.post("/api/v1/calls/next?without=1,3").json()["refdes"] == "R2"
        assert ann.post("/api/v1/calls/next?after=1&without=2,3").json()["refdes"] == "R1"
        assert ann.post("/api/v1/calls/next?without=1,2,3").status_code == 204
        problem(ann.post("/api/v1/calls/next?without=1,x"), 400, "bad-request")


def test_a_board_is_found_by_its_serial_or_that_of_a_unit(served):
    with served.database.writing() as connection:
        id = accepted(connection, "k0").recipe_id
        for key, serial, units in (("k1", "SN/1", {}), ("k2", "SN/1", {}), ("SN9", "", {"serials": {"u1": "SN2"}})):
            new = NewBoard(key, "d" * 64, id, serial, "", Side.TOP, "", units, "feeder", NOON, None)
            board_rows.accept(connection, new)
    found = {
        serial: [
            one["key"] for one in served.operator.get("/api/v1/boards", params={"serial": serial}).json()["boards"]
        ]
        for serial in ("SN/1", "SN2", "SN9", "SN", "%")
    }
    assert found == {"SN/1": ["k2", "k1"], "SN2": ["SN9"], "SN9": [], "SN": [], "%": []}
