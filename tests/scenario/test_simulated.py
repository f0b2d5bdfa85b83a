"""Simulated runs as rows: on any box no strategy beats the bound in its own row, and nothing is lost."""

import random
from dataclasses import replace

import pytest
import yaml
from boxes import boxes
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import ENGINE, board, line_of
from tables import with_slow_rows
from thorough import THOROUGH

from coe.core import Request
from coe.lab.machine import Configuration, SimulatedMachine
from coe.lab.preset import FOLDER
from coe.lab.simulated import PlannedBox, contender, run_plan, simulated_run
from coe.lab.workloads.workload import Workload, placement, task
from coe.scheduler.strategies import names
from coe.sim.agenda import Arrival

LATE_S = st.sampled_from([0.0, 0.0, 7.3, 1000.0])


@given(st.data(), cases(), st.sampled_from(names()), LATE_S, st.integers(0, 9))
@settings(max_examples=25 * THOROUGH, deadline=None)
def test_no_row_beats_its_own_bound(data, case, name, late_s, seed):
    """Several devices, copies, a host cache, speeds; requests may begin late, as in a recorded day."""
    box = data.draw(boxes(case))
    arrivals = [Arrival(late_s + at_s, Request(i, component)) for i, (at_s, component) in enumerate(case.arrivals)]
    workload = Workload("test", "iid", case.rules, arrivals)
    scaling = {device: tuple(speeds) for device, speeds in box.scaling.items()}
    row = run_plan(workload, contender(name), PlannedBox("box", box.costs, box.plan, scaling), seed=seed)
    assert (row.images, row.errors) == (len(arrivals), 0)
    assert row.lower_bound_makespan_s is not None
    assert row.disk_loads <= row.switches
    assert row.switches >= row.lower_bound_switches
    slack_s = 1e-9 * (1 + late_s + row.makespan_s)
    assert row.makespan_s >= row.lower_bound_makespan_s - slack_s
    assert row.p50_s <= row.p99_s <= row.makespan_s + slack_s


def test_a_bound_counts_from_the_first_request_as_a_makespan_does():
    """A day's recording may begin at any time."""
    day = task("A1", requests=50)
    late = replace(day, arrivals=[Arrival(3600 + one.at_s, one.request) for one in day.arrivals])
    early_row, late_row = (simulated_run(SimulatedMachine("uma-m2"), one, contender("coserve")) for one in (day, late))
    assert late_row.lower_bound_makespan_s == pytest.approx(early_row.lower_bound_makespan_s)
    assert late_row.makespan_s == pytest.approx(early_row.makespan_s)
    assert late_row.switches == early_row.switches


# A simulated box with two GPUs, each with a memory of its own


ONE = Configuration({"cuda": 2}, {"cuda": 0.75})
TWO = Configuration({"cuda": 2, "cuda:1": 2}, {"cuda": 0.75, "cuda:1": 0.75})


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """The paper's box with a second GPU."""
    box = yaml.safe_load((FOLDER / "numa-rtx3080ti.yaml").read_text(encoding="utf-8"))
    box["memories"]["device 1"] = box["memories"]["device"]
    box["devices"]["cuda:1"] = {**box["devices"]["cuda"], "memory": "device 1"}
    path = tmp_path_factory.mktemp("box") / "two.yaml"
    path.write_text(yaml.safe_dump(box), encoding="utf-8")
    return SimulatedMachine(str(path))


@pytest.mark.parametrize("name", ["late-binding", "coserve"])
def test_a_second_gpu_brings_its_memory_and_its_speed(machine, name):
    day = task("A1", requests=300)
    one, two = (simulated_run(machine, day, contender(name), configuration=asked) for asked in (ONE, TWO))
    assert (two.images, two.errors) == (300, 0)
    assert two.switches < one.switches
    assert one.makespan_s > 1.3 * two.makespan_s


# The strategies of the engine


def long_tail(seed):
    """Twelve components with a long tail of counts; every third goes on to one of two shared experts."""
    names = "ABCDEFGHIJKL"
    counts = {name: 24 / (1 + index) for index, name in enumerate(names)}
    follows = {name.lower(): "yz"[index % 2] for index, name in enumerate(names) if index % 3 == seed % 3}
    return board(counts, follows)


def switches(name, seed):
    """Loads after the start, for 300 images that come faster than they can be inspected."""
    rules, random_ = long_tail(seed), random.Random(seed)
    line = line_of(rules, 54, executors=2, strategy=name)
    counts = [component.count for component in rules.components.values()]
    for index, component in enumerate(random_.choices([*rules.components], counts, k=300)):
        line.arrive(20.0 + index * 0.05, component)
    line.run()
    assert len(line.results) == 300
    return line.switches


@pytest.mark.parametrize(("seed", "known"), [(1, (25, 15)), (2, (27, 17)), (3, (16, 16)), (4, (24, 17))])
def test_switches_are_known_and_late_binding_has_fewer(seed, known):
    """Not on every small board: it makes room ahead, so that the disk need not wait, and that may be a load more."""
    assert tuple(switches(name, seed) for name in ENGINE) == known


# How often the engine's strategies switch on the paper's tasks, seed 0


GOLDEN = {
    ("numa-rtx3080ti", "A1", "iid", 300): (66, 49),
    ("uma-m2", "A1", "iid", 300): (85, 66),
    ("numa-rtx3080ti", "A1", "iid", 2500): (253, 194),
    ("numa-rtx3080ti", "A2", "iid", 3500): (284, 221),
    ("numa-rtx3080ti", "B1", "iid", 2500): (241, 194),
    ("numa-rtx3080ti", "B2", "iid", 3500): (263, 215),
    ("numa-rtx3080ti", "A1", "boards", 2500): (315, 266),
    ("uma-m2", "A1", "iid", 2500): (303, 244),
    ("uma-m2", "B2", "iid", 3500): (319, 267),
}
"""By box, task, order, and number of images, in the order of `ENGINE`: first the beginning of a task."""


def check(row, requests):
    """Prove what holds of any run."""
    assert (row.images, row.errors) == (requests, 0)
    assert row.lower_bound_makespan_s is not None
    assert row.switches >= row.lower_bound_switches > 0, row
    assert row.makespan_s >= row.lower_bound_makespan_s * (1 - 1e-9) > 0, row
    assert 0 < row.p50_s <= row.p99_s <= row.makespan_s, row
    assert 0 < row.disk_loads <= row.switches, row
    assert 0 < row.hit_ratio < 1, row
    assert row.images_per_s == pytest.approx(requests / row.makespan_s)


# Whole tasks take ten times as long, and `make test-all` runs most of them.
@pytest.mark.parametrize(("device", "name", "order", "images"), with_slow_rows(GOLDEN, fast=2), ids=str)
def test_switches_are_what_they_were(device, name, order, images):
    machine, workload = SimulatedMachine(device), task(name, order=order, requests=images, seed=0)
    coserve, late = rows = [simulated_run(machine, workload, contender(chosen), seed=0) for chosen in ENGINE]
    for row in rows:
        check(row, len(workload.arrivals))
        # Without a host cache everything comes from the disk.
        assert row.disk_loads == row.switches
    assert late.images_per_s > coserve.images_per_s
    assert (coserve.switches, late.switches) == GOLDEN[device, name, order, images]


@pytest.mark.parametrize(("foreseen", "switches", "ahead"), [("parts", 117, 117), ("none", 216, 0)])
def test_switches_at_a_trickle_are_what_they_were(foreseen, switches, ahead):
    """900 images of board A, one every 200 ms."""
    workload = task("A1", order="boards", requests=900, every_s=0.2, seed=0)
    parts = placement(workload.board, seed=0)
    workload = replace(workload, parts=parts) if foreseen == "parts" else workload.unforeseen()
    row = simulated_run(SimulatedMachine("uma-m2"), workload, contender("late-binding"), seed=0)
    check(row, 900)
    assert (row.switches, row.speculated) == (switches, ahead)
    assert row.switches >= row.in_order_switches >= 112
