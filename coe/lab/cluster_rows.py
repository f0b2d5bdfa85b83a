"""Rows of simulated clusters: each run beside the bound, and a mishap beside a run that always had its boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from coe.lab.bounds.bound import Bound
from coe.lab.cluster_bench import ClusterRun, Mishap, Scene, cluster_run
from coe.lab.rows import figures_table

RECOVERY_S = 10.0
"""From so long after a mishap on, a cluster is compared with one that always had the boxes that are left."""


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One run. `of_bound` is its throughput as a share of that which no order on all boxes as one could beat.

    `images_moved` is how often an image went to a box, `experts_moved` how many experts got another home after the
    mishap. `recovered` is the throughput from `RECOVERY_S` after the mishap on, as a share of that of a cluster which
    had so many boxes from the beginning, for the same number of last images; None if no image was left by then.
    `head_us` is the time in which the head decides, for an image.
    """

    task: str
    device: str
    strategy: str
    boxes: int
    mishap: str
    images: int
    errors: int
    images_per_s: float
    of_bound: float
    switches: int
    lower_bound_switches: int
    images_moved: float
    p50_s: float
    p99_s: float
    makespan_s: float
    lower_bound_makespan_s: float
    head_us: float
    experts_moved: int | None = None
    recovered: float | None = None


class Rows:
    """Runs the clusters of a scene; a run that several rows compare with is made once."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._runs: dict[int, ClusterRun] = {}
        self._bounds: dict[int, Bound] = {}

    def row(self, boxes: int, mishap: Mishap) -> ClusterRow:
        """Return the row of a run."""
        run = self._undisturbed(boxes)
        if mishap is Mishap.NONE:
            return self._row(boxes, mishap, run)
        other = self._undisturbed(boxes + (1 if mishap is Mishap.JOINS else -1))
        run = cluster_run(self._scene, boxes, mishap, run.makespan_s / 2)
        answered = run.answered_by(run.mishap_s + RECOVERY_S)
        rate = other.rate_after(answered)
        return self._row(boxes, mishap, run, run.rate_after(answered) / rate if rate else None)

    def _undisturbed(self, boxes: int) -> ClusterRun:
        if boxes not in self._runs:
            self._runs[boxes] = cluster_run(self._scene, boxes)
        return self._runs[boxes]

    def _row(self, boxes: int, mishap: Mishap, run: ClusterRun, recovered: float | None = None) -> ClusterRow:
        scene = self._scene
        if boxes not in self._bounds:
            self._bounds[boxes] = scene.least(boxes)
        least, images = self._bounds[boxes], len(run.verdicts)
        return ClusterRow(
            task=scene.workload.task,
            device=scene.machine.name,
            strategy=scene.contender.name,
            boxes=boxes,
            mishap=mishap.value,
            images=images,
            errors=run.failed,
            images_per_s=run.images_per_s,
            of_bound=least.makespan_s / run.makespan_s,
            switches=run.switches,
            lower_bound_switches=least.switches,
            images_moved=run.images_moved / images,
            p50_s=run.quantile_s(0.5),
            p99_s=run.quantile_s(0.99),
            makespan_s=run.makespan_s,
            lower_bound_makespan_s=least.makespan_s,
            head_us=1e6 * run.head_s / images,
            experts_moved=None if mishap is Mishap.NONE else run.experts_moved,
            recovered=recovered,
        )


def to_table(rows: Sequence[ClusterRow]) -> Table:
    """Return rows for people. A column that says nothing is left out."""
    return figures_table(_COLUMNS, rows, words=("task", "device", "strategy", "mishap"))


_COLUMNS: dict[str, Callable[[ClusterRow], str]] = {
    "task": lambda row: row.task,
    "device": lambda row: row.device,
    "strategy": lambda row: row.strategy,
    "boxes": lambda row: f"{row.boxes}",
    "mishap": lambda row: "" if row.mishap == Mishap.NONE else row.mishap,
    "images/s": lambda row: f"{row.images_per_s:.2f}",
    "of bound": lambda row: f"{row.of_bound:.2f}",
    "not inspected": lambda row: f"{row.errors}" if row.errors else "",
    "switches": lambda row: f"{row.switches:,}",
    "at least": lambda row: f"{row.lower_bound_switches:,}",
    "moves an image": lambda row: f"{row.images_moved:.2f}",
    "p50": lambda row: f"{row.p50_s:.1f} s",
    "p99": lambda row: f"{row.p99_s:.1f} s",
    "makespan": lambda row: f"{row.makespan_s:.1f} s",
    "head": lambda row: f"{row.head_us:.0f} µs",
    "experts moved": lambda row: "" if row.experts_moved is None else f"{row.experts_moved:,}",
    "recovered": lambda row: "" if row.recovered is None else f"{row.recovered:.2f}",
}
