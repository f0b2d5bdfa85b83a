"""Draws docs/img/foresight-timeline.png: the same images on a small line that learns nothing, and with a parts list.

python -m apps.foresight_timeline docs/img/foresight-timeline.png
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coe.board.parts import PlacedPart
from coe.scheduler.costs import Cost
from coe.testing import VirtualLine, pools_of, rules_from

COLOURS = dict(zip("abcdef", ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"), strict=True))
COST = Cost(per_image_s=0.12, base_s=0.05, load_s=1.0, weights_bytes=10, activation_bytes=1)
EXPERTS = "".join(f"  {name}: {{kind: k, labels: [ok, bad], input: 8, reject: [bad]}}\n" for name in COLOURS)
COMPONENTS = "".join(f"  {name.upper()}: {{count: 1, inspect: {name}}}\n" for name in COLOURS)
BOARD = "aabbacdbeeffcdab"
"""The experts of the parts of a board, in the order of the camera."""
EVERY_S, LOAD_S = 1.2, COST.load_s


def run(parts: bool) -> VirtualLine:
    """Run two boards on a line whose memory holds four experts."""
    listed = [PlacedPart(expert.upper(), f"P{index}") for index, expert in enumerate(BOARD)]
    line = VirtualLine(
        rules_from(f"board: b\nexperts:\n{EXPERTS}components:\n{COMPONENTS}"),
        dict.fromkeys(COLOURS, COST),
        pools_of(1, 44, 4),
        strategy="line",
        parts=listed if parts else (),
    )
    for number, part in enumerate(listed * 2):
        refdes = part.refdes if parts else ""
        line.arrive(10 + number * EVERY_S, part.component, serial=f"S{number // len(BOARD)}", refdes=refdes)
    line.run()
    return line


def draw(axes: Axes, line: VirtualLine, title: str) -> None:
    """Draw the disk, the executor, and for each image a line from its arrival to its verdict."""
    for at_s, what in line.log:
        if load := re.fullmatch(r"\S+ load (\w)", what):
            axes.barh(2, LOAD_S, left=at_s, height=0.8, color=COLOURS[load[1]])
        elif batch := re.fullmatch(r"\S+ run (\w) x(\d+)", what):
            axes.barh(1, COST.batch_s(int(batch[2])), left=at_s, height=0.8, color=COLOURS[batch[1]])
    for result in line.results.values():
        expert = result.findings[0].expert
        came_s = 10 + result.request.id * EVERY_S
        axes.plot([came_s, came_s + result.latency_s], [0, 0], color=COLOURS[expert], linewidth=3)
        axes.plot([came_s], [0], marker="|", color=COLOURS[expert], markersize=10)
    waits_s = sorted(result.latency_s for result in line.results.values())
    axes.set_title(f"{title}: {line.switches} switches, longest wait {waits_s[-1]:.1f} s", loc="left", fontsize=10)
    axes.set_yticks([0, 1, 2], ["images, until\ntheir verdicts", "executor", "disk"])
    axes.set_ylim(-0.6, 2.6)
    axes.spines[["top", "right"]].set_visible(False)


def main(path: Path) -> None:
    """Draw both lines below each other."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    draw(upper, run(parts=False), "nothing foreseen")
    draw(lower, run(parts=True), "with the parts list")
    lower.set_xlim(9, 50)
    lower.set_xlabel("seconds (a colour for each expert; memory holds four of the six)")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
