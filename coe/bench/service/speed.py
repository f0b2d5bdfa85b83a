"""Images a second of the service beside those of the engine alone, on the same images and memory, alternating.

Law: what is compared runs from the first image handed to the experts to the last result; intake is measured elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from coe.bench.service.figures import Goal, Measured, Part
from coe.bench.service.running import Picture, Running
from coe.inspector.inspector import Picture as LinePicture
from coe.inspector.line import Line
from coe.inspector.line_config import LineConfig
from coe.serve.config import ServeConfig
from coe.store import dotted
from coe.store.store import Store

_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Load:
    """The boards of one round: all have the same components."""

    pictures: Sequence[Picture]
    boards: int

    @property
    def images(self) -> int:
        """How many images they have together."""
        return self.boards * len(self.pictures)


def speed(service: Running, load: Load, rounds: int) -> list[Measured]:
    """Measure both in turn, every second round backwards."""
    of_service: list[float] = []
    of_engine: list[float] = []
    ratios = []
    for number in range(rounds):
        ways = [(of_service, _service), (of_engine, _engine)]
        for figures, measure in ways if number % 2 == 0 else ways[::-1]:
            figures.append(measure(service, load))
        ratios.append(of_service[-1] / of_engine[-1])
    spread = f"rounds: {', '.join(f'{one:.2f}' for one in ratios)}; {load.images} images each"
    return [
        Measured(Part.SPEED, "the service", median(of_service), "images/s", rounds),
        Measured(Part.SPEED, "the engine of coe-inspect", median(of_engine), "images/s", rounds),
        Measured(Part.SPEED, "service / engine", median(ratios), "", rounds, Goal(0.95, at_least=True), spread),
    ]


def _service(service: Running, load: Load) -> float:
    """Return the images a second while boards are decided that were all accepted before."""
    with service.line_stopped():
        ids = [service.hand_in(f"speed-{time.time_ns()}", load.pictures) for _ in range(load.boards)]
        began_s = time.time()
    service.wait_for(ids, _TIMEOUT_S)
    moments = service.moments(ids)
    return sum(one.components for one in moments) / (max(one.found_s for one in moments) - began_s)


def _engine(service: Running, load: Load) -> float:
    """Return the images a second of a line of the same settings that is ready before it gets them."""
    with Line(_line_config(service.config)) as line:
        line.ready()
        began_s = time.perf_counter()
        answered = sum(
            1
            for _ in line.stream(
                LinePicture(one.path, one.component, str(board), f"P{number}", f"{board}/P{number}")
                for board in range(load.boards)
                for number, one in enumerate(load.pictures)
            )
        )
        return answered / (time.perf_counter() - began_s)


def _line_config(config: ServeConfig) -> LineConfig:
    settings = config.line
    return LineConfig(
        board=config.station,
        store=Store(settings.store),
        asked=settings.asked(),
        precision=settings.precision,
        label_floor=settings.label_floor,
        allowed_kinds=dotted.packages(settings.allow_kinds),
    )
