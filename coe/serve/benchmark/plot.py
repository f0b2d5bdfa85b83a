"""The samples of a soak as curves: memory and descriptors of each process, the log, rows, boards that wait."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coe.results import plots
from coe.results.plots import LINES, sheet


def draw(samples: Path, to: Path) -> None:
    """Draw the samples in a file that `coe.serve.benchmark.soak` wrote; raises ConfigError if it cannot be written."""
    rows = json.loads(samples.read_text(encoding="utf-8"))
    minutes = [row["at_s"] / 60 for row in rows]
    names = list(rows[-1]["rss_bytes"])
    panels: list[tuple[str, dict[str, list[float]]]] = [
        ("memory, MB", {name: [row["rss_bytes"].get(name, 0) / 1e6 for row in rows] for name in names}),
        ("descriptors", {name: [row["descriptors"].get(name, 0) for row in rows] for name in names}),
        ("log, MB", {"write-ahead log": [row["wal_bytes"] / 1e6 for row in rows]}),
        ("rows, thousands", {name: _since_start(rows, name) for name in rows[-1]["rows"]}),
        ("boards waiting", {"waiting": [row["waiting"] for row in rows]}),
    ]
    figure = sheet((7.0, 8.0), None)
    for place, (title, curves) in enumerate(panels, 1):
        axes = figure.add_subplot(len(panels), 1, place)
        for colour, (name, values) in zip(LINES, curves.items(), strict=False):
            axes.plot(minutes, values, color=colour, linewidth=1.0, label=name)
        axes.set_ylabel(title, fontsize=plots.SMALL)
        axes.tick_params(labelsize=plots.SMALL)
        axes.set_ylim(bottom=0)
        if len(curves) > 1:
            axes.legend(fontsize=plots.SMALL, loc="best", ncols=3)
    axes.set_xlabel("minutes", fontsize=plots.SMALL)
    plots.save(figure, to)


def _since_start(rows: list[dict[str, Any]], name: str) -> list[float]:
    return [(row["rows"][name] - rows[0]["rows"][name]) / 1e3 for row in rows]
