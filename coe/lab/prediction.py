"""Predicts a measured run: simulates the same images, costs and pools in virtual time."""

from __future__ import annotations

from dataclasses import replace

from coe.scheduler.strategies import ANY_TIME, Times
from coe.sim.workload import Workload
from coe.trials.engine_run import MeasuredRun
from coe.trials.recorded import recorded
from coe.trials.rows import Row
from coe.trials.simulated import CONTENDERS, PlannedBox, run_plan


def workload_of(measured: MeasuredRun) -> Workload:
    """Return the arrivals and findings of a measured run as a workload."""
    record = recorded(measured.trace)
    return Workload(measured.row.task, measured.row.order, measured.board, record.arrivals, record.findings)


def predict(measured: MeasuredRun, times: Times = ANY_TIME, settling: int = 0) -> Row:
    """Simulate a measured run: its arrivals, its findings, and the cost table that scheduled it.

    The table was measured before the run, so the row is a prediction, not a fit. Its latencies leave out the first
    `settling` images, too.
    """
    workload = replace(workload_of(measured), settling=settling)
    contender = CONTENDERS[measured.strategy]
    box = PlannedBox(measured.row.device, measured.costs, measured.plan, {})
    row = run_plan(workload, contender, box, times=times)
    return replace(row, strategy=f"{measured.row.strategy} (predicted)")
