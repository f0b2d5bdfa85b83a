"""The common form of all plots: sizes, colours, title, footer. Without pyplot, so nothing is global.

A package that imports this calls `coe.helpers.surroundings.quiet_matplotlib` before it imports anything else.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import Normal, withStroke

from coe.errors import ConfigError

LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#4d4d4d", "#8c510a")
"""The colours of curves, in turn; each curve has a marker of MARKS too."""
MARKS = "os^Dv*"
THROUGHPUT = "images per second"
CHOSEN = LINES[1]
"""The colour of the value that was chosen."""

INK, GREY, FAINT = "#222222", "#8c8c8c", "#dddddd"
SMALL, NORMAL, LARGE = 7.0, 8.5, 11.0
"""Font sizes in points."""

_KEY_IN, _LETTER_IN = 0.4, 0.068
"""The widths in a line of a legend, in inches: of a colour's marker, and of a letter."""

HALO = [withStroke(linewidth=1.8, foreground="white"), Normal()]
"""Keeps a text or a line readable over other parts of a plot."""


def sheet(size: tuple[float, float], command: str | None) -> Figure:
    """Return an empty figure of a width and height in inches, with its command at the foot."""
    figure = Figure(figsize=size, dpi=150, layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # type: ignore[union-attr, call-arg]
    if command:
        lines = textwrap.fill(command, int(size[0] * 16), subsequent_indent="  ", break_on_hyphens=False)
        figure.supxlabel(lines, x=0.01, ha="left", fontsize=SMALL - 0.5, family="monospace", color="#666666")
    return figure


def head(figure: Figure, title: str, handles: Sequence[Artist] = ()) -> None:
    """Write the title of a figure, and under it the meaning of its colours."""
    # As many columns as fit, or fewer if the same number of lines then fills evenly.
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
    """Give a panel its title and labels, and remove lines without information."""
    axes.set_title(title, loc="left", fontsize=NORMAL, fontweight="bold", color=INK)
    axes.set_xlabel(x, fontsize=NORMAL, color=INK)
    axes.set_ylabel(y, fontsize=NORMAL, color=INK)
    axes.tick_params(labelsize=NORMAL, colors=INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)


def note(axes: Axes, lines: Sequence[str]) -> None:
    """Write lines under the title of a panel, above the plot."""
    axes.annotate(
        "\n".join(lines), (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", fontsize=SMALL,
        color=INK, linespacing=1.25,
    )  # fmt: skip
    title = axes.get_title(loc="left")
    axes.set_title(title, loc="left", pad=5 + 9.5 * len(lines), fontsize=NORMAL, fontweight="bold", color=INK)


def nothing(axes: Axes, why: str) -> None:
    """Say in an empty panel why it is empty."""
    axes.text(
        0.5, 0.5, textwrap.fill(why, 60), transform=axes.transAxes, ha="center", va="center", fontsize=NORMAL,
        style="italic", color=GREY,
    )  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, making its folder if need be; raises ConfigError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}; name another place") from None
    return path
