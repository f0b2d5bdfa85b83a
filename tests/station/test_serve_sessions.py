"""Sessions of browsers: they end with their key, and are useless for a page of another site."""

import asyncio
import re
from collections import Counter
from contextlib import closing

import pytest
from serve_rows import decided, ng, the
from serving import WITH_HEADER, client_of, locked, signed_in
from sqlalchemy import select
from test_serve_storage_faults import csrf, station

from coe.serve.clock import now_us
from coe.serve.credentials import SESSIONS
from coe.serve.database import audit, keys
from coe.serve.database.tables import session
from coe.serve.enums import Role
from coe.serve.gate.access import COOKIE
from coe.serve.gate.gate_state import EVERY_S, MOST_SENDERS, Admissions, HeldSession
from coe.serve.gate.server import give_sign


def test_a_session_reads_and_needs_the_token_to_change_anything(served):
    served.database.write(decided, "k1", ng())
    with closing(signed_in(served)) as person:
        assert person.get("/api/v1/calls").status_code == 200
        path, word = "/api/v1/calls/1/verification", {"outcome": "confirmed"}
        assert person.post(path, json=word, headers={"If-Match": '"0"'}).status_code == 403
        wrong = {"If-Match": '"0"', "X-CSRF-Token": "x"}
        assert person.post(path, json=word, headers=wrong).status_code == 403
        assert person.delete("/api/v1/session").status_code == 403


def test_a_session_that_was_changed_or_whose_key_was_revoked_is_none(served):
    with closing(signed_in(served, name="ann")) as person:
        good = person.cookies[COOKIE]
        for forged in (good[:-1], good + "x", "x", "²"):
            answer = served.nobody.get("/api/v1/calls", headers={"Cookie": f"{COOKIE}={forged}".encode()})
            assert answer.status_code == 401
        served.database.write(keys.revoke, "ann", now_us())
        assert person.get("/api/v1/calls").status_code == 401


def test_a_session_that_was_ended_stays_ended_and_the_others_of_its_key_go_on(served):
    key = keys.generate()
    served.database.write(keys.add, "ann", Role.OPERATOR, key, now_us=now_us())

    def status_of(cookie):
        return served.nobody.get("/api/v1/calls", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code

    cookies = []
    for _ in range(2):
        with client_of(served.address) as person:
            person.post("/api/v1/session", json={"key": key}, headers=WITH_HEADER)
            cookies.append(person.cookies[COOKIE])
    token = served.nobody.get("/verify", headers={"Cookie": f"{COOKIE}={cookies[0]}"}).text
    csrf = the(re.search(r'name="csrf" content="([^"]+)"', token))
    headers = {"Cookie": f"{COOKIE}={cookies[0]}", "X-CSRF-Token": csrf[1]}
    assert served.nobody.delete("/api/v1/session", headers=headers).status_code == 204
    assert [status_of(cookie) for cookie in cookies] == [401, 200]
    (served.gate.config.data / SESSIONS).unlink()
    asyncio.run(served.gate.look())
    assert [status_of(cookie) for cookie in cookies] == [401, 401]


def test_a_session_ends_by_itself_and_leaves_the_database_later(sqlite_database):
    with sqlite_database.writing() as connection:
        key = keys.add(connection, "ann", Role.OPERATOR, keys.generate(), now_us=1)
        keys.begin_session(connection, key, "a", now_us=1, ends_us=10)
        found = [keys.of_session(connection, "a", at_us, longest_us=lambda role: 9) for at_us in (0, 1, 9, 10)]
        assert found == [None, key, key, None]  # at first the clock was set back
        keys.begin_session(connection, key, "b", now_us=10, ends_us=20)
        assert list(connection.scalars(select(session.c.name))) == ["b"]


def test_signing_in_needs_a_valid_key_and_a_header_of_the_page(served):
    assert served.nobody.post("/api/v1/session", json={"key": "coe_x"}, headers=WITH_HEADER).status_code == 401
    assert served.nobody.post("/api/v1/session", json={"key": "coe_x"}).status_code == 403


def test_the_secret_is_for_the_service_alone(served):
    with closing(signed_in(served)):
        path = served.gate.config.data / SESSIONS
        assert path.stat().st_mode & 0o777 == 0o600
        assert len(path.read_bytes()) == 32
        assert not list(path.parent.glob(f"{SESSIONS}.*"))


def test_behind_a_proxy_with_tls_the_cookie_goes_over_tls_alone(served):
    key = served.operator.headers["authorization"].removeprefix("Bearer ")
    for scheme in ("https", "http"):
        headers = {**WITH_HEADER, "X-Forwarded-Proto": scheme}
        answer = served.nobody.post("/api/v1/session", json={"key": key}, headers=headers)
        assert ("secure" in answer.headers["set-cookie"].lower()) == (scheme == "https")
        served.nobody.cookies.clear()


__all__ = ["station"]


def deeds(database):
    with database.reading() as connection:
        entries = [(entry.actor, entry.action) for entry in reversed(audit.newest(connection))]
        assert audit.prove(connection).broken_id is None
    return [deed for deed in entries if deed[1] in ("sign in", "sign out", "wrong key")]


def test_people_sign_in_and_out_while_nothing_can_be_written_and_it_is_written_later(station):
    known = signed_in(station, name="ann")
    key = keys.generate()
    station.database.write(keys.add, "bob", Role.ENGINEER, key, now_us=now_us())
    with closing(known), closing(client_of(station.address)) as new, locked(station.gate.database):
        assert new.post("/api/v1/session", json={"key": key}, headers=WITH_HEADER).status_code == 200
        assert new.get("/faults").status_code == 200
        assert new.get("/api/v1/calls").status_code == 200
        page, old = known.get("/faults").text, known.cookies[COOKIE]
        assert known.delete("/api/v1/session", headers={"X-CSRF-Token": csrf(page)}).status_code == 204
        assert station.nobody.get("/api/v1/calls", headers={"Cookie": f"{COOKIE}={old}"}).status_code == 401
        assert deeds(station.database) == [("ann", "sign in")]
    asyncio.run(give_sign(station.gate))
    assert deeds(station.database) == [("ann", "sign in"), ("bob", "sign in"), ("ann", "sign out")]


def test_a_session_whose_write_was_given_up_and_went_on_is_written_once(database):
    database.write(keys.add, "ann", Role.OPERATOR, key := keys.generate(), now_us=1)
    ann, door = database.read(keys.holder, key, 2), Admissions()
    door.begin(HeldSession("a", ann, "10.0.0.1", 2, 100))
    database.write(door.write, 3)
    for at_us in (4, 5):
        database.write(door.write, at_us)()
    assert deeds(database) == [("ann", "sign in")]


def test_wrong_keys_are_in_the_audit_and_cannot_fill_the_disk(sqlite_database):
    at_s = 0.0
    door = Admissions(lambda: at_s)

    def written():
        with sqlite_database.writing() as connection:
            door.write(connection, 1)()
            entries = [entry for entry in audit.newest(connection, limit=1000) if entry.action == "wrong key"]
        return Counter({entry.about: entry.detail["times"] for entry in entries})

    door.refuse("10.0.0.1")
    assert written() == {"10.0.0.1": 1}
    for number in range(1000):
        door.refuse(f"10.0.1.{number % 100}")
    assert written() == {"10.0.0.1": 1}  # a minute has not passed
    at_s = EVERY_S
    later = written()
    assert (len(later), later["others"], later.total()) == (1 + MOST_SENDERS + 1, 1000 - 10 * MOST_SENDERS, 1001)


@pytest.mark.parametrize("where", ["page", "API"])
def test_a_wrong_key_is_counted_and_a_missing_one_is_not(served, where):
    if where == "page":
        served.nobody.post("/api/v1/session", json={"key": "coe_x"}, headers=WITH_HEADER)
    else:
        served.nobody.get("/api/v1/state", headers={"Authorization": "Bearer coe_x"})
    served.nobody.get("/api/v1/state")
    asyncio.run(give_sign(served.gate))
    assert deeds(served.database) == [("nobody", "wrong key")]
