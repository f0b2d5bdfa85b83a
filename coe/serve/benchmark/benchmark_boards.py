"""The parts that ask a running service one thing at a time: decisions, intake, pages, event clients, and its speed.

Each figure is a time that a client, or the line itself, would have measured; no figure is computed from a mock.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import cycle, islice
from statistics import median

import numpy as np

from coe.inspector.line_options import LineOptions
from coe.pictures.array_images import encoded
from coe.pictures.found_image import FoundImage
from coe.serve.benchmark.benchmark_figures import Aim, Measured, Part, quantile, times_ms
from coe.serve.benchmark.running import Service, numbered
from coe.serve.database import board_rows, hourly

VIEW_BYTES = 5_000_000
_TIMEOUT_S = 600.0
WITHIN_S = 60.0
"""How long the line may take for boards of which no time is measured."""
PAGES = (
    "/",
    "/line/part",
    "/boards/{board}",
    "/verify",
    "/statistics?hours=24",
    "/statistics?hours=168",
    "/statistics?hours=720&by=label",
    "/recipes",
    "/experts?hours=168",
    "/faults",
    "/metrics",
    "/api/v1/boards/{board}?good=1",
    "/api/v1/calls?status=open",
    "/api/v1/calls?status=answered",
    "/api/v1/stats/fpy?hours=168",
    "/api/v1/stats/pareto?hours=168",
    "/api/v1/stats/spc?hours=168",
    "/api/v1/state",
    "/api/v1/recipes",
    "/api/v1/faults",
)
"""What people and machines read; `{board}` is the newest board."""


def decisions(service: Service, pictures: Sequence[FoundImage], number: int) -> list[Measured]:
    """Measure the time from a board's last result until its decision is on the disk; boards of four components."""
    taken = cycle(pictures)
    ids = [service.hand_in(f"decision-{time.time_ns()}-{index}", list(islice(taken, 4))) for index in range(number)]
    service.wait_for(ids, WITHIN_S + number)
    times_s = [one.decided_s - one.found_s for one in service.moments(ids)]
    return times_ms(Part.DECISIONS, "last finding to decision", times_s, 50)


def intake(service: Service, number: int) -> list[Measured]:
    """Measure how long a client waits until a picture of 5 MB is accepted, and what the disk alone takes of that."""
    content = _picture(VIEW_BYTES)
    feeder, key = service.client("feeder"), f"intake-{time.time_ns()}"
    accepted_s, disk_s = [], []
    for index in range(number):
        # Alternating, so that both meet the same disk.
        accepted_s.append(feeder.put(key, f"V{index}", numbered(content, index)).took_s)
        disk_s.append(_written_s(service, numbered(content, index)))
    feeder.close()
    p50_ms, p99_ms = (1e3 * quantile(disk_s, share) for share in (0.5, 0.99))
    disk = f"writing the same bytes to the same disk: p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms"
    return times_ms(Part.INTAKE, f"a view of {len(content) / 1e6:.1f} MB accepted", accepted_s, 150, disk)


def _picture(size_bytes: int) -> bytes:
    """Return a picture of noise of about so many bytes; noise cannot be compressed."""
    side = round((size_bytes / 3) ** 0.5)
    return encoded(np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8), compress_level=0)


def _written_s(service: Service, content: bytes) -> float:
    path = service.config.pictures / "measured"
    began = time.perf_counter()
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    took_s = time.perf_counter() - began
    path.unlink()
    return took_s


def pages(service: Service, repeats: int) -> list[Measured]:
    """Measure every page, and what machines read, as an administrator sees it."""
    with service.database.reading() as connection:
        (newest,) = board_rows.newest(connection, limit=1)
        number = sum(hourly.decided(connection).values())
    reader, measured = service.client("admin"), []
    for path in PAGES:
        asked = path.format(board=newest.id)
        answers = [reader.send("GET", asked) for _ in range(repeats)]
        times_ms = [1e3 * answer.took_s for answer in answers]
        worst, size_kb = max(times_ms), len(answers[0].body) / 1e3
        assert answers[0].status == 200, (asked, answers[0])
        note = f"worst {worst:.0f} ms, {size_kb:.0f} kB, {number:,} boards"
        measured.append(Measured(Part.PAGES, path, median(times_ms), "ms", repeats, Aim(300), note))
    reader.close()
    return measured


def clients(service: Service, number: int, boards_: int, picture: FoundImage) -> list[Measured]:
    """Measure how late clients learn of events while boards come in."""
    delays_s, missed = asyncio.run(_listen(service, number, boards_, picture))
    missing = f"{missed} of {len(delays_s) + missed:,} missed"
    return times_ms(Part.CLIENTS, f"an event at {number} clients", delays_s, 1000, missing)


@dataclass(frozen=True, slots=True)
class Heard:
    """An event that a client heard of: of which board, if of any, and how many seconds after it happened."""

    board_id: int | None
    delay_s: float


def heard_of(ids: Collection[int], heard: Sequence[Sequence[Heard]]) -> tuple[list[float], int]:
    """Return the delays of all clients' events about some boards, in seconds, and how many events were missed.

    Events of earlier boards do not count: some clients were there when they came, and others were not yet.
    """
    delays_s = [[event.delay_s for event in mine if event.board_id in ids] for mine in heard]
    most = max(map(len, delays_s))
    return [delay_s for mine in delays_s for delay_s in mine], sum(most - len(mine) for mine in delays_s)


async def _listen(service: Service, number: int, boards_: int, picture: FoundImage) -> tuple[list[float], int]:
    heard: list[list[Heard]] = [[] for _ in range(number)]
    connections = [await _connected(service) for _ in range(number)]
    listening = [asyncio.create_task(_hear(reader, mine)) for (reader, _), mine in zip(connections, heard, strict=True)]
    ids = await asyncio.to_thread(
        lambda: [service.hand_in(f"event-{time.time_ns()}-{index}", [picture]) for index in range(boards_)]
    )
    await asyncio.to_thread(service.wait_for, ids, WITHIN_S + boards_)
    await asyncio.sleep(2.0)
    for task in listening:
        task.cancel()
    for _, writer in connections:
        writer.close()
    return heard_of(ids, heard)


async def _connected(service: Service) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.config.listen.port)
    words = f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {service.key('operator')}\r\n\r\n"
    writer.write(words.encode())
    await reader.readuntil(b": begins")
    return reader, writer


async def _hear(reader: asyncio.StreamReader, heard: list[Heard]) -> None:
    while line := await reader.readline():
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            happened_s = datetime.fromisoformat(event["at"]).timestamp()
            heard.append(Heard(event.get("board"), time.time() - happened_s))


def speed(service: Service, board: str, pictures: Sequence[FoundImage], boards: int, rounds: int) -> list[Measured]:
    """Measure images a second of the service beside those of the engine alone, on the same images and memory.

    A round is so many boards of all pictures, from the first image handed to the experts to the last result. Both are
    measured in turn, every second round backwards.
    """
    of_service: list[_Round] = []
    of_engine: list[_Round] = []
    for number in range(rounds):
        for is_service in (True, False) if number % 2 == 0 else (False, True):
            if is_service:
                of_service.append(_service(service, pictures, boards))
            else:
                of_engine.append(_engine(service.config.line.options(board, cluster=None), pictures, boards))
    images = boards * len(pictures)
    pairs = list(zip(of_service, of_engine, strict=True))
    ratios = [one.images_per_s / other.images_per_s for one, other in pairs]
    costs = [one.cpu_s / other.cpu_s for one, other in pairs]
    spread = f"rounds: {', '.join(f'{one:.2f}' for one in ratios)}; {images} images each"
    cpu_ms = [1e3 * median(one.cpu_s for one in way) / images for way in (of_service, of_engine)]
    cpu = f"{cpu_ms[0]:.2f} ms and {cpu_ms[1]:.2f} ms an image; it varies less with the load of the machine"
    speeds = [median(one.images_per_s for one in way) for way in (of_service, of_engine)]
    return [
        Measured(Part.SPEED, "the service", speeds[0], "images/s", rounds),
        Measured(Part.SPEED, "the engine of coe-inspect", speeds[1], "images/s", rounds),
        Measured(Part.SPEED, "service / engine", median(ratios), "", rounds, Aim(0.95, at_least=True), spread),
        Measured(Part.SPEED, "processor time, service / engine", median(costs), "", rounds, None, cpu),
    ]


@dataclass(frozen=True, slots=True)
class _Round:
    images_per_s: float
    cpu_s: float
    """Processor time of all processes at work, in user and system mode."""


def _service(service: Service, pictures: Sequence[FoundImage], boards: int) -> _Round:
    """Return how boards are decided that were all accepted before."""
    with service.worker_stopped():
        ids = [service.hand_in(f"speed-{time.time_ns()}", pictures) for _ in range(boards)]
        before_s, began_s = _cpu_s(service), time.time()
    service.wait_for(ids, _TIMEOUT_S)
    cpu_s, moments = _cpu_s(service) - before_s, service.moments(ids)
    images = sum(one.components for one in moments)
    return _Round(images / (max(one.found_s for one in moments) - began_s), cpu_s)


def _cpu_s(service: Service) -> float:
    times = [process.cpu_times() for process in service.processes.values()]
    return sum(one.user + one.system for one in times)


def _engine(options: LineOptions, pictures: Sequence[FoundImage], boards: int) -> _Round:
    """Return how a line of the same settings inspects the same images; it is ready before it gets them."""
    from coe.inspector.inspector import Picture as LinePicture
    from coe.inspector.line import Line

    with Line(options) as line:
        line.ready()
        before_s, began_s = time.process_time(), time.perf_counter()
        answered = sum(
            1
            for _ in line.stream(
                LinePicture(one.path, one.component, str(board), f"P{number}", f"{board}/P{number}")
                for board in range(boards)
                for number, one in enumerate(pictures)
            )
        )
        return _Round(answered / (time.perf_counter() - began_s), time.process_time() - before_s)
