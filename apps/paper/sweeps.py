"""The paper's two sweeps in virtual time: throughput over executors (figure 17) and over loaded experts (figure 18)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from apps.paper.curves import ExecutorPoint, LoadedPoint
from coe.profiler.search import windows
from coe.scheduler.plan import TooSmall
from coe.sim.machine import Configuration, Machine, workspace_wanted
from coe.sim.workload import Workload
from coe.trials.simulated import CONTENDERS, simulated_run

MOST_FIRST, MOST_SECOND = 5, 3
"""The most executors of a box's first and second device that are tried."""


def executors(machine: Machine, workload: Workload, *, seed: int, tick: Callable[[], None]) -> list[ExecutorPoint]:
    """Try more executors of the first device, then of the second device with the best number of the first.

    Numbers that leave an executor too little memory for one expert are left out.
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
    """Try the bounds of the paper's windows as the number of experts that the first device's memory holds.

    Experts count with the board's mean size. Numbers that leave too little memory for one image, or for one expert,
    are left out.
    """
    best = machine.configuration("best", workload.board.board)
    first = next(iter(machine.preset.devices))
    costs = machine.costs(workload.board)
    mean_bytes = sum(costs(first, expert).weights_bytes for expert in workload.board.experts) / len(
        workload.board.experts
    )
    strategy = CONTENDERS["coserve"].strategy
    plan = machine.plan(workload.board, costs, strategy, best)
    capacity = sum(pool.capacity_bytes for pool in plan.pools if pool.device == first)
    points = []
    for experts in windows():
        share = experts * mean_bytes / capacity
        if share >= 1:
            break
        shares = {**best.expert_share, first: share}
        tried = machine.plan(workload.board, costs, strategy, Configuration(best.executors, shares))
        pools = [pool for pool in tried.pools if pool.device == first]
        if any(pool.workspace_bytes != workspace_wanted(pool.capacity_bytes, share) for pool in pools):
            # The plan took another share, because an image or an expert did not fit.
            continue
        speed = _speed(machine, workload, best.executors, shares, seed)
        tick()
        if speed is not None:
            points.append(LoadedPoint(machine.name, workload.task, experts, speed))
    return points


def _speed(
    machine: Machine, workload: Workload, numbers: Mapping[str, int], share: Mapping[str, float], seed: int
) -> float | None:
    """Return images a second; None if an expert does not fit."""
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
