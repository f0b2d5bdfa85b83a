"""Boards that come at a steady pace, as a line makes them, for a while or for long: what grows.

A late board delays no other board's time. Of a soak the first third is left out, because caches fill and logs begin.
The slope is that of a straight line through the other samples (least squares). A growth within them that is smaller
than `NOISE` of their mean counts as none.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import fmean, linear_regression

import psutil
from sqlalchemy import func, select

from coe.pictures.found_image import FoundImage
from coe.serve.benchmark.benchmark_figures import Aim, Measured, Part, times_ms
from coe.serve.benchmark.running import Client, Service, board_of, numbered
from coe.serve.database import board_rows, row_types, tables
from coe.serve.database.tables import Board
from coe.serve.enums import EventKind, Outcome

STUB_LEARNS_S = 300.0
"""How long the stub's first board may take: the networks run once for each picture."""
_WITHIN_S = 60.0
"""How long the last boards may take after their time."""
NOISE = 0.03
WAL_BYTES = 64 << 20
"""The size to which the service cuts its log."""
MEMORY, DESCRIPTORS, LOG, DATABASE, ROWS, WAITING = "memory", "descriptors", "log", "database", "rows", "waiting"
"""What is sampled: memory and descriptors by process, as `gate: memory`. Sizes are in bytes."""
_SAMPLES, _LEAST_S = 400, 0.5
_PAGES = ("/", "/statistics?hours=24", "/metrics", "/experts", "/api/v1/stats/spc")
_COUNTED = (tables.board, tables.view, tables.event, tables.call, tables.verification, tables.audit)


@dataclass(frozen=True, slots=True)
class BoardPace:
    """How boards come: so many an hour, each of so many components and due within `within_s`, for `seconds`."""

    boards_per_hour: float
    components: int
    within_s: float
    seconds: float
    feeders: int = 4

    @property
    def every_s(self) -> float:
        """The time between two boards."""
        return 3600 / self.boards_per_hour


def pace(service: Service, pictures: Sequence[FoundImage], wanted: BoardPace) -> list[Measured]:
    """Hand boards in at a steady pace, over several connections, and measure whether the service keeps up."""
    of_board = list(islice(cycle(pictures), wanted.components))
    warm = service.hand_in(f"pace-{time.time_ns()}", of_board)
    service.wait_for([warm], STUB_LEARNS_S)
    feeding = Feeding(service, of_board, wanted)
    number = max(1, round(wanted.seconds / wanted.every_s))
    ids = [feeding.hand_in_next() for _ in range(number)]
    backlog = service.database.read(board_rows.count_undecided)
    service.wait_for(ids, _WITHIN_S + wanted.seconds)
    feeding.close()
    with service.database.reading() as connection:
        done = [one for one in (row_types.get(connection, Board, id) for id in ids) if one is not None]
    decided_s = [(one.decided_us - one.accepted_us) / 1e6 for one in done if one.decided_us]
    late = sum(one.late for one in done)
    about = f"{wanted.boards_per_hour:g} boards/h of {wanted.components} components"
    behind_s = feeding.behind_s
    return [
        Measured(Part.PACE, f"{about}: the last one handed in late by", behind_s, "s", number, Aim(wanted.every_s)),
        Measured(Part.PACE, "boards waiting at the end", backlog, "", number, Aim(2)),
        Measured(Part.PACE, "late boards", late, "", number, Aim(0)),
        *times_ms(Part.PACE, "a board handed in", feeding.took_s, None),
        *times_ms(Part.PACE, "accepted to decided", decided_s, 1e3 * wanted.within_s),
    ]


class Feeding:
    """Hands boards in, each at its time, over several connections at once."""

    def __init__(self, service: Service, pictures: Sequence[FoundImage], wanted: BoardPace) -> None:
        self._service, self._pictures, self._wanted = service, pictures, wanted
        self._contents = [numbered(picture.path.read_bytes(), number) for number, picture in enumerate(pictures)]
        self._threads = ThreadPoolExecutor(wanted.feeders, "feeder")
        self._local = threading.local()
        self._clients: list[Client] = []
        self._begun_s = time.perf_counter()
        self._number = 0
        self.took_s: list[float] = []
        self.behind_s = 0.0

    def hand_in_next(self) -> int:
        """Wait for the next board's time, hand it in, and return its id."""
        at_s = self._begun_s + self._number * self._wanted.every_s
        time.sleep(max(0.0, at_s - time.perf_counter()))
        began_s = time.perf_counter()
        key = f"pace-{time.time_ns()}"
        list(self._threads.map(lambda number: self._put(key, number), range(len(self._contents))))
        body = board_of(self._service.recipe, self._pictures, self._wanted.within_s)
        answer = self._threads.submit(lambda: self._client().post_board(key, body)).result()
        now_s = time.perf_counter()
        self.took_s.append(now_s - began_s)
        self.behind_s = now_s - at_s
        self._number += 1
        return int(answer.data["board"])

    def _put(self, key: str, number: int) -> None:
        self._client().put(key, f"P{number}", self._contents[number])

    def _client(self) -> Client:
        if not hasattr(self._local, "client"):
            self._local.client = self._service.client("feeder")
            self._clients.append(self._local.client)
        client: Client = self._local.client
        return client

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown()
        for client in self._clients:
            client.close()


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at a time since the start, by name."""

    at_s: float
    sizes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Slope:
    """How a size grows: by the hour, its mean, and the growth by the hour that is noise."""

    per_hour: float
    mean: float
    noise: float

    @property
    def grows(self) -> bool:
        """Whether it grew by more than noise while it was watched."""
        return self.per_hour > self.noise


def soak(service: Service, pictures: Sequence[FoundImage], wanted: BoardPace) -> list[Measured]:
    """Let boards come steadily while people verify and read pages; return what grew."""
    samples: list[Sample] = []
    began_s = time.monotonic()
    ended = threading.Event()
    beside = [
        threading.Thread(target=_repeat, args=(work, every_s, ended))
        for work, every_s in (
            (lambda: samples.append(_sample(service, began_s)), max(_LEAST_S, wanted.seconds / _SAMPLES)),
            (_reader(service), 5.0),
            (_verifier(service), 2.0),
        )
    ]
    feeding = Feeding(service, list(islice(cycle(pictures), wanted.components)), wanted)
    for thread in beside:
        thread.start()
    try:
        ids = []
        while time.monotonic() - began_s < wanted.seconds:
            ids.append(feeding.hand_in_next())
        service.wait_for(ids[-1:], 600)
    finally:
        ended.set()
        for thread in beside:
            thread.join()
        feeding.close()
    return verdicts(samples, len(ids), _lost(service, ids))


def _repeat(work: Callable[[], None], every_s: float, ended: threading.Event) -> None:
    while not ended.wait(every_s):
        with suppress(OSError, psutil.Error):  # a process that was started again
            work()


def _sample(service: Service, began_s: float) -> Sample:
    sizes: dict[str, float] = {}
    for process, running in service.processes.items():
        sizes[f"{process.word}: {MEMORY}"] = running.memory_info().rss
        sizes[f"{process.word}: {DESCRIPTORS}"] = running.num_fds()
    for name, file in ((LOG, "serve.db-wal"), (DATABASE, "serve.db")):
        path = service.config.data / file
        sizes[name] = path.stat().st_size if path.exists() else 0
    with service.database.reading() as connection:
        sizes[ROWS] = sum(connection.scalar(select(func.count()).select_from(table)) or 0 for table in _COUNTED)
        sizes[WAITING] = board_rows.count_undecided(connection)
    return Sample(time.monotonic() - began_s, sizes)


def _reader(service: Service) -> Callable[[], None]:
    """Return a function that reads the next page, as a person does who looks at one page after the other."""
    admin, paths = service.client("admin"), cycle(_PAGES)

    def read() -> None:
        admin.send("GET", next(paths))

    return read


def _verifier(service: Service) -> Callable[[], None]:
    """Return a function that takes the next call and answers it, as an operator does."""
    operator = service.client("operator")

    def verify() -> None:
        found = operator.send("POST", "/api/v1/calls/next", b"{}", **{"Content-Type": "application/json"})
        if found.status == 200:
            call = found.data
            body = json.dumps({"outcome": Outcome.FALSE_CALL.value}).encode()
            headers = {"If-Match": f'"{call["revision"]}"', "Content-Type": "application/json"}
            operator.send("POST", f"/api/v1/calls/{call['call']}/verification", body, **headers)

    return verify


def _lost(service: Service, ids: Sequence[int]) -> int:
    """Return how many boards have no decision, or several."""
    is_decision = tables.event.c.kind == EventKind.BOARD_DECIDED
    query = select(tables.event.c.board_id, func.count()).where(is_decision, tables.event.c.board_id >= min(ids))
    with service.database.reading() as connection:
        rows = connection.execute(query.group_by(tables.event.c.board_id)).all()
    once = {id for id, number in rows if number == 1}
    return sum(id not in once for id in ids)


def slope(samples: Sequence[Sample], name: str) -> Slope:
    """Return how a size grows after the first third of the samples; of three samples at least."""
    rest = samples[len(samples) // 3 :]
    hours = [one.at_s / 3600 for one in rest]
    values = [one.sizes.get(name, 0.0) for one in rest]
    mean = fmean(values)
    return Slope(linear_regression(hours, values).slope, mean, NOISE * mean / (hours[-1] - hours[0]))


def verdicts(samples: Sequence[Sample], number: int, lost: int) -> list[Measured]:
    """Return the figures of a soak of `number` boards: how fast its processes grew, and how many boards were lost."""

    def figure(name: str, value: float, unit: str, aim: float | None = None, note: str = "") -> Measured:
        return Measured(Part.SOAK, name, value, unit, len(samples), None if aim is None else Aim(aim), note)

    measured = [Measured(Part.SOAK, "boards without exactly one decision", lost, "", number, Aim(0))]
    if len(samples) < 6:
        return measured
    slopes = {name: slope(samples, name) for name in samples[-1].sizes}
    most = {name: max(one.sizes.get(name, 0.0) for one in samples) for name in slopes}
    for name, found in slopes.items():
        if name.endswith(MEMORY):
            note = f"mean {found.mean / 1e6:.0f} MB, {'GROWS' if found.grows else 'flat within the noise'}"
            measured.append(figure(name, found.per_hour / 1e6, "MB/h", found.noise / 1e6, note))
        elif name.endswith(DESCRIPTORS):
            note = f"{most[name]:.0f} at most, {'GROW' if found.grows else 'steady'}"
            measured.append(figure(name, found.per_hour, "/h", found.noise, note))
    return [
        *measured,
        figure("the log, at most", most[LOG] / 1e6, "MB", WAL_BYTES / 1e6),
        figure(ROWS, slopes[ROWS].per_hour, "/h"),
        figure(DATABASE, slopes[DATABASE].per_hour / 1e6, "MB/h"),
        figure("boards that waited, at most", most[WAITING], ""),
    ]
