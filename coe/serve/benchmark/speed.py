"""Images a second of the service beside those of the engine alone, on the same images and memory, alternating.

What is compared runs from the first image handed to the experts to the last result; intake is measured elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from coe.inspector.inspector import Picture as LinePicture
from coe.inspector.line import Line
from coe.inspector.line_options import LineOptions
from coe.serve.benchmark.benchmark_figures import Aim, Measured, Part
from coe.serve.benchmark.running import BenchmarkPicture, Service

_TIMEOUT_S = 600.0


def speed(
    service: Service, board: str, pictures: Sequence[BenchmarkPicture], boards: int, rounds: int
) -> list[Measured]:
    """Measure both in turn, every second round backwards; a round is so many boards of all pictures."""
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


def _service(service: Service, pictures: Sequence[BenchmarkPicture], boards: int) -> _Round:
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


def _engine(options: LineOptions, pictures: Sequence[BenchmarkPicture], boards: int) -> _Round:
    """Return how a line of the same settings inspects the same images; it is ready before it gets them."""
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
