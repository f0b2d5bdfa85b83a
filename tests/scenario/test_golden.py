"""How often each strategy switches on the paper's tasks, seed 0: the very numbers.

They change when decisions, presets, boards or the drawing of a workload change, and must not change otherwise. If a
change was meant to alter them, look at the rows of `coe-bench sim` before and after, say in the change why the new ones
are right, and put what a failing test shows as its left side into GOLDEN.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tables import with_slow_rows

from coe.lab.machine import SimulatedMachine
from coe.lab.rows import Row
from coe.lab.simulated import ABLATIONS, CONTENDERS, contender, simulated_run
from coe.lab.workloads.workload import placement, task
from coe.scheduler.strategies import STRATEGIES as STRATEGIES_BY_NAME

STRATEGIES = (
    *("samba", "samba-fifo", "samba-parallel"),
    *("coserve-none", "coserve-em", "coserve-em-ra", "coserve", "coserve-paper-default", "line"),
)
GOLDEN = {
    ("numa-rtx3080ti", "A1", "iid", 300): (158, 177, 270, 182, 131, 125, 66, 81, 50),
    ("uma-m2", "A1", "iid", 300): (134, 145, 231, 207, 148, 136, 85, 90, 66),
    ("numa-rtx3080ti", "A1", "iid", 2500): (1161, 1330, 2031, 1237, 841, 459, 240, 268, 196),
    ("numa-rtx3080ti", "A2", "iid", 3500): (1646, 1883, 2824, 1724, 1167, 518, 272, 306, 221),
    ("numa-rtx3080ti", "B1", "iid", 2500): (1155, 1331, 2025, 1520, 1120, 607, 240, 265, 195),
    ("numa-rtx3080ti", "B2", "iid", 3500): (1616, 1870, 2817, 2106, 1546, 701, 265, 294, 215),
    ("numa-rtx3080ti", "A1", "boards", 2500): (840, 987, 1937, 948, 784, 500, 313, 331, 265),
    ("uma-m2", "A1", "iid", 2500): (928, 1111, 1670, 1476, 1018, 485, 303, 314, 245),
    ("uma-m2", "B2", "iid", 3500): (1291, 1534, 2338, 2060, 1409, 525, 319, 363, 267),
}
"""By box, task, order, and number of images: first the beginning of a task, then whole tasks."""


SEEDS = ("hobbit", "duoserve", "expertflow", "emoe")
"""Techniques of other systems on coserve's base (docs/results.md): without lesser variants no faster by much."""
SEEDS_GOLDEN = {
    ("numa-rtx3080ti", "A1", "iid", 300): (86, 66, 60, 91),
    ("uma-m2", "A1", "iid", 300): (119, 87, 78, 115),
    ("numa-rtx3080ti", "A1", "iid", 2500): (306, 253, 228, 267),
    ("numa-rtx3080ti", "A1", "boards", 2500): (383, 309, 301, 333),
    ("uma-m2", "A1", "iid", 2500): (353, 309, 298, 323),
}


def check(row: Row, requests: int) -> None:
    """Prove what holds of any run."""
    assert (row.images, row.errors) == (requests, 0)
    assert row.lower_bound_switches is not None
    assert row.lower_bound_makespan_s is not None
    assert row.switches >= row.lower_bound_switches > 0, row
    assert row.makespan_s >= row.lower_bound_makespan_s * (1 - 1e-9) > 0, row
    assert 0 < row.p50_s <= row.p99_s <= row.makespan_s, row
    assert 0 < row.disk_loads <= row.switches, row
    assert 0 < row.hit_ratio < 1, row
    assert row.images_per_s == pytest.approx(requests / row.makespan_s)


def test_no_strategy_is_left_out() -> None:
    assert sorted(STRATEGIES + SEEDS) == sorted(CONTENDERS)


# Whole tasks take ten times as long, and `make test-all` runs them.
ROWS = with_slow_rows(GOLDEN, fast=2)


@pytest.mark.parametrize(("device", "name", "order", "images"), ROWS, ids=str)
def test_switches_are_what_they_were(device: str, name: str, order: str, images: int) -> None:
    machine, workload = SimulatedMachine(device), task(name, order=order, requests=images, seed=0)
    rows = {chosen: simulated_run(machine, workload, CONTENDERS[chosen], seed=0) for chosen in STRATEGIES}
    for row in rows.values():
        check(row, len(workload.arrivals))
    speed = {chosen: row.images_per_s for chosen, row in rows.items()}
    # The paper's ablation (section 5.3): each optimization makes it faster, and switches fewer.
    assert speed["coserve-none"] < speed["coserve-em"] < speed["coserve-em-ra"] < speed["coserve"]
    # The paper's comparison (section 5.2): all three baselines are slower, by far.
    assert speed["coserve"] > 1.5 * max(speed[chosen] for chosen in ("samba", "samba-fifo", "samba-parallel"))
    # Ours, with the same memory and executors.
    assert speed["line"] > speed["coserve"]
    # Only what has a copy in host memory is loaded without the disk.
    for chosen, row in rows.items():
        cached = CONTENDERS[chosen].strategy.cached and device == "numa-rtx3080ti"
        assert (row.disk_loads < row.switches) == cached, chosen
    assert tuple(row.switches for row in rows.values()) == GOLDEN[device, name, order, images]


def test_switches_of_a_whole_task_are_what_they_were() -> None:
    """Of the two strategies that switch least; a slow row above has all."""
    machine, workload = SimulatedMachine("numa-rtx3080ti"), task("A1", seed=0)
    rows = [simulated_run(machine, workload, CONTENDERS[chosen], seed=0) for chosen in ("coserve", "line")]
    for row in rows:
        check(row, 2500)
    assert [row.switches for row in rows] == [240, 196]


SEEDS_ROWS = with_slow_rows(SEEDS_GOLDEN, fast=2)


@pytest.mark.parametrize(("device", "name", "order", "images"), SEEDS_ROWS, ids=str)
def test_switches_of_other_systems_are_what_they_were(device: str, name: str, order: str, images: int) -> None:
    machine, workload = SimulatedMachine(device), task(name, order=order, requests=images, seed=0)
    rows = [simulated_run(machine, workload, CONTENDERS[chosen], seed=0) for chosen in SEEDS]
    for row in rows:
        check(row, len(workload.arrivals))
    assert tuple(row.switches for row in rows) == SEEDS_GOLDEN[device, name, order, images]


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_differs_from_its_strategy_and_answers_all(name: str) -> None:
    ablation = ABLATIONS[name].strategy
    whole = next(STRATEGIES_BY_NAME[seed] for seed in SEEDS if name.startswith(seed))
    assert ablation != replace(whole, name=name)
    row = simulated_run(SimulatedMachine("numa-rtx3080ti"), task("A1", requests=40), contender(name), bounded=False)
    assert (row.images, row.errors, row.strategy) == (40, 0, name)


def test_labels_are_drawn_by_the_seed_and_by_nothing_else() -> None:
    machine, workload = SimulatedMachine("uma-m2"), task("A1", requests=300)
    one, again, other = (
        simulated_run(machine, workload, CONTENDERS["coserve-em"], seed=seed, bounded=False) for seed in (0, 0, 1)
    )
    assert (one.switches, one.makespan_s, one.p99_s) == (again.switches, again.makespan_s, again.p99_s)
    assert one.makespan_s != other.makespan_s


@pytest.mark.parametrize(("foreseen", "switches", "ahead"), [("parts", 117, 117), ("none", 216, 0)])
def test_switches_at_a_trickle_are_what_they_were(foreseen: str, switches: int, ahead: int) -> None:
    """900 images of board A, one every 200 ms."""
    workload = task("A1", order="boards", requests=900, every_s=0.2, seed=0)
    parts = placement(workload.board, seed=0)
    workload = replace(workload, parts=parts) if foreseen == "parts" else workload.unforeseen()
    row = simulated_run(SimulatedMachine("uma-m2"), workload, CONTENDERS["line"], seed=0)
    check(row, 900)
    assert (row.switches, row.speculated) == (switches, ahead)
    assert row.in_order_switches is not None
    assert row.switches >= row.in_order_switches >= 112
