"""Simulated runs as rows: on any box no strategy beats the bound in its own row, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from boxes import boxes
from cases import Case, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import THOROUGH

from coe.core import Request
from coe.lab.machine import SimulatedMachine
from coe.lab.simulated import PlannedBox, contender, run_plan, simulated_run
from coe.lab.workloads.workload import Workload, task
from coe.scheduler.strategies import names
from coe.sim.agenda import Arrival

LATE_S = st.sampled_from([0.0, 0.0, 7.3, 1000.0])


@given(st.data(), cases(), st.sampled_from(names()), LATE_S, st.integers(0, 9))
@settings(max_examples=25 * THOROUGH, deadline=None)
def test_no_row_beats_its_own_bound(data: st.DataObject, case: Case, name: str, late_s: float, seed: int) -> None:
    """Several devices, copies, a host cache, speeds; requests may begin late, as in a recorded day."""
    box = data.draw(boxes(case))
    arrivals = [Arrival(late_s + at_s, Request(i, component)) for i, (at_s, component) in enumerate(case.arrivals)]
    workload = Workload("test", "iid", case.rules, arrivals)
    scaling = {device: tuple(speeds) for device, speeds in box.scaling.items()}
    row = run_plan(workload, contender(name), PlannedBox("box", box.costs, box.plan, scaling), seed=seed)
    assert (row.images, row.errors) == (len(arrivals), 0)
    assert row.lower_bound_switches is not None
    assert row.lower_bound_makespan_s is not None
    assert row.disk_loads <= row.switches
    assert row.switches >= row.lower_bound_switches
    slack_s = 1e-9 * (1 + late_s + row.makespan_s)
    assert row.makespan_s >= row.lower_bound_makespan_s - slack_s
    assert row.p50_s <= row.p99_s <= row.makespan_s + slack_s


def test_a_bound_counts_from_the_first_request_as_a_makespan_does() -> None:
    """A day's recording may begin at any time."""
    day = task("A1", requests=50)
    late = replace(day, arrivals=[Arrival(3600 + one.at_s, one.request) for one in day.arrivals])
    early_row, late_row = (simulated_run(SimulatedMachine("uma-m2"), one, contender("coserve")) for one in (day, late))
    assert late_row.lower_bound_makespan_s == pytest.approx(early_row.lower_bound_makespan_s)
    assert late_row.makespan_s == pytest.approx(early_row.makespan_s)
    assert late_row.switches == early_row.switches
