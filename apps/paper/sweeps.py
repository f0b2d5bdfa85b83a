"""The paper's two sweeps in virtual time: throughput over executors (figure 17) and over loaded experts (figure 18)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from apps.paper.curves import ExecutorPoint, LoadedPoint
from coe.bench.simulated import CONTENDERS, simulated_run
from coe.profiler.search import windows
from coe.scheduler.plan import TooSmall
from coe.sim.machine import Configuration, Machine, workspace_wanted
from coe.sim.workload import Workload

MOST_FIRST, MOST_SECOND = 5, 3
"""Up to how many executors of a box's first and second device are tried."""


def executors(machine: Machine, workload: Workload, *, seed: int, tick: Callable[[], None]) -> list[ExecutorPoint]:
    """Try more executors of the first device, then of the second beside the best number of the first.

    Counts that leave an executor too little memory for one expert are left out.
    """
    devices = list(machine.preset.devices)
    share = machine.configuration("best", workload.board.board).expert_share
    points: dict[tuple[int, int], ExecutorPoint] = {}

    def measure(first: int, second: int) -> float:
        numbers = {devices[0]: first} | ({devices[1]: second} if second else {})
        name = f"{first}G" + (f"+{second}C" if second else "") if len(devices) > 1 else f"{first}"
        speed = _speed(machine, workload, numbers, share, seed)
        tick()
        if speed is not None:
            points[first, second] = ExecutorPoint(machine.name, workload.task, name, speed)
        return speed or 0.0

    best = max(range(1, MOST_FIRST + 1), key=lambda first: measure(first, 0))
    if len(devices) > 1:
        for second in range(1, MOST_SECOND + 1):
            measure(best, second)
    return list(points.values())


def loaded_experts(machine: Machine, workload: Workload, *, seed: int, tick: Callable[[], None]) -> list[LoadedPoint]:
    """Let the first device's memory hold as many experts as the bounds of the paper's windows say.

    An expert stands for the mean of the board's. Numbers that leave too little for one image,
    or for one expert, are left out.
    """
    found = machine.configuration("best", workload.board.board)
    first = next(iter(machine.preset.devices))
    costs = machine.costs(workload.board)
    mean_bytes = sum(costs(first, expert).weights_bytes for expert in workload.board.experts) / len(
        workload.board.experts
    )
    strategy = CONTENDERS["coserve"].strategy
    plan = machine.plan(workload.board, costs, strategy, found)
    capacity = sum(pool.capacity_bytes for pool in plan.pools if pool.device == first)
    points = []
    for experts in windows():
        share = experts * mean_bytes / capacity
        if share >= 1:
            break
        shares = {**found.expert_share, first: share}
        tried = machine.plan(workload.board, costs, strategy, Configuration(found.executors, shares))
        pools = [pool for pool in tried.pools if pool.device == first]
        if any(pool.workspace_bytes != workspace_wanted(pool.capacity_bytes, share) for pool in pools):
            # The plan had to take another share: an image or an expert would not have fitted.
            continue
        speed = _speed(machine, workload, found.executors, shares, seed)
        tick()
        if speed is not None:
            points.append(LoadedPoint(machine.name, workload.task, experts, speed))
    return points


def _speed(
    machine: Machine, workload: Workload, numbers: Mapping[str, int], share: Mapping[str, float], seed: int
) -> float | None:
    """Return images a second, None where an expert does not fit."""
    try:
        row = simulated_run(
            machine,
            workload,
            CONTENDERS["coserve"],
            seed=seed,
            configuration=Configuration(numbers, share),
            bounded=False,
        )
    except TooSmall:
        return None
    return row.images_per_s
