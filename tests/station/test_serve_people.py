"""People sign in with a badge or a PIN; who guesses is stopped."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import WITH_HEADER, client_of, problem
from typer.testing import CliRunner

from coe.errors import ConfigError
from coe.serve.command import app
from coe.serve.database import audit, keys
from coe.serve.database.connecting import open_database
from coe.serve.database.migration import migrate
from coe.serve.enums import Role
from coe.serve.gate.gate_state import LOCKED_S, MOST_TRIES, Admissions

BADGE, PIN = "04A2F1C9", "4711"


def known(database, name, badge="", pin=""):
    with database.writing() as connection:
        keys.add(connection, name, Role.OPERATOR, keys.generate(), now_us=1)
        return keys.set_secrets(connection, name, badge, pin, 2)


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
    key = keys.generate()
    served.database.write(keys.add, "bob", Role.ENGINEER, key, now_us=1)
    assert sign_in(served, key, "eva").json()["name"] == "bob"


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
        assert codes(BADGE, *["SN-2411-00071", "12345678", "R12"] * MOST_TRIES, BADGE[::-1]) == [
            *[200],
            *[401] * 3 * MOST_TRIES,
            200,
        ]
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


def test_the_command_makes_a_person_and_changes_badge_and_pin(config):
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
    database = open_database(f"sqlite:///{config.parent}/serve.db")
    with database.reading() as connection:
        [eva] = keys.all_keys(connection)
        details = [entry.detail for entry in audit.newest(connection)]
    database.close()
    assert (eva.role, eva.badge_hash, eva.pin_hash) == (Role.OPERATOR, None, keys.pin_hash("Eva", PIN))
    assert details == [{"badge": False, "pin": True}, {"badge": True, "pin": True}]
