"""Where experts lie while a GPU line runs in virtual time: what is moved on the device, and how many pieces a copy has.

    python -m apps.memory_places --board board_a --doubtful 0.02

The simulator says what comes and goes; the books of the GPU's memories (`coe.runtime.cuda.extents`) say where. Host
memory is kept twice: in pieces, as the line does, and in one run each, for which other copies are moved
(docs/results/mixed.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated

import typer

from coe import config
from coe.board import rules
from coe.cli.common import application, out, run
from coe.lab.simulated_precision import VariantShares, prepared_run
from coe.runtime.cuda.extents import Extent, Extents
from coe.scheduler.costs import CostTable, Tier
from coe.scheduler.events import Command, Event, Evict, Fill, Load, Loaded, LoadFailed
from coe.sim.machine import Machine
from coe.sim.workload import synthetic
from coe.store.blob_format import PAGE
from coe.trials.simulated import contender, run_plan

app = application("Where experts lie in a GPU's memories, in virtual time.")
DEVICE = "cuda"
EVERY_S = 0.004
"""Seconds between two images."""


class Memory:
    """Where experts lie in `capacity` bytes: in one run each, for which others are moved, or `in_pieces`.

    `moved` has the bytes that each placing moved, where it moved any; `pieces` the number of pieces of each expert.
    """

    def __init__(self, capacity: int, *, in_pieces: bool = False) -> None:
        self.extents = Extents(capacity)
        self.moved: list[int] = []
        self.pieces: list[int] = []
        self._in_pieces = in_pieces
        self._held: dict[object, list[Extent]] = {}

    def take(self, name: object, size: int) -> None:
        """Place an expert."""
        extents = self.extents.take_scattered(size) if self._in_pieces else self._one_run(size)
        assert extents is not None, f"{name} does not fit into {self.extents!r}"
        self._held[name] = extents
        self.pieces.append(len(extents))

    def _one_run(self, size: int) -> list[Extent] | None:
        moved: list[int] = []
        extent = self.extents.take(size, lambda other, to: moved.append(other.size))
        if moved:
            self.moved.append(sum(moved))
        return None if extent is None else [extent]

    def give(self, name: object) -> None:
        """Free an expert's place, if it has one."""
        for extent in self._held.pop(name, ()):
            self.extents.give(extent)

    def __str__(self) -> str:
        if self._in_pieces:
            many = sum(number > 1 for number in self.pieces)
            return f"{many} of {len(self.pieces)} copies in pieces, at most {max(self.pieces, default=0)}"
        return (
            f"{len(self.moved)} placings moved others, {sum(self.moved) / 1e9:.1f} GB together, at most "
            f"{max(self.moved, default=0) / 1e6:,.0f} MB"
        )


@dataclass
class Places:
    """Keeps the books of the device and of host memory while commands pass; `pools` are those of the device."""

    costs: CostTable
    pools: frozenset[str]
    device: Memory
    hosts: tuple[Memory, ...]
    makespan_s: float = 0.0
    """Seconds from the first image to the last reply, once the run is over."""
    _sizes: dict[tuple[str, str], int] = field(default_factory=dict)
    _copies: set[str] = field(default_factory=set)

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Place what comes, and free what goes."""
        for command in commands:
            match command:
                case Load() if command.pool in self.pools:
                    self._load(command)
                case Fill():
                    self._keep(command.expert, self._size(command.expert, command.variant))
                case Evict() if command.pool in self.pools:
                    self._evict(command)
        if isinstance(event, Loaded | LoadFailed):
            self._free("passing", event.pool, event.expert)

    def _size(self, expert: str, variant: str) -> int:
        return self.costs.of(DEVICE, expert, variant).weights_bytes

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
    box, board = prepared.box, prepared.workload.board
    assert box.plan.cache is not None, f"{machine!r} keeps no copies in host memory"
    pools = [pool for pool in prepared.strategy.pooled(box.plan).pools if pool.device == DEVICE]
    largest = max(box.costs(DEVICE, expert).weights_bytes for expert in board.graph.experts)
    # Two experts are on their way, as `CudaDevice.prepare` allows for, and each expert takes whole pages.
    host_bytes = box.plan.cache.capacity_bytes + 2 * (largest + 2 * PAGE) + PAGE * len(board.experts)
    device_bytes = sum(pool.capacity_bytes - pool.workspace_bytes for pool in pools) + PAGE * len(board.experts)
    hosts = Memory(host_bytes), Memory(host_bytes, in_pieces=True)
    places = Places(box.costs, frozenset(pool.id for pool in pools), Memory(device_bytes), hosts)
    named = replace(contender(strategy), strategy=prepared.strategy)
    places.makespan_s = run_plan(prepared.workload, named, box, bounded=False, watchers=[places]).makespan_s
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
    out.print(
        f"the last reply came {places.makespan_s - EVERY_S * (images - 1):.1f} s after the last image", soft_wrap=True
    )


def main() -> None:
    """Run `python -m apps.memory_places`."""
    run(app)


if __name__ == "__main__":
    main()
