"""A service that runs for long: what grows. Law: the first third is left out, because caches fill and logs begin.

The slope is that of a straight line through the samples (least squares). A growth within the rest of the samples that
is smaller than `NOISE` of their mean counts as none.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
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
_SAMPLES, _LEAST_S = 400, 0.5
_PAGES = ("/", "/statistics?hours=24", "/metrics", "/experts", "/api/v1/stats/spc")
_COUNTED = (tables.board, tables.view, tables.event, tables.call, tables.verification, tables.audit)


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at a time since the start; by process where it says so. Sizes are in bytes."""

    at_s: float
    rss_bytes: Mapping[str, int]
    descriptors: Mapping[str, int]
    wal_bytes: int
    database_bytes: int
    rows: Mapping[str, int]
    waiting: int


@dataclass(frozen=True, slots=True)
class Slope:
    """How a size grows: by the hour, its mean, and whether the growth is more than noise."""

    per_hour: float
    mean: float
    hours: float

    @property
    def grows(self) -> bool:
        """Whether it grew by more than noise while it was watched."""
        return self.per_hour * self.hours > NOISE * self.mean


def soak(
    service: Service, pictures: Sequence[BenchmarkPicture], wanted: BoardPace, samples_to: Path | None
) -> list[Measured]:
    """Let boards come steadily while people verify and read pages; return what grew, and keep all samples in a file."""
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
        if samples_to is not None:
            samples_to.write_text(json.dumps([asdict(one) for one in samples]) + "\n", encoding="utf-8")
    return verdicts(samples, len(ids), _lost(service, ids))


def _repeat(work: Callable[[], None], every_s: float, ended: threading.Event) -> None:
    while not ended.wait(every_s):
        with suppress(OSError, psutil.Error):  # a process that was started again
            work()


def _sample(service: Service, began_s: float) -> Sample:
    rss, descriptors = {}, {}
    for name, process in service.processes.items():
        rss[name.value], descriptors[name.value] = process.memory_info().rss, process.num_fds()
    database = service.config.data / "serve.db"
    with service.database.reading() as connection:
        rows = {table.name: connection.scalar(select(func.count()).select_from(table)) or 0 for table in _COUNTED}
        waiting = board_rows.count_undecided(connection)
    wal = database.with_name("serve.db-wal")
    at_s = time.monotonic() - began_s
    sizes = [path.stat().st_size if path.exists() else 0 for path in (wal, database)]
    return Sample(at_s, rss, descriptors, sizes[0], sizes[1], rows, waiting)


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


def slope(samples: Sequence[Sample], value: Callable[[Sample], float]) -> Slope:
    """Return how a value grows after the first third of the samples; of three samples at least."""
    rest = samples[len(samples) // 3 :]
    hours = [one.at_s / 3600 for one in rest]
    values = [value(one) for one in rest]
    return Slope(linear_regression(hours, values).slope, fmean(values), hours[-1] - hours[0])


def verdicts(samples: Sequence[Sample], number: int, lost: int) -> list[Measured]:
    """Return the figures of a soak of `number` boards: how fast its processes grew, and how many boards were lost."""
    measured = [Measured(Part.SOAK, "boards without exactly one decision", lost, "", number, Aim(0))]
    if len(samples) < 6:
        return measured
    names = list(samples[-1].rss_bytes)
    for name in names:
        rss = slope(samples, lambda one: one.rss_bytes.get(name, 0))  # noqa: B023
        fds = slope(samples, lambda one: one.descriptors.get(name, 0))  # noqa: B023
        allowed = NOISE * rss.mean / rss.hours
        note = f"mean {rss.mean / 1e6:.0f} MB, {'GROWS' if rss.grows else 'flat within the noise'}"
        measured.append(
            Measured(Part.SOAK, f"{name}: memory", rss.per_hour / 1e6, "MB/h", len(samples), Aim(allowed / 1e6), note)
        )
        most = max(one.descriptors.get(name, 0) for one in samples)
        note = f"{most} at most, {'GROW' if fds.grows else 'steady'}"
        allowed = NOISE * fds.mean / fds.hours
        measured.append(
            Measured(Part.SOAK, f"{name}: descriptors", fds.per_hour, "/h", len(samples), Aim(allowed), note)
        )
    wal = max(one.wal_bytes for one in samples)
    rows = slope(samples, lambda one: sum(one.rows.values()))
    size = slope(samples, lambda one: one.database_bytes)
    waiting = max(one.waiting for one in samples)
    return [
        *measured,
        Measured(Part.SOAK, "the log, at most", wal / 1e6, "MB", len(samples), Aim(WAL_BYTES / 1e6)),
        Measured(Part.SOAK, "rows", rows.per_hour, "/h", len(samples)),
        Measured(Part.SOAK, "database", size.per_hour / 1e6, "MB/h", len(samples)),
        Measured(Part.SOAK, "boards that waited, at most", waiting, "", len(samples)),
    ]
