"""A gate that answers real HTTP requests, on a thread of the test's process."""

import asyncio
import hashlib
import io
import shutil
import socket
import sqlite3
import threading
from contextlib import closing, contextmanager
from dataclasses import dataclass

import httpx
import numpy as np
import pytest
import uvicorn
from PIL import Image

from coe.serve import service_config
from coe.serve.clock import now_us
from coe.serve.database import keys, recipe_versions
from coe.serve.database.connecting import open_database
from coe.serve.enums import ActivationState, Role
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.server import make_server, open_gate
from coe.serve.service_config import Limits


class Ticks:
    """asyncio as uvicorn's loop sees it: a gate looks ten times as often whether it shall end."""

    def __getattr__(self, name):
        return getattr(asyncio, name)

    async def sleep(self, seconds):
        await asyncio.sleep(seconds / 10)


uvicorn.server.asyncio = Ticks()


@dataclass(frozen=True)
class Served:
    """A running gate, and a client for each role; `nobody` has no key."""

    gate: Gate
    server: uvicorn.Server
    address: str
    feeder: httpx.Client
    viewer: httpx.Client
    operator: httpx.Client
    engineer: httpx.Client
    nobody: httpx.Client

    def limit(self, **limits):
        self.gate.config = self.gate.config.model_copy(update={"limits": Limits.model_validate(limits)})

    @property
    def database(self):
        return self.gate.database


def client_of(address, key=""):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # The gates speak plain HTTP here. A client that could verify certificates takes 45 ms to read those of the system.
    return httpx.Client(base_url=address, headers=headers, timeout=20, verify=False)


@contextmanager
def serving(config, database):
    """Run a gate over a migrated database until the block ends."""
    held = {}
    with database.writing() as connection:
        for role in Role:
            held[role] = keys.generate()
            keys.add(connection, role.value, role, held[role], now_us=now_us())
    gate = open_gate(config)
    server = make_server(gate)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            threading.Event().wait(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        address = f"http://127.0.0.1:{port}"
        clients = {role.value: client_of(address, held[role]) for role in Role}
        clients["nobody"] = client_of(address)
        yield Served(gate, server, address, **clients)
        for client in clients.values():
            client.close()
    finally:
        server.should_exit = True
        thread.join()
        gate.close()


@contextmanager
def embedded(config, template, busy_s=5.0):
    """Open the embedded database of a config, a copy of a migrated one; it waits so long for a lock."""
    shutil.copy(template, config.data / "serve.db")
    database = open_database(config.database_url, busy_s=busy_s)
    yield database
    database.close()


def embedded_database(busy_s=5.0):
    """Return a fixture: the embedded database of the fixture `config`."""

    @pytest.fixture(name="database")
    def opened(config, sqlite_template):
        with embedded(config, sqlite_template, busy_s) as database:
            yield database

    return opened


@contextmanager
def locked(database):
    """Hold the lock of the database's file in another connection, as a backup program or a shell does."""
    with closing(sqlite3.connect(str(database.url.database), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def activated(database, rules, name="tiny", **content):
    with database.writing() as connection:
        recipe = recipe_versions.add(connection, name, {"rules": rules, **content}, by="ann", now_us=now_us())
        asked = recipe_versions.ask_activation(connection, recipe.id, by="ann", now_us=now_us())
        recipe_versions.answer(connection, asked.id, ActivationState.ACTIVE, now_us=now_us())
    return recipe


def png(seed=0, side=40):
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png", compress_level=1)
    return file.getvalue()


def put(client, key, name, content=None):
    content = png() if content is None else content
    headers = {"X-SHA256": hashlib.sha256(content).hexdigest()}
    return client.put(f"/api/v1/boards/{key}/views/{name}", content=content, headers=headers)


def hand_in(client, key, parts, **more):
    """Hand a board in with a different picture of each part, given as refdes: component."""
    for number, refdes in enumerate(parts):
        assert put(client, key, refdes, png(number)).status_code in (200, 201)
    views = {refdes: {"refdes": refdes, "component": component} for refdes, component in parts.items()}
    return client.post(f"/api/v1/boards/{key}", json={"recipe": "tiny", "views": views, **more})


def say(client, call, outcome, seen=0, **word):
    """Answer a call as it was seen: before its first word, or after so many changes."""
    body, headers = {"outcome": outcome, **word}, {"If-Match": f'"{seen}"'}
    return client.post(f"/api/v1/calls/{call}/verification", json=body, headers=headers)


def config_of(folder, **settings):
    """Return a config whose data lie in a folder, on a free port."""
    written = {"station": "test", "data": folder, "listen": {"port": 0}, **settings}
    return service_config.model_of(written).model_validate(written)


WITH_HEADER = {"X-CSRF-Token": "sign in"}


def signed_in(served, role=Role.OPERATOR, name=""):
    """Return a client that holds a session, as a browser does."""
    key = keys.generate()
    served.database.write(keys.add, name or f"person {role}", role, key, now_us=now_us())
    client = client_of(served.address)
    answer = client.post("/api/v1/session", json={"key": f" {key}\n"}, headers=WITH_HEADER)
    assert answer.json() == {"name": name or f"person {role}", "role": role.value}
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    return client


def csrf(page):
    return page.partition('name="csrf" content="')[2].partition('"')[0]


def problem(answer, status, kind):
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    body = answer.json()
    assert body["type"] == f"urn:coe:problem:{kind}"
    assert body["detail"]
    assert body["way_out"]
    assert "Traceback" not in answer.text
    return body


def raw(served, *parts, wait=lambda: None):
    host, port = served.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        for part in parts:
            connection.sendall(part)
            wait()
        answer = b""
        while received := connection.recv(65536):
            answer += received
    return answer
