"""Requests of those who mean no good, or do not know better: refused with problem JSON, and no harm."""

import gzip
import json
import socket
import struct
import threading
import time
import zlib
from unittest.mock import Mock

import pytest
from serve_rows import NOON, decided, ng, the
from serving import WITH_HEADER, client_of, png, problem, put, raw
from sqlalchemy import make_url, text
from sqlalchemy.exc import TimeoutError as NoConnection
from stations import LIGHT
from tiny_line import TINY
from waiting import eventually

from coe.config import MAX_IMAGE_PIXELS
from coe.core import Verdict
from coe.errors import ConfigError
from coe.helpers.strict_model import of_json
from coe.serve.clock import now_us
from coe.serve.database import call_rows, fault_log, keys, recipe_versions
from coe.serve.database.connecting import DatabaseError, DatabaseErrorKind, open_database, translated
from coe.serve.database.tables import NewCall, NewFault
from coe.serve.enums import CallReason, FaultKind, Process, Role
from coe.serve.gate import recipe_routes, state_routes
from coe.serve.gate.app import OPERATIONS
from coe.serve.recipe_content import RecipeContent
from coe.serve.request import BoardRequest
from coe.serve.service_config import Limits

GUARDED = [operation for operation in OPERATIONS if operation.roles is not None]


def path_of(operation):
    return operation.path.replace(":int", "").format(key="k1", name="tiny", id=1, version=1)


def files_of(served):
    return [path for path in served.gate.pictures.folder.rglob("*") if path.is_file()]


def test_without_a_valid_key_nothing_is_done(served):
    with served.database.writing() as connection:
        ended = keys.generate()
        keys.add(connection, "ended", Role.ENGINEER, ended, now_us=now_us(), expires_us=now_us() - 1)
    given = [f"Bearer {key}" for key in ("coe_wrong", "x" * 5000, "'; DROP TABLE board; --", ended)]
    headers = [{"Authorization": word} for word in (*given, "Bearer", "Basic YTpi")]
    for header, operation in [*((header, GUARDED[0]) for header in headers), *(({}, one) for one in GUARDED)]:
        problem(served.nobody.request(operation.method, path_of(operation), headers=header), 401, "no-key")


def test_a_key_of_another_role_does_nothing(served):
    for operation in GUARDED:
        for role in set(Role) - operation.roles:
            client = getattr(served, role.value)
            problem(client.request(operation.method, path_of(operation)), 403, "wrong-role")


def test_no_name_leads_out_of_the_folder(served):
    data = served.gate.config.data

    def paths():
        return {*data.rglob("*"), *data.parent.iterdir()}

    before, out = paths(), ("..%2f..%2fetc%2fpasswd", "..", "%2e%2e%2f%2e%2e%2fx")
    for name in (*out, "a%00b", "a%0ab", "%1b[2J", "x" * 300, "%e2%80%aex", "SN%E9"):
        for path in (f"/api/v1/boards/{name}/views/v", f"/api/v1/boards/k/views/{name}"):
            request = served.feeder.build_request("PUT", "/", content=png())
            request.url = request.url.copy_with(raw_path=path.encode())
            assert served.feeder.send(request).status_code in (400, 404, 405), name
    assert {path.name for path in paths() - before if not path.is_dir()} <= {"serve.db-wal", "serve.db-shm"}


def test_a_body_that_is_too_large_is_refused_with_and_without_its_length_and_who_has_no_key_sends_little(served):
    served.limit(body=50_000)
    problem(put(served.feeder, "k", "v", b"x" * 60_000), 413, "too-large")
    answer = served.feeder.put("/api/v1/boards/k/views/v", content=iter([b"x" * 10_000] * 6))
    problem(answer, 413, "too-large")
    problem(served.feeder.post("/api/v1/boards/k", content=b"[" * 60_000), 413, "too-large")
    problem(served.nobody.post("/api/v1/session", content=b"x" * 5000, headers=WITH_HEADER), 413, "too-large")
    assert files_of(served) == []


def bomb(side):
    """Return a PNG of `side` x `side` pixels in a few bytes."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def test_what_is_no_picture_has_too_many_pixels_or_was_damaged_on_the_way_is_refused(served):
    for content in (b"", b"GIF89a", b"\x89PNG", b"<svg/>", b"\xff\xd8\xff\xd9", b"%PDF-1.7"):
        problem(put(served.feeder, "k", "v", content), 415, "not-a-picture")
    body = problem(put(served.feeder, "k", "v", bomb(100_000)), 413, "too-large")
    assert "10,000,000,000 pixels" in body["detail"]
    answer = served.feeder.put("/api/v1/boards/k/views/v", content=png(), headers={"X-SHA256": "0" * 64})
    problem(answer, 422, "torn")
    assert files_of(served) == []


def head(served, length):
    key = served.feeder.headers["authorization"]
    return (
        f"PUT /api/v1/boards/k/views/v HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n"
        f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
    ).encode()


def test_a_client_that_sends_too_slowly_is_sent_away(served):
    served.limit(body_s=0.2)
    answer = raw(served, head(served, 1000), b"x" * 10)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"urn:coe:problem:too-slow" in answer
    assert files_of(served) == []


def test_a_client_that_leaves_in_the_middle_leaves_nothing(served):
    host, port = served.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head(served, 100_000) + png())
    eventually(lambda: files_of(served) == [])


@pytest.mark.parametrize("path", ["/api/v1/boards/k1", "/api/v1/boards/k1/views/R1"])
def test_a_body_that_is_compressed_is_refused_as_such(served, path):
    send = served.feeder.put if "views" in path else served.feeder.post
    answer = send(path, content=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
    problem(answer, 415, "encoded")
    assert answer.headers["accept-encoding"] == "identity"


def test_a_body_that_is_no_object_of_json_is_refused(served):
    for content in (b"{", b"NaN", b'{"recipe": NaN}', b"\xff\xfe", b'{"recipe": "a", "recipe": "b"}', b"[" * 9999):
        problem(served.feeder.post("/api/v1/boards/k", content=content), 400, "bad-request")
    for content in (b"", b"[]", b'"x"'):
        problem(served.feeder.post("/api/v1/boards/k", content=content), 422, "invalid")


def test_a_path_that_leads_nowhere_is_answered(served):
    for path, status in (
        ("/api/v1/boards/99999999999999999999999", 404),
        ("/api/v1/boards/1?wait=1e9", 400),
        ("/api/v1/boards/1?wait=nan", 400),
        ("/api/v1/boards/1?wiat=1", 400),
        ("/api/v1/boards/1", 404),
        ("/api/v1/events?after=-1", 400),
        ("/api/v1/recipes/tiny/99999999999", 404),
        ("/api/v1/nothing", 404),
        ("/api/v1/boards/1/", 404),
        ("/%2Fevil.example/", 404),
    ):
        answer = served.engineer.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), path
        assert "location" not in answer.headers


def test_every_picture_that_the_gate_accepts_can_be_decoded_by_the_line(monkeypatch):
    assert Limits(pixels=MAX_IMAGE_PIXELS).pixels == MAX_IMAGE_PIXELS
    with pytest.raises(ValueError, match="must be at most 100000000"):
        Limits(pixels=MAX_IMAGE_PIXELS + 1)
    monkeypatch.setenv("COE_MAX_MEGAPIXELS", "250")
    assert Limits(pixels=250_000_000).pixels == 250_000_000


def test_a_number_that_no_column_holds_is_no_row(served):
    for path in ("boards", "recipes/tiny"):
        many = "9" * 5000  # Python reads no number of so many digits
        problem(served.engineer.get(f"/api/v1/{path}/{many}"), 404, "not-found")
    assert served.engineer.get("/api/v1/recipes/tiny/0001").json()["version"] == 1
    body = {"recipe": "tiny", "version": 10**30, "views": {}}
    problem(served.feeder.post("/api/v1/boards/k", json=body), 422, "invalid")


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


def test_a_body_of_many_faults_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"2,001 entries do not fit"):
        of_json({f"k{number}": 1 for number in range(2000)}, BoardRequest)
    with pytest.raises(ConfigError, match=r"'a{200}' is not a key") as caught:
        of_json({"recipe": "a", "a" * 1_000_000: 1}, BoardRequest)
    assert len(str(caught.value)) < 1000


def test_nobody_waits_for_a_large_body_of_another_client(served):
    """The body holds the interpreter for a while, and the loop goes on between its parts."""
    body = json.dumps({"recipe": "tiny", "views": {f"v{i}": {"refdes": "a", "component": 1} for i in range(60_000)}})
    answers, ended = [], threading.Event()

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
    # Browsers leave tabs and ends of lines out.
    for way in ("/\t/e", "/\n/e", "/\r\\e", "//e", "https://e", "/\\e", "javascript:"):
        assert 'data-next="/"' in served.nobody.get("/login", params={"next": way}).text


def test_every_answer_forbids_what_a_page_does_not_need_also_that_to_a_fault_of_the_service(served, monkeypatch):
    answers = [served.nobody.get(path) for path in ("/health/live", "/nowhere")]
    monkeypatch.setattr(state_routes, "why_not_ready", Mock(side_effect=RuntimeError("secret words")))
    fault = served.nobody.get("/health/ready")
    assert "secret words" not in problem(fault, 500, "fault")["detail"]
    assert fault.headers["cache-control"] == "no-store"
    for answer in (*answers, fault):
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers


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


DIRTY = "it said \x00, \x1b[2J and \udcff\nand more"
CLEAN = "it said \\x00, \\x1b[2J and \\xff\nand more"


def test_a_recipe_of_another_version_of_the_service_ends_no_line(shop):
    past = {"rules": TINY, "a key of the past": 1}
    old = shop.database.write(recipe_versions.add, "old", past, by="ann", now_us=NOON)
    broken, good = shop.accept({"R1": LIGHT}, recipe=old, key="k1"), shop.accept({"R1": LIGHT}, key="k2")
    shop.decide(broken, good)
    assert (shop.state(good).verdict, shop.state(broken).verdict) == (Verdict.OK, Verdict.REVIEW)
    assert "a key of the past" in shop.state(broken).reason
    assert [call.reason for call in shop.calls(broken)] == [CallReason.FAILED]


@pytest.mark.parametrize("refdes", ["", "R" * 201, "R\x001", "R\u202e"])
def test_a_part_has_a_name_that_every_column_holds(refdes):
    with pytest.raises(ConfigError, match="parts"):
        of_json({"rules": TINY, "parts": {refdes: "A"}}, RecipeContent)


@pytest.mark.parametrize("field", ["parts", "feeders"])
@pytest.mark.parametrize("other", ["Gro\u0308\u00dfe", " Gr\u00f6\u00dfe", "Gr\u00f6\u00dfe\t"])
def test_of_two_names_that_are_one_none_is_lost(field, other):
    with pytest.raises(ConfigError, match=field):
        of_json({"rules": TINY, field: {"Gr\u00f6\u00dfe": "A", other: "B"}}, RecipeContent)


def test_every_database_takes_what_an_experts_code_says(database):
    failed = NewCall("R2", "R0402", Verdict.REVIEW, CallReason.FAILED, detail=DIRTY)
    with database.writing() as connection:
        board = decided(connection, "k1", ng(), failed)
        fault = fault_log.note(connection, NewFault(Process.WORKER, FaultKind.INSPECTOR_FAILED, DIRTY), NOON)
        again = fault_log.note(connection, NewFault(Process.WORKER, FaultKind.INSPECTOR_FAILED, DIRTY), NOON)
        assert (fault.message, again.message, again.times) == (CLEAN, CLEAN, 2)
        call = call_rows.of_component(connection, board.id, "R2")
        assert call.detail == CLEAN
        raised = NewCall("R2", "R0402", Verdict.NG, CallReason.EXPERT, detail=DIRTY)
        assert call_rows.raise_verdict(connection, call, raised)


# A database that cannot be used is an error that passes, whatever the driver calls it, and does not end the feed


def test_a_damaged_file_is_a_database_that_cannot_be_read(sqlite_database):
    file = the(sqlite_database.url.database)
    sqlite_database.shorten_log()
    sqlite_database.close()
    with open(file, "r+b") as damaged:
        damaged.seek(4096)
        damaged.write(b"\xff" * 40 * 4096)
    database = open_database(str(sqlite_database.url))
    with pytest.raises(DatabaseError, match="malformed") as error, database.reading() as connection:
        connection.execute(text("SELECT * FROM board, event, recipe, view")).all()
    assert error.value.kind is DatabaseErrorKind.LOST
    database.close()


def test_connections_that_all_wait_for_a_database_are_an_error():
    with (
        pytest.raises(DatabaseError, match="all connections are in use") as error,
        translated(make_url("sqlite:///it.db")),
    ):
        raise NoConnection("QueuePool limit of size 16 overflow 10 reached")
    assert error.value.kind is DatabaseErrorKind.LOST


def test_the_feed_goes_on_after_a_time_without_a_free_connection(served, monkeypatch):
    """It would say no event ever after, and clients that wait for a decision would wait in vain."""
    feed, refuse = served.gate.feed, Mock(side_effect=NoConnection("no connection"))
    with monkeypatch.context() as patch:
        patch.setattr(served.database.engine, "connect", refuse)
        eventually(lambda: feed.hurry() or refuse.call_count >= 2)
    before = feed.last_id
    assert served.engineer.post("/api/v1/drain").status_code == 200
    eventually(lambda: feed.last_id > before)
