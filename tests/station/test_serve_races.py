"""Many at the same moment: pictures that come and go, boards that are accepted, and what requests may cost together."""

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from brokers import answers, free_port
from certificates import Authority
from serve_rows import NOON, decided, ng
from serving import WITH_HEADER, activated, config_of, hand_in, png, problem, put, serving
from tiny_line import TINY
from waiting import eventually

from coe.helpers import system
from coe.serve import failpoints, retention
from coe.serve.clock import DAY_US, SECOND_US, now_us
from coe.serve.database import audit, board_rows, call_rows, event_log, keys, row_types, verifications, views
from coe.serve.database.connecting import open_database
from coe.serve.database.tables import Board, NewVerification, NewView
from coe.serve.enums import BoardState, Outcome, Role
from coe.serve.failpoints import Failpoint
from coe.serve.gate import image_routes, operations, recipe_routes, server
from coe.serve.gate.gate_state import Feed
from coe.serve.gate.problems import disk_failed
from coe.serve.picture_folder import Pictures, Receiving
from coe.serve.retention import sweep
from coe.serve.service_config import Retention


@pytest.fixture
def gate(tmp_path, database):
    """A gate over each kind of database, with the tiny board's recipe."""
    activated(database, TINY)
    url = database.url.render_as_string(hide_password=False)
    with serving(config_of(tmp_path, database=url), database) as running:
        yield running


def at_the_same_time(monkeypatch, work):
    """Begin work inside the transaction that accepts a board, once it was found in order; return what it returned."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))

    def hook(point):
        if point is Failpoint.BOARD_CHECKED:
            thread.start()
            thread.join(0.5)  # it may have to wait for this transaction

    def ended():
        thread.join()
        return results[0]

    monkeypatch.setattr(failpoints, "hook", hook)
    return ended


@pytest.mark.parametrize("other", ["replaced", "removed"])
def test_a_picture_is_neither_replaced_nor_removed_while_its_board_is_accepted(gate, monkeypatch, other):
    later_us = now_us() + 2 * DAY_US

    def work():
        if other == "replaced":
            return put(gate.feeder, "k", "R1", png(9)).status_code
        return sweep(gate.database, gate.gate.pictures, Retention(orphan_days=1), later_us)

    ended = at_the_same_time(monkeypatch, work)
    assert hand_in(gate.feeder, "k", {"R1": "A"}).status_code == 202
    assert ended() == (409 if other == "replaced" else 0)
    (view,) = gate.database.read(views.of_board, "k")
    assert gate.gate.pictures.path(view.file).read_bytes() == png(0)


def test_a_picture_that_is_still_needed_keeps_no_other(tmp_path, sqlite_database, monkeypatch):
    monkeypatch.setattr(retention, "TOGETHER", 1)
    pictures = Pictures(tmp_path / "pictures")
    pictures.prepare()
    with sqlite_database.writing() as connection:
        for number in range(3):
            file = pictures.receive()
            file.write(png(number))
            kept = file.keep()
            new = NewView(f"k{number}", "v", kept, file.sha256, file.size_bytes, 1600, now_us())
            views.add(connection, new)
            board = decided(connection, f"k{number}", ng())
            if number:
                (call,) = call_rows.of_board(connection, board.id)
                verifications.record_verification(connection, call, NewVerification(Outcome.CONFIRMED, now_us(), "op"))
        oldest = views.of_board(connection, "k0")[0]
    assert sweep(sqlite_database, pictures, Retention(), now_us() + 1000 * DAY_US) == 2
    assert pictures.path(oldest.file).exists()


def test_pictures_that_nobody_removes_cost_no_lock(tmp_path, sqlite_database):
    pictures = Pictures(tmp_path / "pictures")
    impatient = open_database(sqlite_database.url.render_as_string(), busy_s=0.01)
    with sqlite_database.writing() as connection:
        board_rows.undecided(connection)
        assert sweep(impatient, pictures, Retention(), now_us()) == 0
    impatient.close()


def test_two_people_who_answer_the_last_two_calls_at_a_time_verify_the_board(database):
    with database.writing() as connection:
        board = decided(connection, "k1", ng(), ng("R8"))
        defect, other_call = call_rows.of_board(connection, board.id)

    with ThreadPoolExecutor(1) as pool:
        with database.writing() as connection:
            verifications.record_verification(connection, other_call, NewVerification(Outcome.FALSE_CALL, NOON, "bob"))
            confirmed = NewVerification(Outcome.CONFIRMED, NOON, "ann")
            other = pool.submit(database.write, verifications.record_verification, defect, confirmed)
            assert not wait([other], 0.5).done, "it has to wait for this transaction"
        other.result()
    assert database.read(row_types.get, Board, board.id).state is BoardState.VERIFIED


def test_locks_of_events_come_before_that_of_the_audit(served, monkeypatch):
    """With the other order two requests of a PostgreSQL service would wait for each other."""
    taken = []
    for module in (audit, event_log):
        monkeypatch.setattr(module, "in_turn", lambda _, table: taken.append(table.name))
    monkeypatch.setattr(recipe_routes, "check", lambda *_: ())
    content = {**served.engineer.get("/api/v1/recipes/tiny/1").json()["content"], "within_s": 7}
    assert served.engineer.post("/api/v1/recipes/tiny", json=content).status_code == 201
    assert served.engineer.post("/api/v1/drain").status_code == 200
    assert served.operator.post("/api/v1/escapes", json={"serial": "S"}).status_code == 201
    assert taken == ["event", "audit"] * 3


def test_a_picture_that_may_get_its_row_is_no_stray(served):
    """The gate before, which was told to end, may have put it on the disk a moment ago."""
    pictures = served.gate.pictures
    files = []
    for age_s in (0, 2 * retention.STRAY_US / SECOND_US):
        receiving = pictures.receive()
        receiving.write(png())
        files.append(pictures.path(receiving.keep()))
        moment_s = files[-1].stat().st_mtime - age_s
        os.utime(files[-1], (moment_s, moment_s))
    for file in files:
        retention.remove_strays(served.database, pictures, int(file.parent.name, 16), now_us())
    assert [file.exists() for file in files] == [True, False]


def test_no_picture_is_kept_before_the_name_of_its_folder_is_on_the_disk(tmp_path, monkeypatch):
    pictures, written, go_on, saved = Pictures(tmp_path / "pictures"), threading.Event(), threading.Event(), []
    pictures.prepare()

    def save_names(folder):
        if folder == pictures.folder:
            written.set()
            assert go_on.wait(60)
        saved.append(folder)

    def keep():
        receiving = pictures.receive()
        receiving.write(png())
        return receiving.keep()

    monkeypatch.setattr(system, "save_names", save_names)
    names = iter(("ab1", "ab2"))
    monkeypatch.setattr("secrets.token_hex", lambda size: next(names))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(keep)
        assert written.wait(60)
        both = [first, pool.submit(keep)]
        ended_early = wait(both, 0.2).done
        go_on.set()
    assert not ended_early
    assert sorted(one.result() for one in both) == ["ab/ab1", "ab/ab2"]
    assert saved == [pictures.folder, *[pictures.folder / "ab"] * 2]


def until_tried(work, tries, times):
    """Run work of a gate that goes on for ever until it was tried so often."""

    async def run():
        running = asyncio.create_task(work)
        while len(tries) < times:
            assert not running.done()
            await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(run())


def test_a_bug_in_a_sign_of_life_ends_none_of_those_after_it(served, monkeypatch):
    tries = []

    async def fail(gate):
        tries.append(gate)
        raise ValueError("a bug")

    monkeypatch.setattr(server, "BEAT_S", 0.01)
    monkeypatch.setattr(server, "give_sign", fail)
    until_tried(server._beat(served.gate), tries, 2)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(13, "Permission denied"), ["retention"]),
        (ValueError("a bug"), ["retention"]),
        (disk_failed("does not answer"), []),  # it has a fault of its own, which ends with it
    ],
)
def test_pictures_that_cannot_be_removed_are_told_until_they_can(served, monkeypatch, error, told):
    tries = []

    def removes(*_, **__):
        tries.append([fault["kind"] for fault in served.operator.get("/api/v1/faults").json()["faults"]])
        if len(tries) == 1:
            raise error
        return len(tries) - 2

    monkeypatch.setattr(server, "TIDY_S", 0.01)
    monkeypatch.setattr(server, "sweep", removes)
    until_tried(server._tidy(served.gate), tries, 4)
    assert tries[:4] == [[], told, told, []]


def test_bodies_in_memory_have_a_bound_together(served, monkeypatch):
    monkeypatch.setattr(operations, "MOST_HELD_BYTES", 50_000)
    large = b'{"id": "' + b"x" * 60_000
    problem(served.feeder.post("/api/v1/boards/k", content=large), 503, "busy")
    assert served.gate.held_bytes == 0
    assert hand_in(served.feeder, "k", {"R1": "A"}).status_code == 202  # views go to the disk as they come
    assert served.gate.held_bytes == 0


def test_few_pictures_are_decoded_at_a_time(served, monkeypatch):
    assert hand_in(served.feeder, "k", {"R1": "A"}).status_code == 202
    now, most, lock, genuine = 0, 0, threading.Lock(), image_routes.decode

    def counted(data, **options):
        nonlocal now, most
        with lock:
            now += 1
            most = max(now, most)
        threading.Event().wait(0.05)
        with lock:
            now -= 1
        return genuine(data, **options)

    monkeypatch.setattr(image_routes, "decode", counted)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: served.operator.get("/api/v1/views/1/picture").status_code, range(6)))
    assert answers == [200] * 6
    assert most == 2


def test_a_slow_disk_is_no_slow_client(served, monkeypatch):
    genuine = Receiving.write

    def slow(self, part):
        threading.Event().wait(0.3)
        genuine(self, part)

    monkeypatch.setattr(Receiving, "write", slow)
    served.limit(body_s=0.2)
    content = png(side=700)
    assert len(content) > 1 << 20  # it is written in two parts
    answer = served.feeder.put("/api/v1/boards/k/views/v", content=content)
    assert answer.status_code in (201, 408), answer.text
    assert answer.headers["content-type"].startswith("application/")


def test_neither_one_key_nor_all_take_every_connection_for_events(served):
    assert served.server.config.limit_concurrency == 2 * served.gate.places.most  # uvicorn refuses the others
    served.gate.places.most = 4  # two of them for a key
    assert hand_in(served.feeder, "k", {"R1": "A"}).status_code == 202
    with ExitStack() as streams:
        for client in (served.operator, served.operator, served.viewer):
            assert streams.enter_context(client.stream("GET", "/api/v1/events")).status_code == 200
        for path in ("/api/v1/events", "/api/v1/boards/1?wait=1"):
            problem(served.operator.get(path), 429, "too-many")
        assert served.operator.get("/api/v1/boards/1").status_code == 200
        assert served.engineer.get("/api/v1/boards/1?wait=0.01").status_code == 200
        assert streams.enter_context(served.engineer.stream("GET", "/api/v1/events")).status_code == 200
        problem(served.engineer.get("/api/v1/events"), 429, "too-many")
    eventually(lambda: served.operator.get("/api/v1/boards/1?wait=0.01").status_code == 200)


@pytest.mark.parametrize(("soft", "most"), [(1024, 384), (4256, 2000), (100_000, 2000), (64, 32)])
def test_a_gate_has_as_many_connections_as_it_has_descriptors_for(soft, most, monkeypatch):
    monkeypatch.setattr(server.system, "raise_descriptor_limit", lambda wanted: soft)
    assert server.most_connections() == most


class Counted:
    """An event that counts how often anybody asks for its id."""

    asked = 0

    def __init__(self, id):
        self._id = id

    @property
    def id(self):
        Counted.asked += 1
        return self._id


def test_a_client_that_waits_costs_as_much_as_it_has_not_seen(sqlite_database):
    async def wait():
        feed = Feed(sqlite_database)
        feed._newest.extend(Counted(id) for id in range(1, 1001))
        feed.last_id = 1000
        Counted.asked = 0
        for _ in range(100):
            assert [event.id for event in await feed.after(998, 1.0)] == [999, 1000]
        assert Counted.asked < 1000
        assert [event.id for event in await feed.after(0, 1.0)] == list(range(1, 1001))
        assert await feed.after(1000, 0.01) == []

    asyncio.run(wait())


def test_an_event_that_has_not_happened_is_no_place_to_begin(served):
    """A client of a service that was restored from a backup would miss everything until that event."""
    newest = served.gate.feed.last_id
    problem(served.operator.get("/api/v1/events", headers={"Last-Event-ID": str(newest + 1)}), 409, "conflict")


CONFIG = Path(__file__).parents[2] / "docs" / "operations" / "nginx.conf"


@contextmanager
def proxied(served, folder, authority, *changes):
    """Run nginx as the documentation has it, on a free port and with these changes; yield its address."""
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("there is no nginx here; install Debian's package `nginx-light`")
    port = free_port()
    certificate, private_key = authority.certificate("proxy")
    text = CONFIG.read_text(encoding="utf-8")
    for old, new in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/nginx/coe/certificate.pem", str(certificate)),
        ("/etc/nginx/coe/private_key.pem", str(private_key)),
        ("http://127.0.0.1:8080", served.address),
        *changes,
    ):
        assert old in text
        text = text.replace(old, new)
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = f"daemon off; pid {folder}/pid; error_log stderr; events {{}} http {{ access_log off; {paths} {text} }}"
    (folder / "nginx.conf").write_text(main, encoding="utf-8")
    command = [program, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: answers(port))
        yield f"https://localhost:{port}"
    finally:
        process.terminate()
        process.wait()


def trusting(authority, address, **more):
    context = ssl.create_default_context(cafile=authority.path)
    return httpx.Client(base_url=address, verify=context, timeout=30, trust_env=False, **more)


@pytest.mark.slow
def test_boards_and_events_go_through_the_proxy_and_sessions_are_of_tls(served, tmp_path):
    plant = Authority(tmp_path, "plant")
    with (
        proxied(served, tmp_path, plant) as address,
        trusting(plant, address, headers=served.feeder.headers) as feeder,
        trusting(plant, address, headers=served.operator.headers) as operator,
        trusting(plant, address) as person,
    ):
        assert put(feeder, "k0", "R1", png(side=900)).status_code == 201
        with operator.stream("GET", "/api/v1/events") as events:
            lines = events.iter_lines()
            assert next(lines) == ": begins"
            assert hand_in(feeder, "k1", {"R1": "A"}).status_code == 202
            assert any("board.accepted" in line for line in lines)
            events.close()
        key = keys.generate()
        served.database.write(keys.add, "eva", Role.OPERATOR, key, now_us=now_us())
        answer = person.post("/api/v1/session", json={"key": key}, headers=WITH_HEADER)
        assert "secure" in answer.headers["set-cookie"].lower()
        assert person.get("/").status_code == 200


@pytest.mark.slow
def test_slow_and_many_clients_are_the_proxys_business(served, tmp_path):
    plant = Authority(tmp_path, "plant")
    changes = (("client_header_timeout 10s", "client_header_timeout 1s"), ("coe_each 200", "coe_each 1"))
    with proxied(served, tmp_path, plant, *changes) as address:
        context = ssl.create_default_context(cafile=plant.path)
        with (
            socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as silent,
        ):
            silent.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n")
            assert silent.recv(1) == b"", "it was sent away"
        with (
            trusting(plant, address, headers=served.operator.headers) as one,
            trusting(plant, address) as other,
            one.stream("GET", "/api/v1/events") as events,
        ):
            assert events.status_code == 200
            assert other.get("/health/live").status_code == 503
