"""One row a run, the same for the simulator and for the engine, as a table and as JSON."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from rich.table import Table

from coe.config import format_bytes
from coe.results.metrics import Metrics
from coe.scheduler.events import Command, Event, Reply


@dataclass(frozen=True, slots=True)
class MachineFigures:
    """What only a run on the machine can tell; None where there is no such thing.

    `switch_ratio` compares the mean switch with a plain read of the same bytes in the same run. `rss_growth_bytes` is
    what the process grew by from before the line was opened to its peak while it ran: experts and activations, but
    also skeletons and the images that wait.
    """

    switch_ms: float
    read_ms: float
    switch_ratio: float
    control_share: float
    peak_reserved_bytes: int
    budget_bytes: int
    peak_rss_bytes: int
    rss_growth_bytes: int
    peak_device_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One run. Latencies run from when an image was handed in to its reply.

    `makespan_s` runs from the first image handed in to the last reply; the lower bounds are what no order could beat
    (see `coe.sim.bound`), None where they were not worked out. `errors` counts images that could not be inspected,
    `late` those that took longer than they might, None if they might take any time.
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
    late: int | None = None
    machine: MachineFigures | None = None


@dataclass(frozen=True, slots=True)
class Heading:
    """What a row is of: a task, the order in which its images came, and the strategy under the name that is shown."""

    task: str
    order: str
    strategy: str


class Latencies:
    """A watcher that keeps every reply's latency."""

    def __init__(self) -> None:
        self._all_s = array("d")

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Note the latencies of the replies among the commands."""
        for command in commands:
            if isinstance(command, Reply):
                self._all_s.append(command.result.latency_s)

    def longer_than(self, within_s: float) -> int:
        """Return how many replies took longer."""
        return sum(latency_s > within_s for latency_s in self._all_s)

    def quantile_s(self, share: float) -> float:
        """Return the latency that `share` of the replies do not exceed; 0 without replies."""
        return float(np.quantile(np.asarray(self._all_s), share)) if self._all_s else 0.0


def row(
    heading: Heading,
    device: str,
    seen: Metrics,
    latencies: Latencies,
    *,
    lower_bound_switches: int | None = None,
    lower_bound_makespan_s: float | None = None,
    within_s: float | None = None,
    machine: MachineFigures | None = None,
) -> Row:
    """Put together what the watchers of one run saw."""
    return Row(
        task=heading.task,
        order=heading.order,
        device=device,
        strategy=heading.strategy,
        images=seen.images,
        errors=seen.errors,
        images_per_s=seen.images_per_s,
        switches=seen.switches,
        disk_loads=seen.disk_loads,
        hit_ratio=seen.hit_ratio,
        p50_s=latencies.quantile_s(0.5),
        p99_s=latencies.quantile_s(0.99),
        makespan_s=seen.wall_s,
        scheduling_us_per_request=1e6 * seen.control_s / max(1, seen.images),
        lower_bound_switches=lower_bound_switches,
        lower_bound_makespan_s=lower_bound_makespan_s,
        late=None if within_s is None else latencies.longer_than(within_s),
        machine=machine,
    )


def to_json(rows: Sequence[Row]) -> str:
    """Return rows as a JSON list; counts of images and the figures of the machine stand behind the others."""
    flat = []
    for one in rows:
        plain = asdict(one)
        machine = plain.pop("machine") or {}
        behind = {name: plain.pop(name) for name in ("images", "errors", "late")}
        behind = {name: count for name, count in behind.items() if count is not None}
        flat.append({**plain, **behind, **machine})
    return json.dumps(flat, indent=2) + "\n"


def to_table(rows: Sequence[Row], *, upright: bool = False) -> Table:
    """Return rows for people; `upright` stands figures below each other and runs side by side.

    Columns that no row has a figure for are left out; what all rows have in common is said once, in the title.
    """
    columns = {name: cell for name, cell in _COLUMNS.items() if name in _WORDS or any(map(cell, rows))}
    common = [name for name in _WORDS[:-1] if len({columns[name](one) for one in rows}) == 1]
    title = ", ".join(f"{name} {columns.pop(name)(rows[0])}" for name in common)
    lines = [list(columns), *([cell(one) for cell in columns.values()] for one in rows)]
    if upright:
        lines = [list(line) for line in zip(*lines, strict=True)]
    words = [True] + [False] * len(rows) if upright else [name in _WORDS for name in columns]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name, word in zip(lines[0], words, strict=True):
        table.add_column(name, justify="left" if word else "right")
    for line in lines[1:]:
        table.add_row(*line)
    return table


def _measured(figure: Callable[[MachineFigures], str]) -> Callable[[Row], str]:
    return lambda one: figure(one.machine) if one.machine else ""


_WORDS = ("task", "order", "device", "strategy")
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "task": lambda one: one.task,
    "order": lambda one: one.order,
    "device": lambda one: one.device,
    "strategy": lambda one: one.strategy,
    "images/s": lambda one: f"{one.images_per_s:.2f}",
    "not inspected": lambda one: f"{one.errors}" if one.errors else "",
    "switches": lambda one: f"{one.switches:,}",
    "at least": lambda one: "" if one.lower_bound_switches is None else f"{one.lower_bound_switches:,}",
    "from disk": lambda one: f"{one.disk_loads:,}",
    "hit ratio": lambda one: f"{one.hit_ratio:.1%}",
    "late": lambda one: "" if one.late is None else f"{one.late:,}",
    "p50": lambda one: f"{one.p50_s:.2f} s",
    "p99": lambda one: f"{one.p99_s:.2f} s",
    "makespan": lambda one: f"{one.makespan_s:.1f} s",
    "at least ": lambda one: "" if one.lower_bound_makespan_s is None else f"{one.lower_bound_makespan_s:.1f} s",
    "scheduling": lambda one: f"{one.scheduling_us_per_request:.0f} µs",
    "switch": _measured(lambda m: f"{m.switch_ms:.1f} ms"),
    "plain read": _measured(lambda m: f"{m.read_ms:.1f} ms"),
    "ratio": _measured(lambda m: f"{m.switch_ratio:.2f}"),
    "deciding": _measured(lambda m: f"{m.control_share:.2%}"),
    "reserved": _measured(lambda m: f"{format_bytes(m.peak_reserved_bytes)} of {format_bytes(m.budget_bytes)}"),
    "peak RSS": _measured(lambda m: f"{format_bytes(m.peak_rss_bytes)} (+{format_bytes(m.rss_growth_bytes)})"),
    "device memory": _measured(lambda m: "" if m.peak_device_bytes is None else format_bytes(m.peak_device_bytes)),
}
