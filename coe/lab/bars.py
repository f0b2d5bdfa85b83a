"""Rows as bars: a panel per device and order, a group per task, a bar per strategy. A missing run leaves a gap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from coe.lab.rows import Row
from coe.results import plots
from coe.results.plots import HALO, INK, SMALL, head, note, save, sheet, tidy

COLOURS = {
    "samba": "#4d4d4d",
    "samba-fifo": "#8c8c8c",
    "samba-parallel": "#c4c4c4",
    "coserve-none": "#c6dbef",
    "coserve-em": "#6baed6",
    "coserve-em-ra": "#2166ac",
    "coserve-paper-default": "#fdae61",
    "coserve": "#d55e00",
    "hobbit": "#b09fc9",
    "duoserve": "#8a6fb0",
    "expertflow": "#634591",
    "emoe": "#3b2266",
    "late-binding": "#009e73",
}
"""Greys, blues, oranges, violets and a green, which differ in lightness, too; strategies are drawn in this order."""

SPARE = ("#cc79a7", "#f0e442", "#5e3c99", "#7fcdbb", "#8c510a")
"""Colours for other strategies, reused from the start when they run out."""

TASKS = ("A1", "A2", "B1", "B2")
_GROUP, _WIDEST = 0.76, 0.16
"""The share of a group's width for its bars, and for one bar."""
_FAR = 2.0
"""A limit more than this many times the highest bar is written as a note, so that the bars stay tall."""


@dataclass(frozen=True, slots=True)
class Measure:
    """The figure of a row to draw, and its limit by the clairvoyant bound (None: not known)."""

    axis: str
    value: Callable[[Row], float]
    limit: Callable[[Row], float | None]
    limit_name: str
    text: Callable[[float], str]


THROUGHPUT = Measure(
    plots.THROUGHPUT,
    lambda row: row.images_per_s,
    lambda row: row.images / row.lower_bound_makespan_s if row.lower_bound_makespan_s else None,
    "clairvoyant limit",
    lambda value: f"{value:#.3g}" if value < 99.95 else f"{value:,.0f}",
)
SWITCHES = Measure(
    "expert switches",
    lambda row: row.switches,
    lambda row: row.lower_bound_switches,
    "clairvoyant limit",
    lambda value: f"{value:,.0f}",
)


@dataclass(frozen=True, slots=True)
class Panel:
    """One device and order, its axes, and the positions of its bars."""

    axes: Axes
    device: str
    order: str
    tasks: tuple[str, ...]
    palette: dict[str, str]
    rows: dict[tuple[str, str], Row]

    @property
    def width(self) -> float:
        """The width of a bar."""
        return min(_WIDEST, _GROUP / len(self.palette))

    def x(self, group: int, strategy: str) -> float:
        """Return the middle of a strategy's bar in a group."""
        return self.slot(group, list(self.palette).index(strategy))

    def slot(self, group: int, index: float) -> float:
        """Return the middle of a bar by its index in the group; -1 is left of the first strategy."""
        return group + (index - (len(self.palette) - 1) / 2) * self.width

    def label(self, x: float, y: float, text: str) -> None:
        """Write a number over a bar."""
        self.axes.annotate(
            text,
            (x, y),
            (0, 2),
            textcoords="offset points",
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=SMALL - 0.5,
            color=INK,
            path_effects=HALO,
            zorder=5,
        )


def colours(strategies: Iterable[str]) -> dict[str, str]:
    """Return the strategies in the order of drawing, each with its colour; strategies without one come last."""
    given = dict.fromkeys(strategies)
    fixed = {name: colour for name, colour in COLOURS.items() if name in given}
    others = [name for name in given if name not in COLOURS]
    return fixed | {name: SPARE[index % len(SPARE)] for index, name in enumerate(others)}


def by_task(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the tasks of rows: the paper's tasks in its order, then the others as they come."""
    given = dict.fromkeys(row.task for row in rows)
    return (*(task for task in TASKS if task in given), *(task for task in given if task not in TASKS))


@rc_context({"text.parse_math": False})  # names and arguments may hold dollars
def draw(rows: Sequence[Row], folder: Path, *, command: str | None = None) -> list[Path]:
    """Draw throughput and switches by task and strategy, with `command` at the foot; return the files."""
    return [
        save(grouped(rows, THROUGHPUT, "Throughput by task and strategy", command), folder / "throughput.png"),
        save(grouped(rows, SWITCHES, "Expert switches by task and strategy", command), folder / "switches.png"),
    ]


def grouped(
    rows: Sequence[Row],
    measure: Measure,
    title: str,
    command: str | None,
) -> Figure:
    """Draw rows; of two rows for the same bar the later counts."""
    palette = colours(row.strategy for row in rows)
    places = dict.fromkeys((row.device, row.order) for row in rows)
    orders = {row.order for row in rows}
    widest = max(len(by_task([row for row in rows if row.device == device])) for device, _ in places) + 1
    figure = sheet((min(16.0, max(6.5, 0.21 * widest * len(palette) + 1.5)), 1.2 + 2.5 * len(places)), command)
    grid = figure.subplots(len(places), 1, squeeze=False)
    has_limit = any(measure.limit(row) is not None for row in rows)
    for axes, (device, order) in zip(grid[:, 0], places, strict=True):
        panel_rows = [row for row in rows if (row.device, row.order) == (device, order)]
        panel = Panel(
            axes, device, order, by_task(panel_rows), palette, {(row.task, row.strategy): row for row in panel_rows}
        )
        tidy(axes, title=device if len(orders) < 2 else f"{device}, order {order}", x="", y=measure.axis)
        axes.set_xticks(range(len(panel.tasks)), panel.tasks)
        axes.tick_params(axis="x", length=0)
        note(axes, _draw(panel, measure))
    handles: list[Artist] = [Patch(color=colour, label=name) for name, colour in palette.items()]
    if has_limit:
        handles.append(Line2D([], [], color=INK, linewidth=1.2, label=measure.limit_name))
    head(figure, title, handles)
    return figure


def _draw(panel: Panel, measure: Measure) -> list[str]:
    """Draw the bars and limits of a panel; return a note of the limits that do not fit in it."""
    values = [measure.value(row) for row in panel.rows.values()]
    top, far = max(values), set[str]()
    for strategy, colour in panel.palette.items():
        by_group = {group: panel.rows.get((task, strategy)) for group, task in enumerate(panel.tasks)}
        drawn = {group: row for group, row in by_group.items() if row is not None}
        panel.axes.bar(
            [panel.x(group, strategy) for group in drawn],
            [measure.value(row) for row in drawn.values()],
            panel.width * 0.92,
            color=colour,
            label=strategy,
            zorder=2,
        )
        for group, row in drawn.items():
            x, value, limit = panel.x(group, strategy), measure.value(row), measure.limit(row)
            panel.label(x, value, measure.text(value))
            if limit is not None and limit <= _FAR * max(values):
                half = panel.width / 2
                panel.axes.plot(
                    [x - half, x + half], [limit] * 2, color=INK, linewidth=1.2, path_effects=HALO,
                    solid_capstyle="butt", zorder=4,
                )  # fmt: skip
                top = max(top, limit)
            elif limit is not None:
                far.add(f"{row.task} {measure.text(limit)}")
    # Room for the numbers over the bars.
    panel.axes.set_ylim(0, max(top * 1.06, max(values) * 1.24) or 1)
    panel.axes.set_xlim(-0.55, len(panel.tasks) - 0.45)
    return [f"{measure.limit_name}, above the panel: {', '.join(sorted(far))}"] if far else []
