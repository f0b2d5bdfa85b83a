"""The paper's figures 13 to 18 from our rows, next to the numbers that the paper's text states.

Missing runs are not drawn, nor numbers that only the paper's pictures show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from apps.paper import curves, reported
from apps.paper.curves import ExecutorPoint, LoadedPoint
from coe.lab.bars import COLOURS, SWITCHES, THROUGHPUT, Panel, grouped
from coe.results.plots import INK, save
from coe.trials.rows import Row

_BEST, _CASUAL = COLOURS[reported.BEST], "#d08010"
"""Outlines of the paper's numbers; the casual outline is darker than our bars, so that it can be seen."""

ABLATION = ("coserve-none", "coserve-em", "coserve-em-ra", "coserve")


@rc_context({"text.parse_math": False})  # names and arguments may hold dollars
def draw(
    rows: Sequence[Row],
    executor_points: Sequence[ExecutorPoint],
    loaded_points: Sequence[LoadedPoint],
    folder: Path,
    *,
    command: str | None = None,
) -> list[Path]:
    """Draw every figure for which there is data; `command` is written at the foot. Returns the files in order."""
    figures = {}
    if rows:
        figures[13] = throughput(rows, command)
        figures[14] = switches(rows, command)
    steps = [row for row in rows if row.strategy in ABLATION]
    if len({row.strategy for row in steps}) > 1:
        figures[15] = grouped(steps, THROUGHPUT, "Throughput as each optimization is added", command)
        figures[16] = grouped(steps, SWITCHES, "Expert switches as each optimization is added", command)
    if executor_points:
        figures[17] = curves.executors(executor_points, command)
    if loaded_points:
        figures[18] = curves.loaded_experts(loaded_points, command)
    return [save(figure, folder / f"figure-{number}.png") for number, figure in figures.items()]


def throughput(rows: Sequence[Row], command: str | None = None) -> Figure:
    """Return figure 13: throughput by task and strategy."""
    return grouped(rows, THROUGHPUT, "Throughput by task and strategy", command, _stated_throughput)


def switches(rows: Sequence[Row], command: str | None = None) -> Figure:
    """Return figure 14: expert switches by task and strategy."""
    return grouped(rows, SWITCHES, "Expert switches by task and strategy", command, _stated_switches)


def _stated_throughput(panel: Panel) -> list[str]:
    """Add the throughputs of section 5.2: ratios as notes, and pairs for tasks without a name as a group."""
    notes = []
    stated, ratios = reported.THROUGHPUT_RATIO.get(panel.device), _ratios(panel, reported.BEST)
    if stated and ratios:
        theirs, here = _span(stated.low, stated.high, "×"), _span(min(ratios), max(ratios), "×")
        notes.append(f"coserve over samba baselines: paper {theirs}, here {here}")
    at_most, ratios = reported.CASUAL_RATIO.get(panel.device), _ratios(panel, reported.CASUAL)
    if at_most and ratios:
        notes.append(f"coserve-casual over samba baselines: paper up to {at_most}×, here up to {max(ratios):.1f}×")
    pairs = reported.BEST_AND_CASUAL.get(panel.device, ()) if reported.BEST in panel.palette else ()
    if pairs:
        group = len(panel.tasks)
        for index, pair in enumerate(pairs):
            left = group + (2.4 * index - 1.7) * panel.width
            panel.outline(left, pair.casual_images_per_s, f"{pair.casual_images_per_s}", _CASUAL)
            panel.outline(left + panel.width, pair.best_images_per_s, f"{pair.best_images_per_s}", _BEST)
        panel.axes.set_xticks(range(group + 1), [*panel.tasks, "paper, casual and best\n(tasks not named)"])
        panel.axes.set_xlim(-0.55, group + 0.55)
        _make_room(panel, (pair.best_images_per_s for pair in pairs))
    return notes


def _ratios(panel: Panel, strategy: str) -> list[float]:
    """Return the throughput of a strategy over that of each baseline in each of the paper's tasks."""
    return [
        ours.images_per_s / base.images_per_s
        for task in panel.tasks
        if reported.board_of(task) and (ours := panel.rows.get((task, strategy)))
        for name in reported.BASELINES
        if (base := panel.rows.get((task, name))) and base.images_per_s > 0
    ]


def _stated_switches(panel: Panel) -> list[str]:
    """Add the switches of section 5.2: those of coserve, and of a baseline that the paper does not name."""
    notes = []
    for stated in reported.SWITCHES:
        groups = [group for group, task in enumerate(panel.tasks) if task.partition(" ")[0] == stated.task]
        if stated.device != panel.device or not groups or reported.BEST not in panel.palette:
            continue
        group, beyond = groups[0], len(panel.palette)
        heights = [stated.coserve]
        if set(reported.BASELINES) & set(panel.palette):
            panel.outline(panel.slot(group, -1), stated.baseline, f"{stated.baseline:,}", INK)
            heights.append(stated.baseline)
        panel.outline(panel.slot(group, beyond), stated.coserve, f"{stated.coserve:,}", _BEST)
        _make_room(panel, heights)
        notes.append(
            f"{stated.task} in the paper: {stated.baseline:,} of a baseline (not named), {stated.coserve:,} of coserve"
        )
    cuts = [
        1 - ours.switches / casual.switches
        for task in panel.tasks
        if reported.board_of(task) and (ours := panel.rows.get((task, reported.BEST)))
        if (casual := panel.rows.get((task, reported.CASUAL))) and casual.switches
    ]
    cut = reported.CASUAL_SWITCH_CUT.get(panel.device)
    if cut and cuts:
        theirs, here = _span(100 * cut.low, 100 * cut.high, " %"), _span(100 * min(cuts), 100 * max(cuts), " %")
        notes.append(f"switches that coserve saves over coserve-casual: paper {theirs}, here {here}")
    return notes


def _make_room(panel: Panel, heights: Iterable[float]) -> None:
    panel.axes.set_ylim(0, max(panel.axes.get_ylim()[1], max(heights) * 1.24))


def _span(low: float, high: float, unit: str) -> str:
    return f"{low:.1f} to {high:.1f}{unit}"
