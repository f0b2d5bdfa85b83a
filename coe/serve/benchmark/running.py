"""A service that runs for a benchmark, and its HTTP. It ends when the block ends, however the block ends."""

from __future__ import annotations

import hashlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import select

from coe.errors import CoeError
from coe.pictures.found_image import FoundImage
from coe.serve import service_config as configs
from coe.serve.benchmark.processes import BenchDevice, Stamp
from coe.serve.creation import CONFIG, KEYS, Wanted, create
from coe.serve.database import tables
from coe.serve.database.connecting import Database, open_database
from coe.serve.database.database_errors import DatabaseError
from coe.serve.enums import EventKind, Process
from coe.serve.service_config import ServeConfig

STARTS_S = 180.0
"""How long a service may take until it would decide a board."""
_END_S = 60.0
_LOOK_S = 0.05


class ServiceFailed(CoeError):
    """The service that is measured did not start, or refused what the benchmark asked of it."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a request: status and body, and the seconds from its first byte sent to its last byte read."""

    status: int
    body: bytes
    took_s: float

    @property
    def data(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Client:
    """One connection that stays open, with the key of a role. One thread at a time."""

    def __init__(self, port: int, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"Authorization": f"Bearer {key}"}

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answered:
        """Send a request; raises OSError or HTTPException if nobody answers.

        A server closes connections that were idle for some seconds, and the client learns of it at its next request; so
        it sends that once more, as clients do. All requests of a benchmark may be repeated.
        """
        was_open = self._connection.sock is not None
        began = time.perf_counter()
        try:
            return self._sent(method, path, body, headers, began)
        except (ConnectionError, http.client.RemoteDisconnected):
            if not was_open:
                raise
            return self._sent(method, path, body, headers, began)

    def _sent(self, method: str, path: str, body: bytes, headers: dict[str, str], began: float) -> Answered:
        try:
            self._connection.request(method, path, body or None, self._headers | headers)
            answer = self._connection.getresponse()
            read = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        return Answered(answer.status, read, time.perf_counter() - began)

    def put(self, key: str, name: str, content: bytes) -> Answered:
        """Hand a view in; raises ServiceFailed if it is refused."""
        digest = hashlib.sha256(content).hexdigest()
        answer = self.send("PUT", f"/api/v1/boards/{key}/views/{name}", content, **{"X-SHA256": digest})
        return _expected(answer, 200, 201)

    def post_board(self, key: str, body: Mapping[str, Any]) -> Answered:
        """Hand a board in whose views are there; raises ServiceFailed if it is refused."""
        content = json.dumps(body).encode()
        return _expected(
            self.send("POST", f"/api/v1/boards/{key}", content, **{"Content-Type": "application/json"}), 202
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _expected(answer: Answered, *statuses: int) -> Answered:
    if answer.status not in statuses:
        raise ServiceFailed(f"the service answered {answer.status}: {answer.body.decode(errors='replace')[:300]}")
    return answer


@dataclass(frozen=True, slots=True)
class Moments:
    """When the last component of a board had its result, and when its decision was on the disk; seconds since 1970."""

    board_id: int
    found_s: float
    decided_s: float
    components: int


class Service:
    """A service that answers; see `running`."""

    def __init__(self, config: ServeConfig, keys: Mapping[str, str], stamps: Path, process: psutil.Process) -> None:
        self.config, self._keys, self._stamps, self._process = config, keys, stamps, process
        self.database: Database = open_database(config.database_url)

    def client(self, role: str) -> Client:
        """Return a new connection with the key of a role."""
        return Client(self.config.listen.port, self._keys[role])

    def key(self, role: str) -> str:
        """Return the key of a role."""
        return self._keys[role]

    @property
    def processes(self) -> dict[Process, psutil.Process]:
        """The processes of the service."""
        found = {Process.SUPERVISOR: self._process}
        for child in self._process.children():
            words = child.cmdline()
            found |= {process: child for process in (Process.GATE, Process.WORKER) if process.word in words}
        return found

    @contextmanager
    def worker_stopped(self) -> Iterator[None]:
        """Let the worker stand still during the block: what comes in waits."""
        process = self.processes[Process.WORKER]
        try:
            while not self._stands_outside(process):
                time.sleep(_LOOK_S)
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def _stands_outside(self, process: psutil.Process) -> bool:
        """Stop a process; if it holds the lock of the database, so that nobody else could write, let it go on."""
        process.send_signal(signal.SIGSTOP)
        impatient = open_database(self.config.database_url, busy_s=_LOOK_S)
        try:
            with impatient.writing():
                return True
        except DatabaseError:
            process.send_signal(signal.SIGCONT)
            return False
        finally:
            impatient.close()

    def hand_in(self, key: str, pictures: Sequence[FoundImage], *, within_s: float | None = None) -> int:
        """Hand a board in with a picture of each component, and return its id; raises ServiceFailed."""
        feeder = self.client("feeder")
        for number, picture in enumerate(pictures):
            feeder.put(key, f"P{number}", numbered(picture.path.read_bytes(), number))
        answer = feeder.post_board(key, board_of(self.recipe, pictures, within_s))
        feeder.close()
        return int(answer.data["board"])

    @property
    def recipe(self) -> str:
        """The name of the recipe that is active."""
        return self.config.station

    def wait_for(self, board_ids: Sequence[int], timeout_s: float) -> None:
        """Wait until boards are decided; raises ServiceFailed if they are not in time."""
        ends_s, asking = time.monotonic() + timeout_s, self.client("operator")
        for id in board_ids:
            while asking.send("GET", f"/api/v1/boards/{id}?wait=10").data["verdict"] is None:
                if time.monotonic() > ends_s:
                    raise ServiceFailed(f"board {id} was not decided within {timeout_s:g} s")
        asking.close()

    def moments(self, board_ids: Sequence[int]) -> list[Moments]:
        """Return when these boards, which are decided, had their findings and their decisions."""
        found: dict[int, list[float]] = {}
        decided: list[float] = []
        for what, moment_s, board_id in self.stamps():
            if what == Stamp.DECIDED:
                decided.append(moment_s)
            else:
                found.setdefault(board_id, []).append(moment_s)
        by_board = dict(zip(self._in_order(len(decided)), decided, strict=True))
        return [
            Moments(id, max(found[id]), by_board[id], len(found[id]))
            for id in board_ids
            if id in by_board and id in found
        ]

    def stamps(self) -> Iterator[tuple[Stamp, float, int]]:
        """Yield what was stamped, when, in seconds since 1970, and of which board."""
        for line in self._stamps.read_text(encoding="utf-8").splitlines():
            what, moment_s, board = line.split()
            yield Stamp(what), float(moment_s), int(board)

    def _in_order(self, number: int) -> list[int]:
        """Return the boards of the newest decisions, in their order; raises ServiceFailed if there are fewer."""
        is_decision = tables.event.c.kind == EventKind.BOARD_DECIDED
        query = select(tables.event.c.board_id).where(is_decision).order_by(tables.event.c.id.desc()).limit(number)
        with self.database.reading() as connection:
            ids = [int(id) for id in connection.scalars(query)][::-1]
        if len(ids) < number:
            raise ServiceFailed(f"{number} decisions were stamped, and {len(ids)} are in the database")
        return ids


def numbered(content: bytes, number: int) -> bytes:
    """Return a picture with other bytes at its end, where no reader looks: parts of a board share no picture."""
    return content + number.to_bytes(4, "big")


def board_of(recipe: str, pictures: Sequence[FoundImage], within_s: float | None) -> dict[str, Any]:
    """Return the body of a board whose views are `P0`, `P1` and so on."""
    views = {f"P{number}": {"refdes": f"P{number}", "component": one.component} for number, one in enumerate(pictures)}
    return {"recipe": recipe, "views": views, "within_s": within_s}


def made(folder: Path, wanted: Wanted) -> Path:
    """Make a service in a new folder, on a free port, and return its config file."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return create(folder, Wanted(wanted.board, wanted.store, wanted.memory, wanted.allow_kinds, port)).config


@contextmanager
def running(folder: Path, device: BenchDevice = BenchDevice.REAL) -> Iterator[Service]:
    """Run the service in a folder until the block ends; raises ServiceFailed if it does not start."""
    path, stamps = folder / CONFIG, folder / f"stamps-{device.value}-{time.time_ns()}.txt"
    words = [sys.executable, "-m", "coe.serve.benchmark.processes", "supervisor", str(path), str(stamps), device.value]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, process_group=0)
    service = None
    try:
        keys = json.loads((folder / KEYS).read_text(encoding="utf-8"))
        service = Service(configs.load(path), keys, stamps, psutil.Process(process.pid))
        _wait_until_ready(service, process)
        yield service
    finally:
        if service is not None:
            service.database.close()
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        process.kill()
        process.communicate()


def _wait_until_ready(service: Service, process: subprocess.Popen[bytes]) -> None:
    ends_s, asking = time.monotonic() + STARTS_S, service.client("operator")
    while time.monotonic() < ends_s and process.poll() is None:
        with suppress(OSError):
            if asking.send("GET", "/health/ready").status == 200:
                asking.close()
                return
        time.sleep(_LOOK_S)
    raise ServiceFailed("the service did not start; what it wrote above says why")
