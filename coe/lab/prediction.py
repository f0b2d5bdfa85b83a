"""Predicts a measured run: simulates the same images, costs and pools in virtual time."""

from __future__ import annotations

from dataclasses import replace

from coe.lab.measured_run import MeasuredRun
from coe.lab.rows import Row
from coe.lab.simulated import PlannedBox, contender, run_plan
from coe.lab.time_limits import ANY_TIME, Times
from coe.lab.workloads.recorded import recorded
from coe.lab.workloads.workload import Workload


def workload_of(measured: MeasuredRun) -> Workload:
    """Return the arrivals and findings of a measured run as a workload."""
    record = recorded(measured.line_run.trace)
    return Workload(measured.row.task, measured.row.order, measured.line_run.board, record.arrivals, record.findings)


def predict(measured: MeasuredRun, times: Times = ANY_TIME, settling: int = 0) -> Row:
    """Simulate a measured run: its arrivals, its findings, and the cost table that scheduled it.

    The table was measured before the run, so the row is a prediction, not a fit. Its latencies leave out the first
    `settling` images, too.
    """
    workload = replace(workload_of(measured), settling=settling)
    box = PlannedBox(measured.row.device, measured.line_run.costs, measured.line_run.plan, {})
    row = run_plan(workload, contender(measured.strategy), box, times=times)
    return replace(row, strategy=f"{measured.row.strategy} (predicted)")
