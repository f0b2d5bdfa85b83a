"""One run of the benchmark: which parts, how much of each. Parts of one run meet the same service and history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coe.board import rules
from coe.errors import ConfigError
from coe.pictures import finding
from coe.pictures.found_image import FoundImage
from coe.serve import service_config as configs
from coe.serve.benchmark import benchmark_boards, past_boards, steady_pace
from coe.serve.benchmark.benchmark_figures import Measured, Part
from coe.serve.benchmark.processes import BenchDevice
from coe.serve.benchmark.running import Service, made, running
from coe.serve.benchmark.steady_pace import BoardPace
from coe.serve.clock import now_us
from coe.serve.creation import Wanted
from coe.serve.database import recipe_versions
from coe.serve.database.connecting import open_database

QUICK = {
    "history": 40,
    "clients": 5,
    "rounds": 1,
    "speed_images": 1,
    "decisions": 3,
    "views": 2,
    "page_repeats": 1,
    "client_boards": 2,
}
"""So little that all parts run, and no figure says anything."""


@dataclass(frozen=True, slots=True)
class ServiceBenchPlan:
    """A board with its experts and its pictures, the parts to measure, and how much of each.

    `pace` is that of the parts pace and soak. `speed_images` is the least number of images of a round: the first
    batches of a round are small, and its first loads find no batch beside them.
    """

    wanted: Wanted
    images: Path
    folder: Path
    parts: Collection[Part]
    pace: BoardPace
    history: int = 100_000
    clients: int = 200
    rounds: int = 5
    speed_images: int = 1000
    decisions: int = 200
    views: int = 200
    page_repeats: int = 9
    client_boards: int = 20

    def run(self, say: Callable[[str], None]) -> Iterator[Measured]:
        """Measure part after part, and yield the figures; raises ServiceFailed, and CoeError of a board."""
        found, _ = finding.find(self.images, rules.load(self.wanted.board).components)
        pictures = [item for item in found if item.failure is None]
        if not pictures:
            raise ConfigError(f"--images: {self.images} has no picture of a component of board '{self.wanted.board}'")
        folder = self.folder / "service"
        made(folder, self.wanted)
        say(f"writing a history of {self.history:,} boards")
        self._fill(folder)
        for device in BenchDevice:
            parts = [
                part for part in Part if part in self.parts and (part is Part.PACE) == (device is BenchDevice.STUB)
            ]
            if parts:
                say(f"starting the service, device: {device}")
                with running(folder, device) as service:
                    for part in parts:
                        say(f"measuring: {part}")
                        yield from self._measured(part, service, pictures)

    def _fill(self, folder: Path) -> None:
        database = open_database(configs.load(folder / "serve.yaml").database_url)
        (recipe,) = database.read(recipe_versions.all_active)
        components = list(rules.load(self.wanted.board).components)
        past_boards.fill(database, recipe.id, components, self.history, now_us())
        database.shorten_log()
        database.close()

    def _measured(self, part: Part, service: Service, pictures: Sequence[FoundImage]) -> list[Measured]:
        match part:
            case Part.SPEED:
                boards = -(-self.speed_images // len(pictures))
                return benchmark_boards.speed(service, self.wanted.board, pictures, boards, self.rounds)
            case Part.DECISIONS:
                return benchmark_boards.decisions(service, pictures, self.decisions)
            case Part.INTAKE:
                return benchmark_boards.intake(service, self.views)
            case Part.PAGES:
                return benchmark_boards.pages(service, self.page_repeats)
            case Part.CLIENTS:
                return benchmark_boards.clients(service, self.clients, self.client_boards, pictures[0])
            case Part.PACE:
                return steady_pace.pace(service, pictures, self.pace)
            case Part.SOAK:
                return steady_pace.soak(service, pictures, self.pace)
