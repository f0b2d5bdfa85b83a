"""What the simulator says of a run that was measured: the same images, costs and pools, in virtual time."""

from __future__ import annotations

from dataclasses import replace

from coe.bench.engine import MeasuredRun
from coe.bench.recorded import recorded
from coe.bench.rows import Row
from coe.bench.simulated import CONTENDERS, PlannedBox, run_plan
from coe.scheduler.strategies import ANY_TIME, Times
from coe.sim.workload import Workload


def workload_of(measured: MeasuredRun) -> Workload:
    """Return what came in while a run was measured, and what was found."""
    seen = recorded(measured.trace)
    return Workload(measured.row.task, measured.row.order, measured.board, seen.arrivals, seen.findings)


def predict(measured: MeasuredRun, times: Times = ANY_TIME) -> Row:
    """Simulate a measured run: its arrivals and findings, and the cost table that it was scheduled by.

    The table was measured before the run, so this foretells; it is not fitted to what it is compared with.
    """
    workload = workload_of(measured)
    chosen = CONTENDERS[measured.strategy]
    box = PlannedBox(measured.row.device, measured.costs, measured.plan, {})
    row = run_plan(workload, chosen, box, times=times)
    return replace(row, strategy=f"{measured.row.strategy} (predicted)")
