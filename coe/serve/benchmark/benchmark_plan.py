"""One run of the benchmark: which parts, how much of each. Law: parts of one run meet the same service and history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coe.board import rules
from coe.errors import ConfigError
from coe.pictures import finding
from coe.serve import service_config as configs
from coe.serve.benchmark import benchmark_boards, past_boards, soak, speed, steady_pace
from coe.serve.benchmark.benchmark_figures import Measured, Part
from coe.serve.benchmark.processes import BenchDevice
from coe.serve.benchmark.running import BenchmarkPicture, Service, made, running
from coe.serve.benchmark.steady_pace import BoardPace
from coe.serve.clock import now_us
from coe.serve.creation import Wanted
from coe.serve.database import recipe_versions
from coe.serve.database.connecting import open_database

FACTORY = BoardPace(600, 500, 6.0, 180.0)
"""A board with 500 components every six seconds."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much is measured: boards in the history, event clients, repeats of each part, and the pace of boards.

    `speed_images` is the least number of images of a round: the first batches of a round are small, and its first loads
    find no batch beside them.
    """

    history: int = 100_000
    clients: int = 200
    rounds: int = 5
    speed_images: int = 1000
    decisions: int = 200
    views: int = 200
    page_repeats: int = 9
    client_boards: int = 20
    pace: BoardPace = FACTORY
    soak: BoardPace | None = None


QUICK = Amounts(
    history=40,
    clients=5,
    rounds=1,
    speed_images=1,
    decisions=3,
    views=2,
    page_repeats=1,
    client_boards=2,
    pace=BoardPace(36_000, 4, 30.0, 0.5),
)
"""So little that all parts run, and no figure says anything."""


@dataclass(frozen=True, slots=True)
class ServiceBenchPlan:
    """A board with its experts and its pictures, and the parts to measure."""

    wanted: Wanted
    images: Path
    folder: Path
    parts: Collection[Part]
    amounts: Amounts
    samples: Path | None = None


def pictures_of(board: str, folder: Path) -> list[BenchmarkPicture]:
    """Return the pictures of components in a folder; raises ConfigError if there is none."""
    found, _ = finding.find(folder, rules.load(board).components)
    pictures = [BenchmarkPicture(item.path, item.component) for item in found if item.failure is None]
    if not pictures:
        raise ConfigError(f"--images: {folder} has no picture of a component of board '{board}'")
    return pictures


def run(plan: ServiceBenchPlan, say: Callable[[str], None]) -> Iterator[Measured]:
    """Measure part after part, and yield the figures as they come; raises ServiceFailed, and CoeError of a board."""
    pictures = pictures_of(plan.wanted.board, plan.images)
    folder = plan.folder / "service"
    made(folder, plan.wanted)
    say(f"writing a history of {plan.amounts.history:,} boards")
    _fill(folder, plan)
    with_real = [part for part in Part if part in plan.parts and part is not Part.PACE]
    if with_real:
        say("starting the service")
        with running(folder) as service:
            for part in with_real:
                say(f"measuring: {part}")
                yield from _measured(part, service, plan, pictures)
    if Part.PACE in plan.parts:
        say("starting the service with a device that takes no time")
        with running(folder, BenchDevice.STUB) as service:
            say(f"measuring: {Part.PACE}")
            yield from _measured(Part.PACE, service, plan, pictures)


def _measured(
    part: Part, service: Service, plan: ServiceBenchPlan, pictures: Sequence[BenchmarkPicture]
) -> list[Measured]:
    amounts = plan.amounts
    match part:
        case Part.SPEED:
            load = speed.SpeedLoad(plan.wanted.board, pictures, -(-amounts.speed_images // len(pictures)))
            return speed.speed(service, load, amounts.rounds)
        case Part.DECISIONS:
            return benchmark_boards.decisions(service, pictures, amounts.decisions)
        case Part.INTAKE:
            return benchmark_boards.intake(service, amounts.views)
        case Part.PAGES:
            return benchmark_boards.pages(service, amounts.page_repeats)
        case Part.CLIENTS:
            return benchmark_boards.clients(service, amounts.clients, amounts.client_boards, pictures[0])
        case Part.PACE:
            return steady_pace.pace(service, pictures, amounts.pace)
        case Part.SOAK:
            return [] if amounts.soak is None else soak.soak(service, pictures, amounts.soak, plan.samples)


def _fill(folder: Path, plan: ServiceBenchPlan) -> None:
    config = configs.load(folder / "serve.yaml")
    database = open_database(config.database_url)
    with database.reading() as connection:
        (recipe,) = recipe_versions.all_active(connection)
    components = list(rules.load(plan.wanted.board).components)
    past_boards.fill(database, recipe.id, components, plan.amounts.history, now_us())
    database.shorten_log()
    database.close()
