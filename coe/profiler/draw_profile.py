"""Draws a profile: the costs of kinds, and for a board the reasons for its numbers of experts and executors.

Where the profile has no figures for a panel, the panel says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from coe.config import counted, format_bytes
from coe.errors import ConfigError, did_you_mean
from coe.inspector.profile import BoardProfile, KindProfile, Profile, WindowPoint
from coe.profiler.search import MARGIN
from coe.profiler.usage import cdf
from coe.results.plots import (
    CHOSEN,
    FAINT,
    GREY,
    HALO,
    INK,
    LINES,
    MARKS,
    NORMAL,
    SMALL,
    THROUGHPUT,
    head,
    note,
    nothing,
    save,
    sheet,
    tidy,
)

_BLUE = LINES[0]


@rc_context({"text.parse_math": False})  # names may hold dollars
def draw(profile: Profile, board: str, path: Path) -> Path:
    """Draw the curves of the kinds and of a board as PNG; raises ConfigError for a board that has no profile."""
    if board not in profile.boards:
        raise ConfigError(f"the profile has no board '{board}'{did_you_mean(board, profile.boards)}")
    part = profile.boards[board]
    figure = sheet((12.5, 10.2), None)
    head(figure, f"Profile of {profile.machine.cpu}, board {board}", handles(profile.kinds))
    grid = figure.subplots(3, 2, squeeze=False)
    latency(grid[0][0], profile.kinds)
    memory(grid[0][1], profile.kinds)
    _usage(grid[1][0], part)
    _loaded(grid[1][1], part)
    _executors(grid[2][0], part)
    _choice(grid[2][1], profile, part)
    return save(figure, path)


def _usage(axes: Axes, board: BoardProfile) -> None:
    tidy(axes, title="Usage of experts, and the windows", x="experts, the most used first", y="share of all usage")
    if not any(row.by_rules for row in board.usage):
        nothing(axes, "no usage is known")
        return
    shares = cdf(board.usage)
    _steps(axes, shares, INK, "by the rules")
    if any(row.by_images for row in board.usage):
        _steps(axes, cdf(board.usage, by_images=True), _BLUE, "by the images", style="--")
    axes.plot([0, len(shares)], [0, 1], color=FAINT, linewidth=1.2, zorder=1, label="if all were used equally")
    slid, final = _slid(board), _final(board)
    # Each window is a line at its own height, as in the paper's figure.
    for index, window in enumerate(slid):
        height = 0.04 + 0.4 * (index + 0.5) / max(len(slid), 4)
        axes.plot(
            [window.lower, window.upper], [height] * 2, color=CHOSEN if window is final else GREY, zorder=3,
            linewidth=2 if window is final else 1.4, linestyle="--", marker="|", markersize=7,
            label="window chosen from" if window is final else None,
        )  # fmt: skip
        # Where windows are narrow, only the final window has room for its numbers.
        if window is final or (len(slid) < 9 and window.upper - window.lower > 0.07 * len(shares)):
            _write_above(axes, (window.lower + window.upper) / 2, height, f"{window.lower} to {window.upper}")
    chosen = loaded(board)
    if chosen is not None:
        axes.axvline(chosen, color=CHOSEN, linewidth=1.4, zorder=2)
        share = shares[min(chosen, len(shares)) - 1]
        _aside(axes, chosen, 0.6, f"{chosen} loaded:\n{share:.0%} of usage", len(shares))
    axes.set_xlim(0, len(shares) * 1.04)
    axes.set_ylim(0, 1.04)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_title(axes.get_title(loc="left"), loc="left", pad=17, fontsize=NORMAL, fontweight="bold", color=INK)
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=4, fontsize=SMALL, frameon=False, borderpad=0, borderaxespad=0.4,
        columnspacing=1.4,
    )  # fmt: skip


def _steps(axes: Axes, shares: Sequence[float], colour: str, label: str, style: str = "-") -> None:
    axes.plot(range(len(shares) + 1), [0.0, *shares], color=colour, linewidth=1.6, linestyle=style, label=label)


def _loaded(axes: Axes, board: BoardProfile) -> None:
    tidy(axes, title="Throughput by number of loaded experts", x="loaded experts", y=THROUGHPUT)
    if not board.windows:
        nothing(axes, "nothing was searched: the largest useful batch is small and is set aside")
        return
    slid, final, chosen = _slid(board), _final(board), loaded(board)
    points = sorted(board.windows, key=lambda point: point.upper)
    xs, ys = [point.upper for point in points], [point.images_per_s for point in points]
    axes.plot(xs, ys, color=_BLUE, linewidth=1.5, zorder=3)
    for point in points:
        window = point in slid
        axes.plot(
            [point.upper], [point.images_per_s], marker="o" if window else "D", markersize=5.5 if window else 4,
            color=_BLUE, markerfacecolor=_BLUE if point.measured else "white", zorder=4,
        )  # fmt: skip
    foretold = [(point.upper, point.line) for point in slid if point.line is not None]
    if foretold:
        line_x, line_y = [x for x, _ in foretold], [y for _, y in foretold]
        axes.plot(line_x, line_y, color=GREY, linewidth=1.2, linestyle="--", zorder=2)
        low = [y * (1 - MARGIN) for y in line_y]
        axes.fill_between(line_x, low, line_y, color=FAINT, alpha=0.6, linewidth=0, zorder=1)
    lines = ["dots: bounds of windows, diamonds: inside them; filled: measured, hollow: simulated"]
    if foretold:
        lines.append(f"dashed: the line through the first throughputs, with the margin of {MARGIN:.0%} under it")
    note(axes, lines)
    top = max([*ys, *(y for _, y in foretold)])
    axes.set_ylim(0, top * 1.15 or 1)
    axes.set_xlim(0, xs[-1] * 1.06)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if final:
        axes.axvspan(final.lower, final.upper, color=CHOSEN, alpha=0.08, linewidth=0, zorder=0)
    if chosen is not None and chosen in xs:
        speed = ys[xs.index(chosen)]
        axes.plot([chosen], [speed], "o", markersize=11, markerfacecolor="none", color=CHOSEN, zorder=5)
        _aside(axes, chosen, 0.12, f"chosen {chosen}:\n{speed:.3g} images/s", xs[-1])


def _executors(axes: Axes, board: BoardProfile) -> None:
    tidy(axes, title="Throughput by number of executors", x="executors, threads of each", y=THROUGHPUT)
    if not board.executors:
        nothing(axes, "only one number of executors is possible, so nothing was tried")
        return
    names = [_counts(point.executors, point.threads) for point in board.executors]
    ys = [point.images_per_s for point in board.executors]
    axes.plot(range(len(ys)), ys, color=_BLUE, linewidth=1.2, zorder=3)
    for at, point in enumerate(board.executors):
        fill = _BLUE if point.measured else "white"
        axes.plot([at], [point.images_per_s], "o", markersize=5.5, color=_BLUE, markerfacecolor=fill, zorder=4)
        if point.executors == board.chosen.executors and point.threads in ({}, board.chosen.threads):
            axes.plot([at], [point.images_per_s], "o", markersize=11, markerfacecolor="none", color=CHOSEN, zorder=5)
    slanted = len(names) > 5 or max(len(name) for name in names) * len(names) > 60
    axes.set_xticks(range(len(names)), names, rotation=30 if slanted else 0, ha="right" if slanted else "center")
    if slanted:
        axes.tick_params(axis="x", labelsize=SMALL)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(0, max(ys) * 1.15 or 1)
    note(axes, ["ring: chosen; filled: measured, hollow: simulated"])


def _choice(axes: Axes, profile: Profile, board: BoardProfile) -> None:
    """Write the chosen configuration and its reasons."""
    axes.set_axis_off()
    axes.set_title("Chosen", loc="left", fontsize=NORMAL, fontweight="bold", color=INK)
    chosen = board.chosen
    spaces = ", ".join(f"{format_bytes(size)} ({device})" for device, size in chosen.workspace_bytes.items())
    gain = f" ({chosen.images_per_s / chosen.casual_images_per_s - 1:+.0%})" if chosen.casual_images_per_s else ""
    sentences = [
        f"executors: {_counts(chosen.executors, chosen.threads)}; strategy {board.strategy}",
        f"memory: {format_bytes(board.memory_bytes)}, for the batches of a pool: {spaces or 'nothing'}",
        *_gpu(board),
        f"{chosen.images_per_s:.3g} images/s; paper's default: {chosen.casual_images_per_s:.3g}{gain}",
        *chosen.reasons,
    ]
    lines = [line for text in sentences for line in wrap(text, 92, initial_indent="• ", subsequent_indent="   ")]
    if len(lines) > 17:
        lines = [*lines[:16], "…"]
    lines.append(f"made {profile.made} on {counted(profile.machine.cores, 'core')}, {profile.machine.gpu or 'no GPU'}")
    axes.text(
        0, 0.98, "\n".join(lines), transform=axes.transAxes, va="top", fontsize=NORMAL - 0.5, color=INK,
        linespacing=1.45, parse_math=False,
    )  # fmt: skip


def _gpu(board: BoardProfile) -> list[str]:
    if board.device_bytes is None:
        return []
    return [
        f"GPU: {format_bytes(board.device_bytes)}, and {format_bytes(board.host_bytes or 0)} of host memory for copies"
    ]


def loaded(board: BoardProfile) -> int | None:
    """Return the chosen number of loaded experts, at most all; None if no search took place."""
    return min(board.chosen.loaded_experts, len(board.usage)) if board.windows else None


def _slid(board: BoardProfile) -> list[WindowPoint]:
    """Return the samples at the bounds of windows, in order; samples inside a window have no width."""
    return sorted((point for point in board.windows if point.lower < point.upper), key=lambda point: point.upper)


def _final(board: BoardProfile) -> WindowPoint | None:
    """Return the window in which the chosen number lies; None beyond the last bound that fits."""
    chosen = loaded(board) or 0
    return next((window for window in _slid(board) if window.lower < chosen <= window.upper), None)


def _counts(executors: dict[str, int], threads: dict[str, int]) -> str:
    """Write executors and their threads: "1 cuda + 2 cpu×4"."""
    return " + ".join(
        f"{number} {device}" + (f"×{threads[device]}" if device in threads else "")
        for device, number in executors.items()
    )


def _write_above(axes: Axes, x: float, y: float, text: str) -> None:
    """Write a text above a point."""
    axes.annotate(
        text, (x, y), (0, 3), textcoords="offset points", ha="center", fontsize=SMALL, color=INK, path_effects=HALO,
        zorder=5,
    )  # fmt: skip


def _aside(axes: Axes, x: float, height: float, text: str, most: float) -> None:
    """Write a text next to a number of the x axis, on its roomier side; `height` is a share of the panel."""
    left = x > most * 0.6
    axes.annotate(
        text, (x, height), (-7 if left else 7, 0), xycoords=axes.get_xaxis_transform(), textcoords="offset points",
        ha="right" if left else "left", va="center", fontsize=NORMAL, color=CHOSEN, fontweight="bold",
        path_effects=HALO, zorder=6,
    )  # fmt: skip


# Draws the costs of an expert by kind, in two panels; a kind has the same colour and mark in both


_MIB = 1 << 20


def labels(kinds: Sequence[KindProfile]) -> list[str]:
    """Return a name for each kind: its name, and those properties in which the kinds differ."""
    parts = [
        (
            kind.device,
            kind.backend,
            kind.precision,
            f"{kind.input_size} px",
            counted(kind.threads, "thread") if kind.device == "cpu" else "",
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
