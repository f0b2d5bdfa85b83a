"""How often the engine's strategies switch on the paper's tasks, seed 0: the very numbers.

They change when decisions, presets, boards or the drawing of a workload change, and must not change otherwise. If a
change was meant to alter them, look at the rows of `coe-bench sim` before and after, say in the change why the new ones
are right, and put what a failing test shows as its left side into GOLDEN.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from lines import ENGINE
from tables import with_slow_rows

from coe.lab.machine import SimulatedMachine
from coe.lab.rows import Row
from coe.lab.simulated import contender, simulated_run
from coe.lab.workloads.workload import placement, task

GOLDEN = {
    ("numa-rtx3080ti", "A1", "iid", 300): (66, 50),
    ("uma-m2", "A1", "iid", 300): (85, 66),
    ("numa-rtx3080ti", "A1", "iid", 2500): (240, 196),
    ("numa-rtx3080ti", "A2", "iid", 3500): (272, 221),
    ("numa-rtx3080ti", "B1", "iid", 2500): (240, 195),
    ("numa-rtx3080ti", "B2", "iid", 3500): (265, 215),
    ("numa-rtx3080ti", "A1", "boards", 2500): (313, 265),
    ("uma-m2", "A1", "iid", 2500): (303, 245),
    ("uma-m2", "B2", "iid", 3500): (319, 267),
}
"""By box, task, order, and number of images, in the order of `ENGINE`: first the beginning of a task."""


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


# Whole tasks take ten times as long, and `make test-all` runs most of them.
@pytest.mark.parametrize(("device", "name", "order", "images"), with_slow_rows(GOLDEN, fast=3), ids=str)
def test_switches_are_what_they_were(device: str, name: str, order: str, images: int) -> None:
    machine, workload = SimulatedMachine(device), task(name, order=order, requests=images, seed=0)
    coserve, late = rows = [simulated_run(machine, workload, contender(chosen), seed=0) for chosen in ENGINE]
    for row in rows:
        check(row, len(workload.arrivals))
        # Without a host cache everything comes from the disk.
        assert row.disk_loads == row.switches
    assert late.images_per_s > coserve.images_per_s
    assert (coserve.switches, late.switches) == GOLDEN[device, name, order, images]


def test_labels_are_drawn_by_the_seed_and_by_nothing_else() -> None:
    machine, workload = SimulatedMachine("uma-m2"), task("A1", requests=300)
    one, again, other = (
        simulated_run(machine, workload, contender("coserve"), seed=seed, bounded=False) for seed in (0, 0, 1)
    )
    assert (one.switches, one.makespan_s, one.p99_s) == (again.switches, again.makespan_s, again.p99_s)
    assert one.makespan_s != other.makespan_s


@pytest.mark.parametrize(("foreseen", "switches", "ahead"), [("parts", 117, 117), ("none", 216, 0)])
def test_switches_at_a_trickle_are_what_they_were(foreseen: str, switches: int, ahead: int) -> None:
    """900 images of board A, one every 200 ms."""
    workload = task("A1", order="boards", requests=900, every_s=0.2, seed=0)
    parts = placement(workload.board, seed=0)
    workload = replace(workload, parts=parts) if foreseen == "parts" else workload.unforeseen()
    row = simulated_run(SimulatedMachine("uma-m2"), workload, contender("late-binding"), seed=0)
    check(row, 900)
    assert (row.switches, row.speculated) == (switches, ahead)
    assert row.in_order_switches is not None
    assert row.switches >= row.in_order_switches >= 112
