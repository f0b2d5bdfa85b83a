"""Draws the pictures of the house that the pages show, from the code: `python docs/draw.py` writes docs/img/*.svg.

`structure.svg` has the rows of `docs/architecture.md`, which the test of the layers holds against the imports;
`states.svg` the tables of states; `way.svg` the steps below, which a test holds against a trace of a running line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from textwrap import shorten, wrap
from typing import Any

from coe.scheduler import pool
from coe.serve import enums

DOCS = Path(__file__).parent
ANNEXES = ("serve", "cluster", "lab")
SMALL = 11.5
INK, PAPER, EDGE, ENGINE, ANNEX = "#1d2733", "#ffffff", "#7a8794", "#e8f1fa", "#f6efe2"

WAY = (
    ("the caller's", "inspector/line.py", "Line.submit", "waits for room"),
    ("coe-decode", "runtime/engine.py", "Engine._receive", "decodes it, makes the expert's input"),
    (
        "coe-control",
        "scheduler/controller.py",
        "Controller.handle",
        "Arrived: opens its first stage, queues it by expert",
    ),
    ("coe-control", "scheduler/residency.py", "Residency.make_room", "no room: the expert cheapest to give up leaves"),
    ("coe-disk", "runtime/cpu.py", "CpuDevice.load", "reads the expert's blob into the freed memory"),
    ("coe-control", "scheduler/residency.py", "Residency.begin", "Loaded: its group runs, the expert is pinned"),
    ("coe-executor", "runtime/cpu.py", "CpuDevice.run", "one forward pass for the whole group"),
    ("coe-control", "board/router.py", "Router.next", "Finished: a verdict, or the next expert's stage"),
    ("coe-reply", "runtime/line_engine.py", "Pending.answer", "sets the result of the caller's future"),
)
"""The way of a picture whose expert is not in memory: thread, file of coe/, function, and what happens there."""

Point = tuple[float, float]
Table = Mapping[Any, Mapping[Any, str]]
Bends = Mapping[tuple[Any, Any], tuple[float, float]]


def box(x: float, y: float, width: float, height: float, fill: str, *, round: float = 8) -> str:
    """Return a rectangle with a thin edge."""
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    return f'<rect {place} rx="{round:g}" fill="{fill}" stroke="{EDGE}"/>'


def text(x: float, y: float, words: str, *, size: float = 14, anchor: str = "start", bold: bool = False) -> str:
    """Return a line of text; `y` is its base line."""
    weight = ' font-weight="600"' if bold else ""
    halo = f'paint-order="stroke" stroke="{PAPER}" stroke-width="3"' if size == SMALL else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}"{weight} {halo}>{escape(words)}</text>'
    )


def arrow(start: Point, end: Point, bend: float = 0) -> str:
    """Return an arrow; a positive `bend` moves its middle to the right of its direction, in pixels."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = max((dx * dx + dy * dy) ** 0.5, 1)
    middle = ((start[0] + end[0]) / 2 - dy / length * bend * 2, (start[1] + end[1]) / 2 + dx / length * bend * 2)
    return (
        f'<path d="M{start[0]:.0f},{start[1]:.0f} Q{middle[0]:.0f},{middle[1]:.0f} {end[0]:.0f},{end[1]:.0f}" '
        f'fill="none" stroke="{INK}" marker-end="url(#tip)"/>'
    )


def page(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """Return a whole picture, with a title for those who hear it."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" fill="{INK}">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
            f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
            *parts,
            "</svg>\n",
        )
    )


def rows() -> list[tuple[list[str], str]]:
    """Return packages and what is in them, for each row of the table of docs/architecture.md, from the roof down."""
    table = (DOCS / "architecture.md").read_text(encoding="utf-8").partition("## Layers")[2].partition("\n## ")[0]
    found = []
    for line in table.splitlines():
        if line.startswith("| `"):
            _, packages, inside, _ = line.split("|")
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", inside).replace("`", "")
            plain = re.sub(r" \((?:[a-z]+\.md(?:, )?)+\)", "", plain)
            found.append((re.findall(r"`([a-z_]+)`", packages), shorten(plain, 130, placeholder=" ...")))
    return found


def structure() -> str:
    """Draw the rings: the engine, row by row, and the annexes on its roof, which nothing of it imports."""
    width, left, line = 1000, 24, 46
    above = [row for row in rows() if set(row[0]) & set(ANNEXES)]
    below = [row for row in rows() if not set(row[0]) & set(ANNEXES)]
    parts = [text(left, 30, "coe/: a row imports only rows below it", size=16, bold=True)]
    y = 48
    for (name,), inside in above:
        parts += [
            box(left, y, width - 2 * left, line, ANNEX),
            text(left + 14, y + 19, name, bold=True),
            text(left + 14, y + 37, inside, size=12),
        ]
        y += line + 6
    height = len(below) * (line + 6) + 40
    parts += [
        box(left, y, width - 2 * left, height, ENGINE),
        text(left + 14, y + 22, "the engine: pictures in, verdicts out", bold=True),
    ]
    y += 34
    for packages, inside in below:
        parts += [
            box(left + 12, y, width - 2 * left - 24, line, PAPER, round=5),
            text(left + 26, y + 19, ", ".join(packages), bold=True),
            text(left + 26, y + 37, inside, size=12),
        ]
        y += line + 6
    return page(width, int(y + 30), "The packages of coe, row by row", parts)


def machine(table: Table, places: Mapping[Any, Point], names: Mapping[Any, str], y: float, bends: Bends) -> list[str]:
    """Draw a table of states: boxes at their places, an arrow for each step.

    `bends` has the bend of an arrow, in pixels, and the share of its way at which its words stand.
    """
    half = (62, 20)
    parts, labels = [], []
    for before, following in table.items():
        for after, why in following.items():
            (x0, y0), (x1, y1) = places[before], places[after]
            bend, share = bends.get((before, after), (0, 0.5))
            dx, dy = x1 - x0, y1 - y0
            length = (dx * dx + dy * dy) ** 0.5
            # Arrows begin and end at the edges of the boxes.
            side = min(half[0] / abs(dx) if dx else 9, half[1] / abs(dy) if dy else 9)
            start, end = (x0 + dx * side, y0 + dy * side + y), (x1 - dx * side, y1 - dy * side + y)
            parts.append(arrow(start, end, bend))
            middle = (x0 + dx * share - dy / length * bend, y0 + dy * share + dx / length * bend + y)
            labels.append(text(middle[0], middle[1] + 3, why, size=SMALL, anchor="middle"))
    for state, (x, top) in places.items():
        fill = PAPER if state is None else ENGINE
        parts += [box(x - half[0], top + y - half[1], 2 * half[0], 2 * half[1], fill, round=18)]
        parts.append(text(x, top + y + 5, names.get(state, str(state)), anchor="middle", bold=True))
    return parts + labels


def states() -> str:
    """Draw the states of an expert in a pool, and of a board of the station."""
    expert, board = pool.State, enums.BoardState
    parts = [text(24, 30, "An expert in a pool", size=16, bold=True)]
    parts += machine(
        pool.NEXT,
        {
            None: (90, 230),
            expert.PLANNED: (300, 40),
            expert.LOADING: (600, 40),
            expert.READY: (900, 40),
            expert.LEAVING: (600, 230),
        },
        {None: "not there"},
        30,
        {
            (None, expert.PLANNED): (-22, 0.5),
            (expert.PLANNED, None): (-22, 0.5),
            (expert.LOADING, None): (0, 0.5),
            (expert.PLANNED, expert.LEAVING): (0, 0.62),
            (expert.LOADING, expert.LEAVING): (0, 0.35),
        },
    )
    parts.append(text(24, 330, "A board of the station", size=16, bold=True))
    parts += machine(
        enums.NEXT,
        {
            None: (90, 190),
            board.ACCEPTED: (300, 190),
            board.LOCATED: (300, 40),
            board.RUNNING: (600, 225),
            board.DECIDED: (900, 40),
            board.VERIFIED: (900, 340),
            board.ABORTED: (600, 370),
        },
        {None: "not there"},
        340,
        {
            (board.LOCATED, board.VERIFIED): (-24, 0.75),
            (board.LOCATED, board.ABORTED): (30, 0.5),
            (board.ACCEPTED, board.DECIDED): (0, 0.4),
            (board.ACCEPTED, board.VERIFIED): (26, 0.72),
            (board.ACCEPTED, board.ABORTED): (10, 0.5),
            (board.RUNNING, board.ABORTED): (0, 0.72),
        },
    )
    return page(1000, 740, "The states of an expert in a pool and of a board of the station", parts)


def way() -> str:
    """Draw the way of a picture, a lane for each thread."""
    threads = list(dict.fromkeys(thread for thread, *_ in WAY))
    lane, step, height, top = 200, 84, 72, 70
    width = 24 + lane * len(threads) + 12
    parts = [text(24, 28, "A picture whose expert is not in memory", size=16, bold=True)]
    for number, thread in enumerate(threads):
        x = 24 + number * lane
        parts += [
            box(x, 42, lane - 12, top + step * len(WAY) - 36, ENGINE if number % 2 else PAPER),
            text(x + (lane - 12) / 2, 61, thread, anchor="middle", bold=True),
        ]
    last: Point | None = None
    for number, (thread, file, function, what) in enumerate(WAY, start=1):
        x, y = 24 + threads.index(thread) * lane, top + (number - 1) * step
        middle = x + (lane - 12) / 2
        if last is not None:
            parts.append(arrow(last, (middle, y)))
        parts += [
            box(x + 4, y, lane - 20, height, PAPER, round=5),
            text(x + 10, y + 16, f"{number}. {function}", size=12, bold=True),
            text(x + 10, y + 31, file, size=10.5),
            *(text(x + 10, y + 47 + 14 * row, line, size=11) for row, line in enumerate(wrap(what, 29))),
        ]
        last = (middle, y + height)
    return page(width, top + step * len(WAY) + 20, "The path of a picture whose expert is not in memory", parts)


PICTURES = {"structure.svg": structure, "states.svg": states, "way.svg": way}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (DOCS / "img" / name).write_text(draw(), encoding="utf-8")
