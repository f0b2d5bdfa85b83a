"""Draws the costs of an expert by kind, in two panels; a kind has the same colour and mark in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from coe.inspector.profile import KindProfile
from coe.results.plots import LINES, MARKS, note, nothing, tidy

_MIB = 1 << 20


def labels(kinds: Sequence[KindProfile]) -> list[str]:
    """Return a name for each kind: its name, and those properties in which the kinds differ."""
    parts = [
        (
            kind.device,
            kind.backend,
            kind.precision,
            f"{kind.input_size} px",
            f"{kind.threads} thread(s)" if kind.device == "cpu" else "",
        )
        for kind in kinds
    ]
    telling = [index for index in range(5) if len({part[index] for part in parts}) > 1]
    names = [_short(kind.kind, 28) for kind in kinds]
    return [
        ", ".join([name, *(part[index] for index in telling if part[index])])
        for name, part in zip(names, parts, strict=True)
    ]


def _style(index: int, size: float = 4.5) -> dict[str, Any]:
    """Return the colour and the mark of a kind, the same in all panels."""
    mark = MARKS[(index + index // len(LINES)) % len(MARKS)]
    return {"color": LINES[index % len(LINES)], "marker": mark, "markersize": size}


def handles(kinds: Sequence[KindProfile]) -> list[Line2D]:
    """Return the entries of a legend, one for each kind."""
    return [Line2D([], [], linewidth=1.5, label=label, **_style(n, 5)) for n, label in enumerate(labels(kinds))]


def latency(axes: Axes, kinds: Sequence[KindProfile]) -> None:
    """Draw the time of a batch over its size."""
    tidy(axes, title="Batch latency", x="images in the batch", y="milliseconds")
    if not _sized(axes, kinds):
        return
    top = 0.0
    for index, kind in enumerate(kinds):
        style, colour = _style(index), LINES[index % len(LINES)]
        times = sorted(kind.batches, key=lambda time: time.images)
        xs, ys = [time.images for time in times], [time.median_s * 1e3 for time in times]
        # The quartiles lie about half the interquartile range to either side.
        bars = [time.median_s * 1e3 * time.spread / 2 for time in times]
        axes.errorbar(xs, ys, bars, linestyle="", capsize=2.5, elinewidth=1, zorder=4, **style)
        ends = [1, max(xs)]
        line = [(kind.line.base_s + kind.line.per_image_s * x) * 1e3 for x in ends]
        axes.plot(ends, line, color=colour, linewidth=1.2, zorder=3)
        at = (kind.line.base_s + kind.line.per_image_s * kind.max_batch) * 1e3
        axes.plot([kind.max_batch], [at], "o", markersize=11, markerfacecolor="none", color=colour, zorder=5)
        top = max(top, *ys, *line, at)
    note(axes, ["points: medians, bars: middle half of the repeats; lines: K and B; rings: max batch"])
    axes.set_ylim(0, top * 1.08 or 1)


def memory(axes: Axes, kinds: Sequence[KindProfile]) -> None:
    """Draw the bytes of an expert with a batch over the size of the batch."""
    tidy(axes, title="Memory of an expert and its batch", x="images in the batch", y="MiB")
    if not _sized(axes, kinds):
        return
    for index, kind in enumerate(kinds):
        style, colour = _style(index), LINES[index % len(LINES)]
        times = sorted(kind.batches, key=lambda time: time.images)
        measured = [(kind.weights_bytes + time.bytes) / _MIB for time in times]
        axes.plot([time.images for time in times], measured, linestyle="", zorder=4, **style)
        ends = [0, max(time.images for time in times)]
        fixed = kind.weights_bytes + kind.workspace_bytes
        axes.plot(ends, [(fixed + kind.activation_bytes * x) / _MIB for x in ends], color=colour, linewidth=1.2)
        axes.plot(ends, [kind.weights_bytes / _MIB] * 2, color=colour, linewidth=1, linestyle=":")
    note(axes, ["points: measured; lines: as planned, with workspace and activations; dotted: weights alone"])
    axes.set_ylim(bottom=0)


def _sized(axes: Axes, kinds: Sequence[KindProfile]) -> bool:
    """Set up a panel for batch sizes; if none was measured, write so in the panel and return False."""
    sizes = [time.images for kind in kinds for time in kind.batches]
    if not sizes or not all(kind.batches for kind in kinds):
        nothing(axes, "no batches were measured")
        return False
    axes.set_xlim(0, max(*sizes, *(kind.max_batch for kind in kinds)) * 1.06)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return True


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
