"""A simulated box with two GPUs, each with a memory of its own: experts lie on both, and both work."""

from __future__ import annotations

import pytest
import yaml

from coe.lab.machine import Configuration, SimulatedMachine
from coe.lab.preset import FOLDER
from coe.lab.simulated import contender, simulated_run
from coe.lab.workloads.workload import task
from coe.scheduler.policies.coserve import COSERVE

ONE = Configuration({"cuda": 2}, {"cuda": 0.75})
TWO = Configuration({"cuda": 2, "cuda:1": 2}, {"cuda": 0.75, "cuda:1": 0.75})


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> SimulatedMachine:
    """The paper's box with a second GPU."""
    box = yaml.safe_load((FOLDER / "numa-rtx3080ti.yaml").read_text(encoding="utf-8"))
    box["memories"]["device 1"] = box["memories"]["device"]
    box["devices"]["cuda:1"] = {**box["devices"]["cuda"], "memory": "device 1"}
    path = tmp_path_factory.mktemp("box") / "two.yaml"
    path.write_text(yaml.safe_dump(box), encoding="utf-8")
    return SimulatedMachine(str(path))


@pytest.mark.parametrize("name", ["late-binding", "coserve"])
def test_a_second_gpu_brings_its_memory_and_its_speed(machine: SimulatedMachine, name: str) -> None:
    day = task("A1", requests=600)
    one, two = (simulated_run(machine, day, contender(name), configuration=asked) for asked in (ONE, TWO))
    assert (two.images, two.errors) == (600, 0)
    assert two.switches < one.switches
    assert one.makespan_s > 1.3 * two.makespan_s


def test_each_gpu_has_pools_of_its_own_memory_and_names_of_its_own(machine: SimulatedMachine) -> None:
    board = task("A1", requests=1).board
    plan = machine.plan(board, machine.costs(board), COSERVE, TWO)
    assert [pool.id for pool in plan.pools] == ["cuda0", "cuda1", "cuda:1/0", "cuda:1/1"]
    assert len({pool.capacity_bytes for pool in plan.pools}) == 1
