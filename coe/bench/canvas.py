"""The sheet that all figures are drawn on: sizes, colours, title, footer. Without pyplot, so nothing is global."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import Normal, withStroke

from coe.errors import ConfigError

COLOURS = {
    "samba": "#4d4d4d",
    "samba-fifo": "#8c8c8c",
    "samba-parallel": "#c4c4c4",
    "coserve-none": "#c6dbef",
    "coserve-em": "#6baed6",
    "coserve-em-ra": "#2166ac",
    "coserve-casual": "#fdae61",
    "coserve": "#d55e00",
    "line": "#009e73",
}
"""Greys, blues, oranges and a green, told apart by lightness too, in the order in which strategies are drawn."""

SPARE = ("#cc79a7", "#f0e442", "#5e3c99", "#7fcdbb", "#8c510a")
"""For strategies that have no colour of their own, again from the start when they run out."""

INK, FAINT = "#222222", "#dddddd"
SMALL, NORMAL, LARGE = 7.0, 8.5, 11.0
"""Font sizes in points."""

_KEY_IN, _LETTER_IN = 0.4, 0.068
"""What a colour's mark and a letter beside it take of a legend's line, in inches."""

HALO = [withStroke(linewidth=1.8, foreground="white"), Normal()]
"""Keeps a text or a line readable over whatever it crosses."""


def colours(strategies: Iterable[str]) -> dict[str, str]:
    """Return the strategies in the order of drawing, each with its colour; those that are not known come last."""
    given = dict.fromkeys(strategies)
    known = {name: colour for name, colour in COLOURS.items() if name in given}
    others = [name for name in given if name not in COLOURS]
    return known | {name: SPARE[index % len(SPARE)] for index, name in enumerate(others)}


def sheet(size: tuple[float, float], command: str | None) -> Figure:
    """Return an empty figure of a width and height in inches, with its command at the foot."""
    figure = Figure(figsize=size, dpi=150, layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # type: ignore[union-attr, call-arg]
    if command:
        lines = textwrap.fill(command, int(size[0] * 16), subsequent_indent="  ", break_on_hyphens=False)
        figure.supxlabel(lines, x=0.01, ha="left", fontsize=SMALL - 0.5, family="monospace", color="#666666")
    return figure


def head(figure: Figure, title: str, handles: Sequence[Artist] = ()) -> None:
    """Write the title of a figure, and under it what its colours mean."""
    # As many columns as fit, or fewer where that fills as many lines evenly.
    widest = max((len(str(handle.get_label())) for handle in handles), default=0)
    fitting = max(1, int(figure.get_figwidth() / (_KEY_IN + _LETTER_IN * widest)))
    lines = max(1, math.ceil(len(handles) / fitting))
    figure.legend(
        handles=handles,
        title=title,
        title_fontproperties={"size": LARGE, "weight": "bold"},
        alignment="left",
        loc="outside upper left",
        ncols=max(1, math.ceil(len(handles) / lines)),
        fontsize=NORMAL,
        frameon=False,
        handlelength=1.2,
        columnspacing=1.2,
        borderpad=0.2,
    )


def tidy(axes: Axes, *, title: str, x: str, y: str) -> None:
    """Give a panel its words and take away what says nothing."""
    axes.set_title(title, loc="left", fontsize=NORMAL, fontweight="bold", color=INK)
    axes.set_xlabel(x, fontsize=NORMAL, color=INK)
    axes.set_ylabel(y, fontsize=NORMAL, color=INK)
    axes.tick_params(labelsize=NORMAL, colors=INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)


def note(axes: Axes, lines: Sequence[str]) -> None:
    """Write lines under the title of a panel, above what is drawn."""
    axes.annotate(
        "\n".join(lines), (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", fontsize=SMALL,
        color=INK, linespacing=1.25,
    )  # fmt: skip
    title = axes.get_title(loc="left")
    axes.set_title(title, loc="left", pad=5 + 9.5 * len(lines), fontsize=NORMAL, fontweight="bold", color=INK)


def save(figure: Figure, folder: Path, number: int) -> Path:
    """Write a figure of the paper's numbering as PNG; raises ConfigError if it cannot be written."""
    path = folder / f"figure-{number}.png"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}; name another folder") from None
    return path
