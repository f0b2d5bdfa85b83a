"""Runs that differ in their seed alone, in one row: of each figure the mean, the least and the most."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.table import Table

from coe.lab.rows import Row, figures_table, to_json


@dataclass(frozen=True, slots=True)
class SeededRow:
    """The runs of one task, order, device and strategy, one for each of several seeds."""

    runs: tuple[Row, ...]

    def spread(self, figure: Callable[[Row], float | None]) -> tuple[float, float, float] | None:
        """Return mean, least and most of a figure; None if a run lacks it."""
        values = [value for run in self.runs if (value := figure(run)) is not None]
        return (fmean(values), min(values), max(values)) if len(values) == len(self.runs) else None


def grouped(rows_of_seeds: Sequence[Sequence[Row]]) -> list[SeededRow]:
    """Return the rows of several seeds, each list in the same order, as one row for each run."""
    return [SeededRow(runs) for runs in zip(*rows_of_seeds, strict=True)]


def to_table(rows: Sequence[SeededRow]) -> Table:
    """Return rows for people: a figure is "mean (least to most)"."""
    return figures_table(_COLUMNS, rows, words={"task", "order", "device", "strategy"})


def seeds_json(rows_of_seeds: Sequence[Sequence[Row]], first: int) -> str:
    """Return all runs as a JSON list of rows, each with its `seed`."""
    flat = [
        {**row, "seed": seed} for seed, rows in enumerate(rows_of_seeds, first) for row in json.loads(to_json(rows))
    ]
    return json.dumps(flat, indent=2) + "\n"


def _cell(figure: Callable[[Row], float | None], shape: str) -> Callable[[SeededRow], str]:
    def cell(row: SeededRow) -> str:
        if (spread := row.spread(figure)) is None:
            return ""
        mean, least, most = (format(value, shape) for value in spread)
        return mean if least == most else f"{mean} ({least} to {most})"

    return cell


_COLUMNS: dict[str, Callable[[SeededRow], str]] = {
    "task": lambda row: row.runs[0].task,
    "order": lambda row: row.runs[0].order,
    "device": lambda row: row.runs[0].device,
    "strategy": lambda row: row.runs[0].strategy,
    "seeds": lambda row: str(len(row.runs)),
    "images/s": _cell(lambda run: run.images_per_s, ".2f"),
    "switches": _cell(lambda run: run.switches, ",.0f"),
    "at least": _cell(lambda run: run.lower_bound_switches, ",.0f"),
    "from disk": _cell(lambda run: run.disk_loads, ",.0f"),
    "hit ratio": _cell(lambda run: run.hit_ratio, ".1%"),
    "late": _cell(lambda run: run.late, ",.0f"),
    "p50 (s)": _cell(lambda run: run.p50_s, ".2f"),
    "p99 (s)": _cell(lambda run: run.p99_s, ".2f"),
    "makespan (s)": _cell(lambda run: run.makespan_s, ".1f"),
    "at least (s)": _cell(lambda run: run.lower_bound_makespan_s, ".1f"),
}
