"""Requests of those who mean no good, and of those who do not know better: refused with problem JSON, and no harm."""

import errno
import gzip
import socket
import struct
import threading
import zlib

import pytest
from serving import hand_in, png, problem, put, raw

from coe.config import MAX_IMAGE_PIXELS
from coe.serve.clock import now_us
from coe.serve.database import board_rows, fault_log, keys
from coe.serve.database.board_rows import BoardFilter
from coe.serve.database.connecting import open_database
from coe.serve.database.tables import NewFault
from coe.serve.enums import FaultKind, Process, Role
from coe.serve.gate.app import OPERATIONS
from coe.serve.gate.storage import OwnFaults
from coe.serve.picture_folder import Receiving
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
    given = ("coe_wrong", "x" * 5000, "'; DROP TABLE board; --", ended)
    headers = [{"Authorization": f"Bearer {key}"} for key in given] + [
        {"Authorization": word} for word in ("Bearer", "Basic YTpi")
    ]
    headers.append({})
    for operation in GUARDED:
        for header in headers:
            answer = served.nobody.request(operation.method, path_of(operation), headers=header)
            problem(answer, 401, "no-key")


def test_a_key_of_another_role_does_nothing(served):
    for operation in GUARDED:
        assert operation.roles is not None
        for role in set(Role) - operation.roles:
            client = getattr(served, role.value)
            problem(client.request(operation.method, path_of(operation)), 403, "wrong-role")


LEADING_OUT = (
    "..%2f..%2fetc%2fpasswd",
    "..",
    "%2e%2e%2f%2e%2e%2fx",
    "a%00b",
    "a%0ab",
    "%1b[2J",
    "x" * 300,
    "%e2%80%aex",
)


def test_no_name_leads_out_of_the_folder(served):
    data = served.gate.config.data

    def paths():
        return {*data.rglob("*"), *data.parent.iterdir()}

    before = paths()
    for name in LEADING_OUT:
        for path in (f"/api/v1/boards/{name}/views/v", f"/api/v1/boards/k/views/{name}"):
            request = served.feeder.build_request("PUT", "/", content=png())
            request.url = request.url.copy_with(raw_path=path.encode())
            assert served.feeder.send(request).status_code in (400, 404, 405), name
    assert {path.name for path in paths() - before if not path.is_dir()} <= {"serve.db-wal", "serve.db-shm"}


def test_names_that_look_like_statements_are_names(served):
    key = "k'); DROP TABLE board; --"
    answer = hand_in(served.feeder, key, {"R1": "A"}, serial="' OR 1=1 --", work_order="<script>alert(1)</script>")
    assert answer.status_code == 202
    with served.database.reading() as connection:
        assert board_rows.find(connection, BoardFilter(serial="' OR 1=1 --"), limit=9)
        assert not board_rows.find(connection, BoardFilter(serial="%"), limit=9)


def test_a_body_that_is_too_large_is_refused_with_and_without_its_length(served):
    served.limit(body=50_000)
    problem(put(served.feeder, "k", "v", b"x" * 60_000), 413, "too-large")
    answer = served.feeder.put("/api/v1/boards/k/views/v", content=iter([b"x" * 10_000] * 6))
    problem(answer, 413, "too-large")
    problem(served.feeder.post("/api/v1/boards/k", content=b"[" * 60_000), 413, "too-large")
    assert files_of(served) == []


def bomb(side):
    """Return a PNG of `side` x `side` pixels in a few bytes."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def test_a_picture_with_too_many_pixels_is_refused_by_its_header(served):
    body = problem(put(served.feeder, "k", "v", bomb(100_000)), 413, "too-large")
    assert "10,000,000,000 pixels" in body["detail"]
    assert files_of(served) == []


def test_what_is_no_picture_is_refused(served):
    for content in (b"", b"GIF89a", b"\x89PNG", b"<svg/>", b"\xff\xd8\xff\xd9", b"%PDF-1.7"):
        problem(put(served.feeder, "k", "v", content), 415, "not-a-picture")
    assert files_of(served) == []


def test_a_picture_that_was_damaged_on_the_way_is_refused(served):
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
    for _ in range(500):
        if files_of(served) == []:
            break
        threading.Event().wait(0.01)
    assert files_of(served) == []


NO_OBJECTS = (b"{", b"NaN", b'{"recipe": NaN}', b"\xff\xfe", b'{"recipe": "a", "recipe": "b"}', b"[" * 9999)


@pytest.mark.parametrize("path", ["/api/v1/boards/k1", "/api/v1/boards/k1/views/R1"])
def test_a_body_that_is_compressed_is_refused_as_such(served, path):
    send = served.feeder.put if "views" in path else served.feeder.post
    answer = send(path, content=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
    problem(answer, 415, "encoded")
    assert answer.headers["accept-encoding"] == "identity"


def test_a_body_that_is_no_object_of_json_is_refused(served):
    for content in NO_OBJECTS:
        problem(served.feeder.post("/api/v1/boards/k", content=content), 400, "bad-request")
    for content in (b"", b"[]", b'"x"'):
        problem(served.feeder.post("/api/v1/boards/k", content=content), 422, "invalid")


NOWHERE = {
    "/api/v1/boards/99999999999999999999999": 404,
    "/api/v1/boards/1?wait=1e9": 400,
    "/api/v1/boards/1?wait=nan": 400,
    "/api/v1/boards/1?wiat=1": 400,
    "/api/v1/boards/1": 404,
    "/api/v1/events?after=-1": 400,
    "/api/v1/recipes/tiny/99999999999": 404,
    "/api/v1/nothing": 404,
    "/api/v1/boards/1/": 404,
    "/%2Fevil.example/": 404,
}


def test_a_path_that_leads_nowhere_is_answered(served):
    for path, status in NOWHERE.items():
        answer = served.engineer.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), path
        assert "location" not in answer.headers


def test_every_answer_forbids_what_a_page_does_not_need(served):
    for answer in (served.nobody.get("/health/live"), served.nobody.get("/nowhere")):
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers


def test_a_full_disk_refuses_pictures_and_is_told_until_there_is_room(served, monkeypatch):
    def no_room(self, part):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Receiving, "write", no_room)
        problem(put(served.feeder, "k", "v"), 507, "disk-full")
        (fault,) = served.operator.get("/api/v1/faults").json()["faults"]
        assert fault["kind"] == "disk full"
    assert files_of(served) == []
    assert put(served.feeder, "k", "v").status_code == 201
    assert served.operator.get("/api/v1/faults").json()["faults"] == []


def test_a_full_disk_before_the_gate_was_started_is_no_fault_once_there_is_room(served):
    with served.database.writing() as connection:
        fault_log.note(connection, NewFault(Process.WEB, FaultKind.DISK_FULL, "of the gate before"), now_us())
        fault_log.note(connection, NewFault(Process.WORKER, FaultKind.DISK_FULL, "of the line"), now_us())
    served.gate.faults = OwnFaults(now_us)
    assert put(served.feeder, "k", "v").status_code == 201
    (fault,) = served.operator.get("/api/v1/faults").json()["faults"]
    assert fault["process"] == "worker"


def test_a_locked_database_sends_clients_away_and_comes_back(served):
    patient = served.gate.database
    served.gate.database = open_database(patient.url.render_as_string(), busy_s=0.1)
    with patient.writing() as connection:
        connection.exec_driver_sql("UPDATE board SET reason = reason")
        answer = put(served.feeder, "k", "v")
        problem(answer, 503, "busy")
        assert answer.headers["retry-after"]
        assert served.operator.get("/api/v1/state").status_code == 200
    assert put(served.feeder, "k", "v").status_code == 201
    assert len(files_of(served)) == 1
    patient.close()


def test_a_fault_is_cleared_by_name(served):
    fault = served.database.write(fault_log.note, NewFault(Process.WORKER, FaultKind.SINK, "x"), now_us())
    assert served.engineer.post(f"/api/v1/faults/{fault.id}/clear").status_code == 204
    problem(served.engineer.post(f"/api/v1/faults/{fault.id}/clear"), 404, "not-found")
    (row,) = served.operator.get("/api/v1/faults", params={"all": 1}).json()["faults"]
    assert (row["cleared_by"], row["message"]) == ("engineer", "x")


def test_the_limits_are_those_that_are_documented():
    assert (Limits().body, Limits().pixels) == (256_000_000, 89_000_000)


def test_every_picture_that_the_gate_accepts_can_be_decoded_by_the_line(monkeypatch):
    assert Limits(pixels=MAX_IMAGE_PIXELS).pixels == MAX_IMAGE_PIXELS
    with pytest.raises(ValueError, match="must be at most 100000000"):
        Limits(pixels=MAX_IMAGE_PIXELS + 1)
    monkeypatch.setenv("COE_MAX_MEGAPIXELS", "250")
    assert Limits(pixels=250_000_000).pixels == 250_000_000
