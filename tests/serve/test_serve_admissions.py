"""People at the door: they get in and out while the database takes nothing, and the audit chain has who came."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing

import pytest
from serve_rows import read, write
from serving import WITH_HEADER, Served, client_of, locked, signed_in
from test_serve_storage_faults import csrf, station

from coe.serve.clock import now_us
from coe.serve.database import audit, keys
from coe.serve.database.connecting import Database
from coe.serve.enums import Role
from coe.serve.gate.access import COOKIE
from coe.serve.gate.admissions import EVERY_S, MOST_SENDERS, Admissions, HeldSession
from coe.serve.gate.server import give_sign

__all__ = ["station"]


def deeds(database: Database) -> list[tuple[str, str]]:
    with database.reading() as connection:
        entries = [(entry.actor, entry.action) for entry in reversed(audit.newest(connection))]
        assert audit.prove(connection).broken_id is None
    return [deed for deed in entries if deed[1] in ("sign in", "sign out", "wrong key")]


def test_people_sign_in_and_out_while_nothing_can_be_written_and_it_is_written_later(station: Served) -> None:
    known = signed_in(station, name="ann")
    key = keys.generate()
    with station.database.writing() as connection:
        keys.add(connection, "bob", Role.ENGINEER, key, now_us=now_us())
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


def test_a_session_whose_write_was_given_up_and_went_on_is_written_once(database: Database) -> None:
    write(database, keys.add, "ann", Role.OPERATOR, key := keys.generate(), now_us=1)
    ann, door = read(database, keys.holder, key, 2), Admissions()
    door.begin(HeldSession("a", ann, "10.0.0.1", 2, 100))
    write(database, door.write, 3)
    for at_us in (4, 5):
        write(database, door.write, at_us)()
    assert deeds(database) == [("ann", "sign in")]


def test_wrong_keys_are_in_the_audit_and_cannot_fill_the_disk(sqlite_database: Database) -> None:
    at_s = 0.0
    door = Admissions(lambda: at_s)

    def written() -> Counter[str]:
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
def test_a_wrong_key_is_counted_and_a_missing_one_is_not(served: Served, where: str) -> None:
    if where == "page":
        served.nobody.post("/api/v1/session", json={"key": "coe_x"}, headers=WITH_HEADER)
    else:
        served.nobody.get("/api/v1/state", headers={"Authorization": "Bearer coe_x"})
    served.nobody.get("/api/v1/state")
    asyncio.run(give_sign(served.gate))
    assert deeds(served.database) == [("nobody", "wrong key")]
