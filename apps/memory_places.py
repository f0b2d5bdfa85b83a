"""Where experts lie while a GPU line runs in virtual time: what is moved on the device, and how many pieces a copy has.

    python -m apps.memory_places --board board_a --doubtful 0.02

The simulator says what comes and goes; the books of the GPU's memories (`coe.runtime.cuda.extents`) say where. Host
memory is kept twice: in pieces, as the line does, and in one run each, for which other copies are moved
(docs/results/mixed.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import typer

from coe import config
from coe.bench.simulated import contender
from coe.bench.simulated_precision import VariantShares, prepared_run
from coe.board import rules
from coe.cli.common import application, out, run
from coe.runtime.cuda.extents import Extent, Extents
from coe.scheduler.controller import Controller
from coe.scheduler.costs import Tier
from coe.scheduler.events import Command, Event, Evict, Fill, Load, Loaded, LoadFailed
from coe.sim.agenda import Agenda
from coe.sim.machine import Machine
from coe.sim.oracle import SampledOracle
from coe.sim.simulator import Simulator, Speeds
from coe.sim.workload import synthetic
from coe.store.blob_format import PAGE

app = application("Where experts lie in a GPU's memories, in virtual time.")
DEVICE = "cuda"


class Runs:
    """Experts in one run each; `moved` has the bytes that each placing moved, where it moved any."""

    def __init__(self, capacity: int) -> None:
        self.extents = Extents(capacity)
        self.moved: list[int] = []
        self._held: dict[object, Extent] = {}

    def take(self, name: object, size: int) -> None:
        """Place an expert."""
        moved: list[int] = []
        extent = self.extents.take(size, lambda other, to: moved.append(other.size))
        assert extent is not None, f"{name} does not fit into {self.extents!r}"
        self._held[name] = extent
        if moved:
            self.moved.append(sum(moved))

    def give(self, name: object) -> None:
        """Free an expert's place, if it has one."""
        if (extent := self._held.pop(name, None)) is not None:
            self.extents.give(extent)

    def __str__(self) -> str:
        return (
            f"{len(self.moved)} placings moved others, {sum(self.moved) / 1e9:.1f} GB together, at most "
            f"{max(self.moved, default=0) / 1e6:,.0f} MB"
        )


class Pieces:
    """Experts in as few pieces as there are; `numbers` has the number of pieces of each."""

    def __init__(self, capacity: int) -> None:
        self.extents = Extents(capacity)
        self.numbers: list[int] = []
        self._held: dict[object, list[Extent]] = {}

    def take(self, name: object, size: int) -> None:
        """Place an expert."""
        extents = self.extents.take_scattered(size)
        assert extents is not None, f"{name} does not fit into {self.extents!r}"
        self._held[name] = extents
        self.numbers.append(len(extents))

    def give(self, name: object) -> None:
        """Free an expert's place, if it has one."""
        for extent in self._held.pop(name, ()):
            self.extents.give(extent)

    def __str__(self) -> str:
        many = sum(number > 1 for number in self.numbers)
        return f"{many} of {len(self.numbers)} copies in pieces, at most {max(self.numbers, default=0)}"


@dataclass
class Places:
    """Keeps the books of the device and of host memory while commands pass."""

    controller: Controller
    device: Runs
    hosts: tuple[Runs | Pieces, ...]
    _sizes: dict[tuple[str, str], int] = field(default_factory=dict)
    _copies: set[str] = field(default_factory=set)

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Place what comes, and free what goes."""
        for command in commands:
            match command:
                case Load() if self._is_on_device(command.pool):
                    self._load(command)
                case Fill():
                    self._keep(command.expert, self._size(command.expert, command.variant))
                case Evict() if self._is_on_device(command.pool):
                    self._evict(command)
        if isinstance(event, Loaded | LoadFailed):
            self._free("passing", event.pool, event.expert)

    def _is_on_device(self, pool: str) -> bool:
        return self.controller.pools[pool].device == DEVICE

    def _size(self, expert: str, variant: str) -> int:
        return self.controller.costs.of(DEVICE, expert, variant).weights_bytes

    def _load(self, load: Load) -> None:
        size = self._sizes[load.pool, load.expert] = self._size(load.expert, load.variant)
        self._drop(load.drops)
        if load.source is Tier.DISK and load.keep_copy:
            self._keep(load.expert, size)
        elif load.source is Tier.DISK:
            self._place(("passing", load.pool, load.expert), size)
        self.device.take((load.pool, load.expert), size)

    def _evict(self, evict: Evict) -> None:
        self._drop(evict.drops)
        if evict.keep_copy and evict.expert not in self._copies:
            self._keep(evict.expert, self._sizes[evict.pool, evict.expert])
        self.device.give((evict.pool, evict.expert))

    def _keep(self, expert: str, size: int) -> None:
        self._copies.add(expert)
        self._place(("copy", expert), size)

    def _drop(self, experts: Iterable[str]) -> None:
        for expert in experts:
            self._copies.discard(expert)
            self._free("copy", expert)

    def _place(self, name: object, size: int) -> None:
        for host in self.hosts:
            host.take(name, size)

    def _free(self, *name: str) -> None:
        for host in self.hosts:
            host.give(name)


def watched(machine: Machine, board: rules.Rules, images: int, shares: VariantShares, strategy: str) -> Places:
    """Run images of a board in virtual time, one every 4 ms, and return where experts lay."""
    workload = synthetic(board, task="iid", requests=images)
    prepared = prepared_run(machine, workload, contender(strategy).strategy, shares)
    box, applied = prepared.box, prepared.workload.board
    controller = Controller(
        router=applied.router, graph=applied.graph, costs=box.costs, plan=box.plan, strategy=prepared.strategy
    )
    assert box.plan.cache is not None, f"{machine!r} keeps no copies in host memory"
    pools = [pool.capacity_bytes - pool.workspace_bytes for pool in box.plan.pools if pool.device == DEVICE]
    largest = max(box.costs(DEVICE, expert).weights_bytes for expert in applied.graph.experts)
    # Two experts are on their way, as `CudaDevice.prepare` allows for, and each expert takes whole pages.
    host_bytes = box.plan.cache.capacity_bytes + 2 * (largest + 2 * PAGE) + PAGE * len(applied.experts)
    device_bytes = sum(pools) + PAGE * len(applied.experts)
    places = Places(controller, Runs(device_bytes), (Runs(host_bytes), Pieces(host_bytes)))
    simulator = Simulator(
        controller,
        SampledOracle(applied, 0, prepared.workload.doubtful),
        speeds=Speeds(box.scaling),
        watchers=[places],
        preloaded=True,
        agenda=Agenda(time.perf_counter),
    )
    simulator.start(warm=shares.warm)
    simulator.run(prepared.workload.arrivals)
    for memory in (places.device, *places.hosts):
        memory.extents.check()
    return places


@app.command()
def memory_places(
    board: Annotated[str, typer.Option(help="Board: a name or a YAML file.")] = "board_a",
    device: Annotated[str, typer.Option(help="Preset of the box.")] = "numa-rtx3080ti",
    strategy: Annotated[str, typer.Option(help="Strategy.")] = "line",
    images: Annotated[
        int, typer.Option(min=1, max=config.MAX_COUNT, help="The number of images, one every 4 ms.")
    ] = 15_000,
    doubtful: Annotated[float, typer.Option(min=0, max=1, help="Share of findings that run again in fp32.")] = 0.02,
    warm: Annotated[bool, typer.Option("--warm", help="Host memory is full at time 0.")] = False,
) -> None:
    """Say how often experts moved, and in how many pieces they lay.

    Example: python -m apps.memory_places --board board_b --doubtful 0.02 --warm
    """
    shares = VariantShares("mixed", doubtful=doubtful, warm=warm)
    places = watched(Machine(device), rules.load(board), images, shares, strategy)
    in_runs, in_pieces = places.hosts
    out.print(f"device, in one run each: {places.device}", soft_wrap=True)
    out.print(f"host memory, in one run each: {in_runs}", soft_wrap=True)
    out.print(f"host memory, in pieces: {in_pieces}", soft_wrap=True)


def main() -> None:
    """Run `python -m apps.memory_places`."""
    run(app)


if __name__ == "__main__":
    main()
