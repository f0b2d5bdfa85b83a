"""The paper's sweeps: which numbers are tried, and which are left out because nothing would fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from apps.paper import sweeps
from apps.paper.sweeps import MOST_FIRST, MOST_SECOND
from coe.errors import ConfigError
from coe.profiler.search import windows
from coe.sim.machine import Configuration, Machine
from coe.sim.preset import SourcedFigure
from coe.sim.workload import task
from coe.trials.simulated import CONTENDERS, simulated_run

WORK = task("A1", requests=40)


class Ticks:
    """Counts what a progress bar is told."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self) -> None:
        self.seen += 1


def with_memory(machine: Machine, memory: str, size: int) -> Machine:
    """Give a machine another memory."""
    spec = machine.preset.memories[memory]
    figure = SourcedFigure[int].model_validate([spec.reserved.value + size, "made up"])
    memories = machine.preset.memories | {memory: spec.model_copy(update={"size": figure})}
    machine.preset = machine.preset.model_copy(update={"memories": memories})
    return machine


def test_executors_are_added_to_the_first_device_and_then_to_the_second() -> None:
    ticks = Ticks()
    points = sweeps.executors(Machine("numa-rtx3080ti"), WORK, seed=0, tick=ticks)
    names = [point.executors for point in points]
    assert names[:MOST_FIRST] == ["1G", "2G", "3G", "4G", "5G"]
    best = max(points[:MOST_FIRST], key=lambda point: point.images_per_s).executors
    assert names[MOST_FIRST:] == [f"{best}+{second}C" for second in range(1, MOST_SECOND + 1)]
    assert {(point.device, point.task) for point in points} == {("numa-rtx3080ti", "A1")}
    assert ticks.seen == MOST_FIRST + MOST_SECOND


def test_a_point_is_what_a_run_with_these_numbers_gives() -> None:
    machine = Machine("uma-m2")
    point = sweeps.executors(machine, WORK, seed=3, tick=Ticks())[2]
    share = machine.configuration("best", "board_a").expert_share
    row = simulated_run(machine, WORK, CONTENDERS["coserve"], seed=3, configuration=Configuration({"mps": 3}, share))
    assert (point.executors, point.images_per_s) == ("3G", row.images_per_s)


def test_a_box_with_one_device_has_no_second() -> None:
    points = sweeps.executors(Machine("cpu-2core"), WORK, seed=0, tick=Ticks())
    assert [point.executors for point in points] == ["1", "2", "3", "4", "5"]


def test_executors_that_an_expert_does_not_fit_are_left_out() -> None:
    machine = with_memory(Machine("cpu-2core"), "host", 700_000_000)
    ticks = Ticks()
    assert [point.executors for point in sweeps.executors(machine, WORK, seed=0, tick=ticks)] == ["1", "2"]
    assert ticks.seen == MOST_FIRST


def test_a_board_that_the_box_has_no_costs_for_is_not_left_out_in_silence() -> None:
    machine = Machine("cpu-2core")
    kinds = {name: kind for name, kind in machine.preset.kinds.items() if name != "resnet101"}
    machine.preset = machine.preset.model_copy(update={"kinds": kinds})
    with pytest.raises(ConfigError, match="no cost of kind 'resnet101'"):
        sweeps.executors(machine, WORK, seed=0, tick=Ticks())


@pytest.mark.parametrize("name", ["numa-rtx3080ti", "uma-m2"])
def test_as_many_experts_are_loaded_as_is_said(name: str) -> None:
    """What the plan leaves for experts is what the number says: none is shown twice under different names."""
    machine = Machine(name)
    points = sweeps.loaded_experts(machine, WORK, seed=0, tick=Ticks())
    numbers = [point.experts for point in points]
    assert numbers == [bound for bound in windows() if bound <= numbers[-1]]
    assert numbers[0] == 15
    found = machine.configuration("best", "board_a")
    costs, first = machine.costs(WORK.board), next(iter(machine.preset.devices))
    mean = sum(costs(first, expert).weights_bytes for expert in WORK.board.experts) / len(WORK.board.experts)
    plan = machine.plan(WORK.board, costs, CONTENDERS["coserve"].strategy, found)
    pools = [pool for pool in plan.pools if pool.device == first]
    single = max(costs(first, expert).batch_bytes(1) for expert in WORK.board.experts)
    room = sum(pool.capacity_bytes - single for pool in pools)
    assert room / mean - 15 < numbers[-1] <= room / mean


def test_points_carry_the_name_of_their_task() -> None:
    points = sweeps.loaded_experts(Machine("cpu-2core"), replace(WORK, task="other"), seed=0, tick=Ticks())
    assert {(point.device, point.task) for point in points} == {("cpu-2core", "other")}
