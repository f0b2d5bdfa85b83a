"""People sign in with a key, a badge or a PIN; sessions end with their key; who guesses is stopped."""

import asyncio
import io
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from operators import BADGE, known
from serve_rows import decided, ng
from serving import WITH_HEADER, client_of, csrf, locked, problem, signed_in
from sqlalchemy import select
from typer.testing import CliRunner

from coe.cli.common import Exit
from coe.errors import ConfigError
from coe.serve import command
from coe.serve.clock import now_us
from coe.serve.command import app
from coe.serve.credentials import SESSIONS
from coe.serve.database import audit, keys
from coe.serve.database.connecting import open_database
from coe.serve.database.migration import migrate
from coe.serve.database.tables import session
from coe.serve.enums import Role
from coe.serve.gate.access import COOKIE
from coe.serve.gate.gate_state import EVERY_S, LOCKED_S, MOST_SENDERS, MOST_TRIES, Admissions, HeldSession
from coe.serve.gate.server import give_sign


def key_of(served, name, role=Role.OPERATOR):
    key = keys.generate()
    served.database.write(keys.add, name, role, key, now_us=now_us())
    return key


def test_a_session_reads_and_needs_the_token_to_change_anything(served):
    served.database.write(decided, "k1", ng())
    with closing(signed_in(served)) as person:
        assert person.get("/api/v1/calls").status_code == 200
        path, word = "/api/v1/calls/1/verification", {"outcome": "confirmed"}
        for token in ({}, {"X-CSRF-Token": "x"}):
            assert person.post(path, json=word, headers={"If-Match": '"0"', **token}).status_code == 403
        assert person.delete("/api/v1/session").status_code == 403
    for headers, status in ((WITH_HEADER, 401), ({}, 403)):
        assert served.nobody.post("/api/v1/session", json={"key": "coe_x"}, headers=headers).status_code == status


def test_a_session_that_was_changed_or_whose_key_was_revoked_is_none(served):
    with closing(signed_in(served, name="ann")) as person:
        good = person.cookies[COOKIE]
        for forged in (good[:-1], good + "x", "x", "²".encode().decode("latin-1"), "é"):
            answer = served.nobody.get("/api/v1/calls", headers={"Cookie": f"{COOKIE}={forged}".encode("latin-1")})
            assert answer.status_code == 401
        served.database.write(keys.revoke, "ann", now_us())
        assert person.get("/api/v1/calls").status_code == 401


def test_a_session_that_was_ended_stays_ended_and_the_others_of_its_key_go_on(served):

    def status_of(cookie):
        return served.nobody.get("/api/v1/calls", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code

    key, cookies = key_of(served, "ann"), []
    for _ in range(2):
        with client_of(served.address) as person:
            person.post("/api/v1/session", json={"key": key}, headers=WITH_HEADER)
            cookies.append(person.cookies[COOKIE])
    token = served.nobody.get("/verify", headers={"Cookie": f"{COOKIE}={cookies[0]}"}).text
    headers = {"Cookie": f"{COOKIE}={cookies[0]}", "X-CSRF-Token": csrf(token)}
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


def test_behind_a_proxy_with_tls_the_cookie_goes_over_tls_alone(served):
    key = served.operator.headers["authorization"].removeprefix("Bearer ")
    for scheme in ("https", "http"):
        headers = {**WITH_HEADER, "X-Forwarded-Proto": scheme}
        answer = served.nobody.post("/api/v1/session", json={"key": key}, headers=headers)
        assert ("secure" in answer.headers["set-cookie"].lower()) == (scheme == "https")
        served.nobody.cookies.clear()


def deeds(database):
    with database.reading() as connection:
        entries = [(entry.actor, entry.action) for entry in reversed(audit.newest(connection))]
        assert audit.prove(connection).broken_id is None
    return [deed for deed in entries if deed[1] in ("sign in", "sign out", "wrong key")]


def test_people_sign_in_and_out_while_nothing_can_be_written_and_it_is_written_later(station):
    known, key = signed_in(station, name="ann"), key_of(station, "bob", Role.ENGINEER)
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


PIN = "4711"


def sign_in(served, key, name=""):
    with client_of(served.address) as person:
        answered = person.post("/api/v1/session", json={"key": key, "name": name}, headers=WITH_HEADER)
        if answered.status_code == 200:
            assert person.get("/verify").status_code == 200
        return answered


def test_a_badge_or_a_name_with_its_pin_begins_a_session(served):
    assert known(served.database, "eva", BADGE, PIN)
    assert sign_in(served, f"{BADGE}\n").json() == {"name": "eva", "role": "operator"}
    assert sign_in(served, PIN, " eva ").json()["name"] == "eva"
    problem(sign_in(served, PIN), 401, "no-key")
    problem(sign_in(served, "4712", "eva"), 401, "no-key")
    problem(sign_in(served, PIN, "bob"), 401, "no-key")
    # A badge is for pages alone.
    assert served.nobody.get("/api/v1/state", headers={"Authorization": f"Bearer {BADGE}"}).status_code == 401
    served.database.write(keys.revoke, "eva", 3)
    problem(sign_in(served, BADGE), 401, "no-key")


def test_who_guesses_must_wait_and_a_key_still_opens(served):
    assert known(served.database, "eva", "", PIN)
    for guess in range(MOST_TRIES):
        problem(sign_in(served, f"000{guess}", "eva"), 401, "no-key")
    problem(sign_in(served, PIN, "eva"), 429, "too-many")
    assert sign_in(served, key_of(served, "bob"), "eva").json()["name"] == "bob"


def test_guesses_that_come_at_a_time_are_no_more_than_those_one_by_one(served):
    with ThreadPoolExecutor(4 * MOST_TRIES) as pool:
        codes = Counter(one.status_code for one in pool.map(lambda pin: sign_in(served, pin, "eva"), ["0000"] * 20))
    assert codes == {401: MOST_TRIES, 429: 20 - MOST_TRIES}


def test_nobody_with_a_badge_may_guess_at_those_of_others(served):
    assert known(served.database, "eva", BADGE)
    codes = [sign_in(served, badge).status_code for _ in range(MOST_TRIES) for badge in ("04A2F1C0", BADGE)]
    assert codes == [*[401, 200] * (MOST_TRIES - 1), 401, 429]


def test_scans_that_are_no_badges_keep_nobody_from_changing_the_person(served):
    assert known(served.database, "eva", BADGE)
    assert known(served.database, "bob", BADGE[::-1])

    def codes(*scans):
        return [person.post("/api/v1/session", json={"key": scan}, headers=WITH_HEADER).status_code for scan in scans]

    with client_of(served.address) as person:
        no_badges = ["SN-2411-00071", "12345678", "R12"] * MOST_TRIES
        assert codes(BADGE, *no_badges, BADGE[::-1]) == [200, *[401] * len(no_badges), 200]
        assert codes(*["04A2F1C0"] * MOST_TRIES, BADGE) == [*[401] * MOST_TRIES, 429]


def test_wrong_tries_are_forgotten_after_a_right_one_or_a_while():
    at_s = 0.0
    door = Admissions(lambda: at_s)

    def wrong(times):
        for _ in range(times):
            door.tried("eva", is_right=False)
        return door.wait_s("eva")

    assert wrong(MOST_TRIES - 1) == 0
    door.tried("eva", is_right=True)
    assert wrong(MOST_TRIES - 1) == 0
    assert wrong(1) == LOCKED_S
    assert door.wait_s("bob") == 0
    at_s = LOCKED_S
    assert door.wait_s("eva") == 0
    assert wrong(1) == 0


def test_no_two_people_have_one_badge(database):
    known(database, "eva", BADGE)
    with pytest.raises(ConfigError):
        known(database, "bob", BADGE)
    known(database, "ann")  # several people have none
    with database.writing() as connection:
        assert keys.set_secrets(connection, "eva", "", "", 2)
        keys.revoke(connection, "ann", 3)
        assert not keys.set_secrets(connection, "ann", BADGE, "", 4)


@pytest.mark.parametrize(
    ("badge", "pin"), [("12345", ""), ("coe_1234567", ""), ("a\x00bcdefg", ""), ("", "123"), ("", "abcd")]
)
def test_a_badge_or_a_pin_that_is_too_short_is_refused(badge, pin):
    with pytest.raises(ConfigError):
        keys.check_secrets(badge, pin)


@pytest.fixture
def config(tmp_path):
    database = open_database(f"sqlite:///{tmp_path}/serve.db")
    migrate(database)
    database.close()
    path = tmp_path / "serve.yaml"
    path.write_text("station: test\ndata: .\n")
    return path


def test_the_command_makes_a_person_and_changes_badge_and_pin(config, call, monkeypatch):
    run = CliRunner().invoke

    def said(name, *more, words):
        return run(app, ["set-person", str(config), name, *more], input=words).exit_code

    assert said("Eva", words=f"{BADGE}\n{PIN}\n") != 0  # without a role she is nobody yet
    assert said("Eva", "--role", "operator", words=f"{BADGE}\n{PIN}\n") == 0
    assert said("Eva", "--role", "engineer", words=f"{BADGE}\n{PIN}\n") != 0
    assert said("Bob", "--role", "engineer", words="\n\n") != 0  # nobody has the key that he would get
    for name in ("", " Bob", "Bob\n", "B\u200bob", "B" * 300):  # as which nobody could sign in
        assert said(name, "--role", "operator", words=f"\n{PIN}\n") != 0, name
    assert said("Eva", words=f"\n{PIN}\n") == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # nobody answers
    assert call("set-person", config, "Eva", command=command).status == Exit.INTERRUPTED
    assert "Badge" not in call("set-person", config, "Bob", command=command).err  # told before anything is asked
    database = open_database(f"sqlite:///{config.parent}/serve.db")
    with database.reading() as connection:
        [eva] = keys.all_keys(connection)
        details = [entry.detail for entry in audit.newest(connection)]
    database.close()
    assert (eva.role, eva.badge_hash, eva.pin_hash) == (Role.OPERATOR, None, keys.pin_hash("Eva", PIN))
    assert details == [{"badge": False, "pin": True}, {"badge": True, "pin": True}]
