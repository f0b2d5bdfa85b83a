"""One row for each run, the same for the simulator and for the engine, as a table and as JSON."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np
from rich.table import Table

from coe.cli.console import table_of
from coe.config import format_bytes
from coe.results.metrics import Metrics
from coe.scheduler.events import Command, Event, Reply

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MachineFigures:
    """Figures that only a run on the machine has; `peak_device_bytes` is None without a GPU.

    `switch_ratio` is the mean switch over a plain read of the same bytes in the same run. `rss_growth_bytes` is the
    growth of the process from before the line was opened to its peak: experts and activations, but also skeletons and
    the images that wait. `cpu_ms_per_image` is the processor time of the whole process, in user and system mode.
    """

    switch_ms: float
    read_ms: float
    switch_ratio: float
    control_share: float
    peak_reserved_bytes: int
    budget_bytes: int
    peak_rss_bytes: int
    rss_growth_bytes: int
    cpu_ms_per_image: float
    peak_device_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One run. The latency of an image is the time from when it was submitted to its reply.

    `makespan_s` is the time from the first image submitted to the last reply. No order can beat the lower bounds (see
    `Bound`); they are None where they were not computed. `in_order_switches` are those of Belady's choice for
    images that do not overtake each other. `speculated` switches were for images that had not come; `speculated_wasted`
    of these experts left before they ran. `errors` counts images that could not be inspected. `settling` is how many
    images, the first, are left out of `p50_s` and `p99_s`; it is None if none is.
    """

    task: str
    order: str
    device: str
    strategy: str
    images: int
    errors: int
    images_per_s: float
    switches: int
    disk_loads: int
    hit_ratio: float
    p50_s: float
    p99_s: float
    makespan_s: float
    scheduling_us_per_request: float
    lower_bound_switches: int | None = None
    lower_bound_makespan_s: float | None = None
    in_order_switches: int | None = None
    speculated: int = 0
    speculated_wasted: int = 0
    settling: int | None = None
    seed: int | None = None
    machine: MachineFigures | None = None


@dataclass(frozen=True, slots=True)
class Heading:
    """The words of a row: the task, the order in which its images came, and the name shown for the strategy."""

    task: str
    order: str
    strategy: str


class Latencies:
    """A watcher that keeps every reply's latency, but for the first `settling` images."""

    def __init__(self, settling: int = 0) -> None:
        self.settling = settling
        self._all_s = array("d")

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Note the latencies of the replies among the commands."""
        for command in commands:
            if isinstance(command, Reply) and command.result.request.id >= self.settling:
                self._all_s.append(command.result.latency_s)

    def quantile_s(self, share: float) -> float:
        """Return the latency that `share` of the replies do not exceed; 0 without replies."""
        return float(np.quantile(np.asarray(self._all_s), share)) if self._all_s else 0.0


def row(
    heading: Heading, device: str, metrics: Metrics, latencies: Latencies, *, machine: MachineFigures | None = None
) -> Row:
    """Make a row of the metrics and latencies of a run."""
    return Row(
        task=heading.task,
        order=heading.order,
        device=device,
        strategy=heading.strategy,
        images=metrics.images,
        errors=metrics.errors,
        images_per_s=metrics.images_per_s,
        switches=metrics.switches,
        disk_loads=metrics.disk_loads,
        hit_ratio=metrics.hit_ratio,
        p50_s=latencies.quantile_s(0.5),
        p99_s=latencies.quantile_s(0.99),
        makespan_s=metrics.wall_s,
        scheduling_us_per_request=1e6 * metrics.control_s / max(1, metrics.images),
        speculated=metrics.speculated,
        speculated_wasted=metrics.speculated_wasted,
        settling=latencies.settling or None,
        machine=machine,
    )


def to_json(rows: Sequence[Row]) -> str:
    """Return rows as a JSON list; counts of images and the figures of the machine come last."""
    flat = []
    for entry in rows:
        plain = asdict(entry)
        machine = plain.pop("machine") or {}
        behind = {name: plain.pop(name) for name in ("images", "errors", "settling", "seed")}
        behind = {name: count for name, count in behind.items() if count is not None}
        flat.append({**plain, **behind, **machine})
    return json.dumps(flat, indent=2) + "\n"


def figures_table(columns: Mapping[str, Callable[[T], str]], rows: Sequence[T], *, words: Collection[str]) -> Table:
    """Return a table with a column for each figure, but those that are empty in all rows; `words` stand on the left."""
    shown = {name: cell for name, cell in columns.items() if any(map(cell, rows))}
    table = table_of(*shown, left=words)
    for row in rows:
        table.add_row(*(cell(row) for cell in shown.values()))
    return table


def to_table(rows: Sequence[Row], *, upright: bool = False) -> Table:
    """Return rows for people. With `upright` each run is a column, and its figures are below each other.

    A column without any figure is left out. A word that all rows share is in the title instead of a column.
    """
    columns = {name: cell for name, cell in _COLUMNS.items() if name in _WORDS or any(map(cell, rows))}
    common = [name for name in _WORDS[:-1] if len({columns[name](entry) for entry in rows}) == 1]
    title = ", ".join(f"{name} {columns.pop(name)(rows[0])}" for name in common)
    lines = [list(columns), *([cell(entry) for cell in columns.values()] for entry in rows)]
    if upright:
        lines = [list(line) for line in zip(*lines, strict=True)]
    table = table_of(*lines[0], left=lines[0][:1] if upright else _WORDS)
    table.title, table.title_justify = title, "left"
    for line in lines[1:]:
        table.add_row(*line)
    return table


def _measured(figure: Callable[[MachineFigures], str]) -> Callable[[Row], str]:
    return lambda row: figure(row.machine) if row.machine else ""


_WORDS = ("task", "order", "device", "strategy")
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "task": lambda row: row.task,
    "order": lambda row: row.order,
    "device": lambda row: row.device,
    "strategy": lambda row: row.strategy,
    "images/s": lambda row: f"{row.images_per_s:.2f}",
    "not inspected": lambda row: f"{row.errors}" if row.errors else "",
    "switches": lambda row: f"{row.switches:,}",
    "at least": lambda row: "" if row.lower_bound_switches is None else f"{row.lower_bound_switches:,}",
    "Belady": lambda row: "" if row.in_order_switches is None else f"{row.in_order_switches:,}",
    "ahead": lambda row: f"{row.speculated:,}" if row.speculated else "",
    "in vain": lambda row: f"{row.speculated_wasted:,}" if row.speculated else "",
    "from disk": lambda row: f"{row.disk_loads:,}",
    "hit ratio": lambda row: f"{row.hit_ratio:.1%}",
    "seed": lambda row: "" if row.seed is None else f"{row.seed}",
    "settling": lambda row: "" if row.settling is None else f"{row.settling:,}",
    "p50": lambda row: f"{row.p50_s:.2f} s",
    "p99": lambda row: f"{row.p99_s:.2f} s",
    "makespan": lambda row: f"{row.makespan_s:.1f} s",
    "at least ": lambda row: "" if row.lower_bound_makespan_s is None else f"{row.lower_bound_makespan_s:.1f} s",
    "scheduling": lambda row: f"{row.scheduling_us_per_request:.0f} µs",
    "switch": _measured(lambda m: f"{m.switch_ms:.1f} ms"),
    "plain read": _measured(lambda m: f"{m.read_ms:.1f} ms"),
    "ratio": _measured(lambda m: f"{m.switch_ratio:.2f}"),
    "CPU an image": _measured(lambda m: f"{m.cpu_ms_per_image:.2f} ms"),
    "deciding": _measured(lambda m: f"{m.control_share:.2%}"),
    "reserved": _measured(lambda m: f"{format_bytes(m.peak_reserved_bytes)} of {format_bytes(m.budget_bytes)}"),
    "peak RSS": _measured(lambda m: f"{format_bytes(m.peak_rss_bytes)} (+{format_bytes(m.rss_growth_bytes)})"),
    "device memory": _measured(lambda m: "" if m.peak_device_bytes is None else format_bytes(m.peak_device_bytes)),
}
