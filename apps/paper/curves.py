"""Throughput over a number: a panel for each device and board, a line for each task, named at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from apps.paper import reported
from coe.results.plots import GREY, HALO, INK, LINES, MARKS, NORMAL, SMALL, THROUGHPUT, head, sheet, tidy


@dataclass(frozen=True, slots=True)
class ExecutorPoint:
    """Throughput of a task with `executors`, such as "3G+1C": 3 on the GPU and 1 on the CPU."""

    device: str
    task: str
    executors: str
    images_per_s: float


@dataclass(frozen=True, slots=True)
class LoadedPoint:
    """Throughput of a task when the memory of the first device, usually the GPU, holds `experts` experts."""

    device: str
    task: str
    experts: int
    images_per_s: float


Point = ExecutorPoint | LoadedPoint


def executors(points: Sequence[ExecutorPoint], command: str | None) -> Figure:
    """Draw figure 17; numbers of executors are in the order of the points."""

    def fill(axes: Axes, device: str, board: str, mine: Sequence[Point]) -> None:
        names = list(dict.fromkeys(point.executors for point in points if point.device == device))
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.4, len(names) - 0.1)
        _lines(axes, mine, lambda point: names.index(point.executors))  # type: ignore[union-attr]
        best = reported.BEST_EXECUTORS.get(board) if device in (reported.NUMA, reported.UMA) else None
        if best in names:
            at = names.index(best)
            axes.axvspan(at - 0.3, at + 0.3, fill=False, hatch="////", edgecolor=GREY, linewidth=0, zorder=0)
            _write(axes, at, 0.03, f"paper's best:\n{best}", "center")

    widest = max(len({point.executors for point in points if point.device == other.device}) for other in points)
    title = "Throughput by number of executors"
    return _panels(points, title, "executors (G: GPU, C: CPU)", max(4.1, 0.9 + 0.55 * widest), command, fill)


def loaded_experts(points: Sequence[LoadedPoint], command: str | None) -> Figure:
    """Draw figure 18, with the window in which the paper looked and the number that it chose."""

    def fill(axes: Axes, device: str, board: str, mine: Sequence[Point]) -> None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        _lines(axes, mine, lambda point: point.experts)  # type: ignore[union-attr]
        window = reported.WINDOWS.get(board) if device == reported.NUMA else None
        if window:
            axes.axvspan(window.low, window.high, fill=False, hatch="////", edgecolor="#d5d5d5", linewidth=0, zorder=0)
            axes.plot(
                [window.chosen], [window.images_per_s], "*", color="white", markeredgecolor=INK, markersize=11, zorder=6
            )
            chosen = f"☆ chosen {window.chosen}, {window.images_per_s} images/s"
            stated = f"paper: window {window.low} to {window.high},\n{chosen}"
            _write(axes, (window.low + window.high) / 2, 0.03, stated, "center")
            top = max(window.images_per_s, *(point.images_per_s for point in mine))
            axes.set_ylim(0, top * 1.12)

    title = "Throughput by number of loaded experts"
    return _panels(points, title, "experts that fit into memory", 4.1, command, fill)


def _panels(
    points: Sequence[Point],
    title: str,
    x: str,
    width_in: float,
    command: str | None,
    fill: Callable[[Axes, str, str, Sequence[Point]], None],
) -> Figure:
    devices = list(dict.fromkeys(point.device for point in points))
    boards = sorted({reported.board_of(point.task) or point.task for point in points})
    figure = sheet((max(5.5, width_in * len(boards)), 0.8 + 2.7 * len(devices)), command)
    ring = Line2D([], [], linestyle="", marker="o", markersize=8, markerfacecolor="none", color=INK)
    ring.set_label("best of a task")
    head(figure, title, [ring])
    grid = figure.subplots(len(devices), len(boards), squeeze=False)
    for axes, (device, board) in zip(grid.flat, ((d, b) for d in devices for b in boards), strict=True):
        mine = [
            point for point in points if (point.device, reported.board_of(point.task) or point.task) == (device, board)
        ]
        if not mine:
            axes.set_axis_off()
            continue
        name = f"board {board}" if reported.board_of(board) else board
        tidy(axes, title=f"{device}, {name}", x=x, y=THROUGHPUT)
        axes.set_ylim(0, max(point.images_per_s for point in mine) * 1.12 or 1)
        fill(axes, device, board, mine)
    return figure


def _lines(axes: Axes, points: Sequence[Point], at: Callable[[Point], float]) -> None:
    tasks = sorted({point.task for point in points})
    ends = []
    for index, task in enumerate(tasks):
        line = sorted((at(point), point.images_per_s) for point in points if point.task == task)
        colour, mark = LINES[index % len(LINES)], MARKS[index % len(MARKS)]
        xs, ys = [x for x, _ in line], [y for _, y in line]
        axes.plot(xs, ys, marker=mark, markersize=4, linewidth=1.5, color=colour, label=task, zorder=3)
        best = max(range(len(ys)), key=ys.__getitem__)
        axes.plot(xs[best], ys[best], marker=mark, markersize=8, markerfacecolor="none", color=colour, zorder=4)
        ends.append((ys[-1], xs[-1], task, colour))
    # If two lines end close together, one name is written above the other.
    gap, below = axes.get_ylim()[1] * 0.07, float("-inf")
    for y, x, task, colour in sorted(ends):
        below = max(y, below + gap)
        axes.annotate(
            task, (x, below), (6, 0), textcoords="offset points", va="center", fontsize=NORMAL, color=colour,
            fontweight="bold", path_effects=HALO, zorder=5,
        )  # fmt: skip


def _write(axes: Axes, x: float, height: float, text: str, ha: str) -> None:
    """Write a text at the foot of a panel, at a share `height` of it from below."""
    axes.text(
        x, height, text, transform=axes.get_xaxis_transform(), ha=ha, va="bottom", fontsize=SMALL, style="italic",
        color=INK, path_effects=HALO, zorder=5,
    )  # fmt: skip
