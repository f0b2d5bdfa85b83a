"""A running service, measured: its own processes, real HTTP, real weights, a history of boards (`coe-bench serve`).

Each figure is a time that a client, or a row of the service, says; none is computed from a mock.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import psutil

from coe.board import rules
from coe.errors import CoeError, ConfigError
from coe.lab import past_boards
from coe.pictures import finding
from coe.pictures.array_images import encoded
from coe.pictures.photographs import Photograph
from coe.serve import service_config as configs
from coe.serve.clock import SECOND_US, now_us
from coe.serve.creation import CONFIG, KEYS, Wanted, create
from coe.serve.database import board_rows, recipe_versions, row_types
from coe.serve.database.connecting import DatabaseError, open_database
from coe.serve.database.tables import Board

PARTS = ("speed", "decisions", "intake", "pages", "clients", "pace")
PAGES = (
    "/", "/line/part", "/boards/{board}", "/verify", "/statistics?hours=24", "/statistics?hours=168",
    "/statistics?hours=720&by=label", "/recipes", "/experts?hours=168", "/faults", "/metrics",
    "/api/v1/boards/{board}?good=1", "/api/v1/calls?status=open", "/api/v1/calls?status=answered",
    "/api/v1/stats/fpy?hours=168", "/api/v1/stats/pareto?hours=168", "/api/v1/stats/spc?hours=168", "/api/v1/state",
    "/api/v1/recipes", "/api/v1/faults",
)  # fmt: skip
"""What people and machines read; `{board}` is the newest board."""
_RUN = "import sys; sys.argv[0] = 'coe-serve'; from coe.cli.start import serve; serve()"
_STARTS_S, _WAITS_S, _LOOK_S = 180.0, 600.0, 0.05


class ServiceFailed(CoeError):
    """The service that is measured did not start, or refused what the benchmark asked of it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure in `unit`, of so many `samples`, with its `goal`: at most so much or, with `at_least`, at least."""

    part: str
    name: str
    value: float
    unit: str
    samples: int
    goal: float | None = None
    at_least: bool = False
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; None without a goal."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much of each part is measured."""

    history: int = 100_000
    clients: int = 200
    rounds: int = 5
    images: int = 1000
    boards: int = 200
    repeats: int = 9
    boards_per_hour: float = 600.0
    components: int = 500
    seconds: float = 180.0


QUICK = Amounts(40, 5, 1, 1, 3, 1, 36_000, 4, 0.5)
"""So little that all parts run, and no figure says anything."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service that answers; `process` is that of `coe-serve run`, `board` the name or file of its board."""

    address: str
    config: configs.ServeConfig
    keys: dict[str, str]
    process: psutil.Process
    board: str = ""

    def client(self, role: str) -> httpx.Client:
        """Return a new client with the key of a role."""
        headers = {"Authorization": f"Bearer {self.keys[role]}"}
        return httpx.Client(base_url=self.address, headers=headers, timeout=120, trust_env=False)

    def hand_in(
        self, client: httpx.Client, pictures: Sequence[Photograph], within_s: float | None = None, pool: Any = None
    ) -> int:
        """Hand a board in with a picture of each component, and return its id; raises ServiceFailed."""
        key, number = f"measured-{time.time_ns()}", range(len(pictures))
        put = lambda index: _put(client, key, f"P{index}", pictures[index].path.read_bytes() + index.to_bytes(4))  # noqa: E731
        list(pool.map(put, number) if pool else map(put, number))
        views = {f"P{index}": {"refdes": f"P{index}", "component": pictures[index].component} for index in number}
        body = {"recipe": self.config.station, "views": views, "within_s": within_s}
        return int(_expected(client.post(f"/api/v1/boards/{key}", json=body), 202).json()["board"])

    def wait_for(self, ids: Sequence[int]) -> list[Board]:
        """Return boards once they are decided; raises ServiceFailed if they are not in time."""
        ends_s, database = time.monotonic() + _WAITS_S, open_database(self.config.database_url)
        with self.client("operator") as asking:
            for id in ids:
                while asking.get(f"/api/v1/boards/{id}?wait=10").json()["verdict"] is None:
                    if time.monotonic() > ends_s:
                        raise ServiceFailed(f"board {id} was not decided within {_WAITS_S:g} s")
        with database.reading() as connection:
            found = [board for id in ids if (board := row_types.get(connection, Board, id)) is not None]
        database.close()
        return found

    @contextmanager
    def worker_stopped(self) -> Iterator[None]:
        """Let the worker stand still during the block, and not while it holds the lock of the database."""
        worker = next(one for one in self.process.children(recursive=True) if "worker" in one.cmdline())
        impatient = open_database(self.config.database_url, busy_s=_LOOK_S)
        try:
            while True:
                worker.send_signal(signal.SIGSTOP)
                with suppress(DatabaseError), impatient.writing():
                    break
                worker.send_signal(signal.SIGCONT)
                time.sleep(_LOOK_S)
            yield
        finally:
            worker.send_signal(signal.SIGCONT)
            impatient.close()


def _put(client: httpx.Client, key: str, name: str, content: bytes) -> float:
    """Hand a view in, and return how many seconds it took."""
    began, headers = time.perf_counter(), {"X-SHA256": hashlib.sha256(content).hexdigest()}
    _expected(client.put(f"/api/v1/boards/{key}/views/{name}", content=content, headers=headers), 200, 201)
    return time.perf_counter() - began


def _expected(answer: httpx.Response, *statuses: int) -> httpx.Response:
    if answer.status_code not in statuses:
        raise ServiceFailed(f"the station answered {answer.status_code}: {answer.text[:300]}")
    return answer


@contextmanager
def running(folder: Path, board: str) -> Iterator[Service]:
    """Run the service in a folder until the block ends; raises ServiceFailed if it does not start."""
    config = configs.load(folder / CONFIG)
    process = subprocess.Popen([sys.executable, "-c", _RUN, "run", str(folder / CONFIG)])
    keys = json.loads((folder / KEYS).read_text(encoding="utf-8"))
    service = Service(f"http://127.0.0.1:{config.listen.port}", config, keys, psutil.Process(process.pid), board)
    try:
        ends_s = time.monotonic() + _STARTS_S
        while process.poll() is None and time.monotonic() < ends_s:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{service.address}/health/ready", trust_env=False).is_success:
                    break
            time.sleep(_LOOK_S)
        else:
            raise ServiceFailed("the station did not start; see its messages above")
        yield service
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.wait()


def measure(
    wanted: Wanted, images: Path, folder: Path, parts: Sequence[str], much: Amounts, say: Callable[[str], None]
) -> Iterator[Measured]:
    """Measure part after part of one service, and yield the figures; raises ServiceFailed, and CoeError of a board."""
    components = rules.load(wanted.board).components
    pictures = [item for item in finding.find(images, components)[0] if item.failure is None]
    if not pictures:
        raise ConfigError(f"--images: {images} has no picture of a component of board '{wanted.board}'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    create(folder, Wanted(wanted.board, wanted.store, wanted.memory, wanted.allow_kinds, port))
    say(f"writing a history of {much.history:,} boards")
    database = open_database(configs.load(folder / CONFIG).database_url)
    (recipe,) = database.read(recipe_versions.all_active)
    past_boards.fill(database, recipe.id, list(components), much.history, now_us())
    database.shorten_log()
    database.close()
    with running(folder, wanted.board) as service:
        for part in parts:
            say(f"measuring: {part}")
            yield from _MEASURES[part](service, pictures, much)


def times_ms(
    part: str, name: str, times_s: Sequence[float], goal: float | None = None, note: str = ""
) -> list[Measured]:
    """Return the median and the 99th percentile of times, in milliseconds; the goal is that of the latter."""
    p50, p99 = (1e3 * float(np.quantile(times_s, share)) for share in (0.5, 0.99))
    number = len(times_s)
    return [
        Measured(part, f"{name}, p50", p50, "ms", number),
        Measured(part, f"{name}, p99", p99, "ms", number, goal, note=note),
    ]


def decisions(service: Service, pictures: Sequence[Photograph], much: Amounts) -> list[Measured]:
    """Measure the time from the acceptance of a board of four components to its decision, one board after another."""
    taken, times_s = cycle(pictures), []
    with service.client("feeder") as feeder:
        for _ in range(much.boards):
            (board,) = service.wait_for([service.hand_in(feeder, list(islice(taken, 4)))])
            times_s.append(((board.decided_us or 0) - board.accepted_us) / SECOND_US)
    return times_ms("decisions", "accepted to decided", times_s)


def intake(service: Service, pictures: Sequence[Photograph], much: Amounts) -> list[Measured]:
    """Measure how long a client waits until a picture of 5 MB is accepted, and what the disk alone takes of that."""
    side = round((5_000_000 / 3) ** 0.5)
    noise = np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)
    content, accepted_s, disk_s = encoded(noise, compress_level=0), list[float](), list[float]()
    with service.client("feeder") as feeder:
        for index in range(much.boards):  # in turn, so that both meet the same disk
            changed = content + index.to_bytes(4)
            accepted_s.append(_put(feeder, "intake", f"V{index}", changed))
            began, path = time.perf_counter(), service.config.pictures / "measured"
            with path.open("wb") as file:
                file.write(changed)
                file.flush()
                os.fsync(file.fileno())
            disk_s.append(time.perf_counter() - began)
            path.unlink()
    note = f"writing the same bytes to the same disk: p50 {1e3 * median(disk_s):.0f} ms"
    return times_ms("intake", f"a view of {len(content) / 1e6:.1f} MB accepted", accepted_s, 150, note)


def pages(service: Service, pictures: Sequence[Photograph], much: Amounts) -> list[Measured]:
    """Measure every page, and what machines read, as an engineer sees it."""
    database = open_database(service.config.database_url)
    (newest,) = database.read(board_rows.newest, limit=1)
    database.close()
    measured = []
    with service.client("engineer") as reader:
        for path in PAGES:
            answers = [_expected(reader.get(path.format(board=newest.id)), 200) for _ in range(much.repeats)]
            took_ms = [1e3 * answer.elapsed.total_seconds() for answer in answers]
            note = f"worst {max(took_ms):.0f} ms, {len(answers[0].content) / 1e3:.0f} kB"
            measured.append(Measured("pages", path, median(took_ms), "ms", much.repeats, 300, note=note))
    return measured


def clients(service: Service, pictures: Sequence[Photograph], much: Amounts) -> list[Measured]:
    """Measure how late clients learn of the events of boards, and how many events a client missed."""
    heard = asyncio.run(_listen(service, much.clients, pictures[0]))
    most = max(map(len, heard))
    delays_s = [delay_s for mine in heard for delay_s in mine]
    missed = f"{sum(most - len(mine) for mine in heard)} of {most * len(heard):,} missed"
    return times_ms("clients", f"an event at {much.clients} clients", delays_s, 1000, missed)


async def _listen(service: Service, number: int, picture: Photograph) -> list[list[float]]:
    heard: list[dict[int, list[float]]] = [{} for _ in range(number)]
    headers = {"Authorization": f"Bearer {service.keys['operator']}"}
    there = asyncio.Semaphore(0)

    async def hear(mine: dict[int, list[float]]) -> None:
        limits = httpx.Limits(max_connections=1)
        async with (
            httpx.AsyncClient(headers=headers, timeout=None, trust_env=False, limits=limits) as client,
            client.stream("GET", f"{service.address}/api/v1/events") as stream,
        ):
            async for line in stream.aiter_lines():
                if line.startswith(": begins"):
                    there.release()
                if line.startswith("data: "):
                    event = json.loads(line[6:])
                    delay_s = time.time() - datetime.fromisoformat(event["at"]).timestamp()
                    mine.setdefault(event.get("board", 0), []).append(delay_s)

    listening = [asyncio.create_task(hear(mine)) for mine in heard]
    for _ in range(number):
        await there.acquire()
    with service.client("feeder") as feeder:
        ids = [await asyncio.to_thread(service.hand_in, feeder, [picture]) for _ in range(20)]
    await asyncio.to_thread(service.wait_for, ids)
    await asyncio.sleep(2.0)
    for task in listening:
        task.cancel()
    await asyncio.gather(*listening, return_exceptions=True)
    return [[delay_s for id in ids for delay_s in mine.get(id, ())] for mine in heard]


def pace(service: Service, pictures: Sequence[Photograph], much: Amounts) -> list[Measured]:
    """Hand boards in at a steady pace, over four connections, and measure whether the service keeps up."""
    of_board, every_s = list(islice(cycle(pictures), much.components)), 3600 / much.boards_per_hour
    ids, took_s, began_s = [], [], time.perf_counter()
    with service.client("feeder") as feeder, ThreadPoolExecutor(4) as pool:
        for number in range(max(1, round(much.seconds / every_s))):
            time.sleep(max(0.0, began_s + number * every_s - time.perf_counter()))
            at_s = time.perf_counter()
            ids.append(service.hand_in(feeder, of_board, 30.0, pool))
            took_s.append(time.perf_counter() - at_s)
    boards = service.wait_for(ids)
    decided_s = [((board.decided_us or 0) - board.accepted_us) / SECOND_US for board in boards]
    about = f"late boards of {much.boards_per_hour:g} boards/h of {much.components} components"
    return [
        Measured("pace", about, sum(board.late for board in boards), "", len(ids), 0),
        *times_ms("pace", "a board submitted", took_s),
        *times_ms("pace", "accepted to decided", decided_s, 30_000),
    ]


def speed(service: Service, pictures: Sequence[Photograph], much: Amounts) -> list[Measured]:
    """Measure images a second of the service beside those of the engine alone, in turn, on the same images and memory.

    The time of the service begins when the first of its boards, which were all accepted before, begins.
    """
    from coe.inspector.inspector import Picture
    from coe.inspector.line import Line

    number = -(-much.images // len(pictures))
    images, of_service, of_engine = number * len(pictures), list[float](), list[float]()
    for _ in range(much.rounds):
        with service.client("feeder") as feeder, service.worker_stopped():
            ids = [service.hand_in(feeder, pictures) for _ in range(number)]
        boards = service.wait_for(ids)
        took_us = max(one.decided_us or 0 for one in boards) - min(one.started_us or 0 for one in boards)
        of_service.append(images * SECOND_US / took_us)
        with Line(service.config.line.options(service.board, cluster=None)) as line:
            line.ready()
            began_s = time.perf_counter()
            named = ((board, index, one) for board in range(number) for index, one in enumerate(pictures))
            of_line = line.stream(
                Picture(one.path, one.component, str(board), f"P{i}", f"{board}/P{i}") for board, i, one in named
            )
            of_engine.append(sum(1 for _ in of_line) / (time.perf_counter() - began_s))
    ratios = [one / other for one, other in zip(of_service, of_engine, strict=True)]
    note = f"rounds: {', '.join(f'{one:.2f}' for one in ratios)}; {images} images each"
    return [
        Measured("speed", "the service", median(of_service), "images/s", much.rounds),
        Measured("speed", "the engine of coe-inspect", median(of_engine), "images/s", much.rounds),
        Measured("speed", "service / engine", median(ratios), "", much.rounds, 0.95, at_least=True, note=note),
    ]


_MEASURES = {
    "speed": speed, "decisions": decisions, "intake": intake, "pages": pages, "clients": clients, "pace": pace,
}  # fmt: skip
