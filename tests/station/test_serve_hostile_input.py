"""Values that break a parser, a driver or a header: refused in one sentence, never a fault of the service."""

import json
import threading
import time

import pytest
from serving import WITH_HEADER, client_of, problem, raw

from coe.errors import ConfigError
from coe.helpers.strict_model import of_json
from coe.serve.clock import now_us
from coe.serve.database import keys
from coe.serve.enums import Role
from coe.serve.gate import recipe_routes, state_routes
from coe.serve.gate.access import COOKIE
from coe.serve.request import BoardRequest

HUGE = "9" * 5000
"""Python reads no number of so many digits."""


PATHS = (f"/api/v1/boards/{HUGE}", f"/api/v1/recipes/tiny/{HUGE}")


def test_a_number_that_no_column_holds_is_no_row(served):
    for path in PATHS:
        problem(served.engineer.get(path), 404, "not-found")
    assert served.engineer.get("/api/v1/recipes/tiny/0001").json()["version"] == 1
    body = {"recipe": "tiny", "version": 10**30, "views": {}}
    problem(served.feeder.post("/api/v1/boards/k", json=body), 422, "invalid")


def test_a_cookie_that_is_no_ascii_is_no_session(served):
    answer = served.nobody.get("/api/v1/state", headers={b"Cookie": f"{COOKIE}=é".encode("latin-1")})
    problem(answer, 401, "no-key")


def test_a_filter_that_no_database_can_answer_is_refused(served):
    for query in ("until=0001-01-01", "until=9999-12-31T23:59:59", "recipe=%00", "recipe=%1b[2J"):
        problem(served.operator.get(f"/api/v1/stats/fpy?{query}"), 400, "bad-request")
        assert served.operator.get(f"/statistics?{query}").status_code == 400


def test_a_name_of_other_letters_stands_in_the_location(served, monkeypatch):
    monkeypatch.setattr(recipe_routes, "check", lambda *_: ())
    content = served.engineer.get("/api/v1/recipes/tiny/1").json()["content"]
    for name, written in (("板", "%E6%9D%BF"), ("a?b#c", "a%3Fb%23c")):
        answer = served.engineer.post(f"/api/v1/recipes/{written}", json=content)
        assert (answer.status_code, answer.headers["location"]) == (201, f"/api/v1/recipes/{written}/1")
        assert served.engineer.get(answer.headers["location"]).json()["name"] == name


def test_a_note_has_lines_and_no_hidden_characters(served):
    for note in ("\x00", "\x1b[2J", "\u202e"):
        problem(served.operator.post("/api/v1/escapes", json={"serial": "S", "note": note}), 422, "invalid")
    assert served.operator.post("/api/v1/escapes", json={"serial": "S", "note": "a\r\n\tb"}).status_code == 201


def test_who_has_no_key_sends_little(served):
    problem(served.nobody.post("/api/v1/session", content=b"x" * 5000, headers=WITH_HEADER), 413, "too-large")


def test_a_body_of_many_faults_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"2,001 entries do not fit"):
        of_json({f"k{number}": 1 for number in range(2000)}, BoardRequest)
    with pytest.raises(ConfigError, match=r"'a{200}' is not a key") as caught:
        of_json({"recipe": "a", "a" * 1_000_000: 1}, BoardRequest)
    assert len(str(caught.value)) < 1000


def test_nobody_waits_for_a_large_body_of_another_client(served):
    """The body holds the interpreter for a while, and the loop goes on between its parts."""
    body = json.dumps({"recipe": "tiny", "views": {f"v{i}": {"refdes": "a", "component": 1} for i in range(60_000)}})
    answers = []
    ended = threading.Event()

    def ask():
        with client_of(served.address) as client:
            while not ended.is_set():
                client.get("/health/live")
                answers.append(time.monotonic())

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        begun = time.monotonic()
        problem(served.feeder.post("/api/v1/boards/k", content=body), 422, "invalid")
        during = [moment for moment in answers if begun < moment]
    finally:
        ended.set()
        asking.join()
    assert len(during) >= 5


def test_no_answer_names_another_host(served):
    """Clients of HTTP correct such paths before they are sent, so these are sent as they are."""
    for target in (b"//evil.example/", b"//evil.example/verify", b"/\\evil.example", b"http://evil.example/verify"):
        answer = raw(served, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 404"), target
        assert b"location:" not in answer.lower()
    for host in (b"evil.example", b"[", b"a?b"):
        answer = raw(served, b"GET /verify HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
        assert b"location: /login?next=" in answer, host
        assert b"evil" not in answer
    for way in ("/\t/evil.example", "/\n/evil.example", "/\r\\evil.example"):  # browsers leave these characters out
        assert 'data-next="/"' in served.nobody.get("/login", params={"next": way}).text


def test_what_is_no_request_is_refused(served):
    lengths = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde"
    for request in (b"\x16\x03\x01\x00\r\n\r\n", b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", lengths):
        assert raw(served, request).startswith(b"HTTP/1.1 400"), request[:40]


def test_a_fault_of_the_service_has_the_headers_of_every_answer(served, monkeypatch):
    def broken(*_):
        raise RuntimeError("secret words")

    monkeypatch.setattr(state_routes, "why_not_ready", broken)
    answer = served.nobody.get("/health/ready")
    assert "secret words" not in problem(answer, 500, "fault")["detail"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


def test_a_stream_of_events_ends_with_its_key(served, monkeypatch):
    monkeypatch.setattr(state_routes, "ALIVE_S", 0.05)
    key = keys.generate()
    served.database.write(keys.add, "guest", Role.OPERATOR, key, now_us=now_us())
    headers = {"Authorization": f"Bearer {key}"}
    with served.nobody.stream("GET", "/api/v1/events", headers=headers) as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": begins"
        assert any(line == ": alive" for line in lines)
        served.database.write(keys.revoke, "guest", now_us())
        for _ in lines:  # it comes to an end
            pass
    problem(served.nobody.get("/api/v1/events", headers=headers), 401, "no-key")
