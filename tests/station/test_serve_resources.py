"""What many requests may cost: bodies in memory, decoded pictures, time on a slow disk, and threads."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from serving import hand_in, png, problem
from waiting import eventually

from coe.serve.gate import image_routes, operations, server
from coe.serve.gate.gate_state import Feed
from coe.serve.picture_folder import Receiving


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


def test_connections_that_are_too_many_are_refused(served, monkeypatch):
    """Each has a descriptor, and a gate without descriptors answers nobody."""
    monkeypatch.setattr(served.server.config, "limit_concurrency", 2)
    with connected(served), connected(served) as second:
        second.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert received(second).startswith(b"HTTP/1.1 503 ")
    eventually(lambda: served.nobody.get("/health/live").status_code == 200)


def test_neither_one_key_nor_all_take_every_connection_for_events(served):
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


def connected(served):
    host, port = served.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def received(client):
    return b"".join(iter(lambda: client.recv(65536), b""))


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
