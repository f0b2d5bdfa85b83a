"""A service that runs for long: what grows. The first third is left out, because caches fill and logs begin.

The slope is that of a straight line through the samples (least squares). A growth within the rest of the samples that
is smaller than `NOISE` of their mean counts as none.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import fmean, linear_regression

import psutil
from sqlalchemy import func, select

from coe.serve.benchmark.benchmark_figures import Aim, Measured, Part
from coe.serve.benchmark.running import BenchmarkPicture, Service
from coe.serve.benchmark.steady_pace import BoardPace, Feeding
from coe.serve.database import board_rows, tables
from coe.serve.enums import EventKind, Outcome

NOISE = 0.03
WAL_BYTES = 64 << 20
"""The size to which the service cuts its log."""
MEMORY, DESCRIPTORS, LOG, DATABASE, ROWS, WAITING = "memory", "descriptors", "log", "database", "rows", "waiting"
"""What is sampled: memory and descriptors by process, as `gate: memory`. Sizes are in bytes."""
_SAMPLES, _LEAST_S = 400, 0.5
_PAGES = ("/", "/statistics?hours=24", "/metrics", "/experts", "/api/v1/stats/spc")
_COUNTED = (tables.board, tables.view, tables.event, tables.call, tables.verification, tables.audit)


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


def soak(service: Service, pictures: Sequence[BenchmarkPicture], wanted: BoardPace) -> list[Measured]:
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
