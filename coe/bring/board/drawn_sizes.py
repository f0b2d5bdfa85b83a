"""How large packages are as KiCad's board file draws them, where their names tell no size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from coe.bring.board.board_outline import drawn_points
from coe.bring.board.package_sizes import PackageSize
from coe.bring.parts.s_expression import FOOTPRINTS, Node, Numbered, numbers_in, words_of


def drawn_sizes(path: Path, drawn: Sequence[Numbered]) -> dict[str, PackageSize]:
    """Return the sizes of the packages by what a placement file draws.

    A size reaches around the body and the pads, and evenly to both sides of the origin, the place of a part. Raises
    ConfigError for a drawing that lacks a number.
    """
    sizes: dict[str, PackageSize] = {}
    for number, node in drawn:
        if node[0] not in FOOTPRINTS:
            continue
        with numbers_in(path, f"the footprint in line {number}"):
            package = str(node[1]).rpartition(":")[2]
            reach = [*_reach(node)] if package not in sizes else []
        if reach:
            width, height = (round(2 * max(along), 2) for along in zip(*reach, strict=True))
            sizes[package] = PackageSize(width, height, f"its drawing in {path.name}")
    return sizes


def _reach(node: Node) -> Iterator[tuple[float, float]]:
    """Yield how far a footprint reaches from its origin, along its own axes, in mm."""
    place = next(words_of(node, "at"), [])
    turn = float(place[2]) if len(place) > 2 else 0.0
    for inner in node:
        if not isinstance(inner, list):
            continue
        if inner[:1] == ["pad"]:
            at, size = (next(words_of(inner, name), ["0", "0"]) for name in ("at", "size"))
            width, height = float(size[0]) / 2, float(size[1]) / 2
            # The angle of a pad is that on the board.
            if round(((float(at[2]) if len(at) > 2 else 0.0) - turn) / 90) % 2:
                width, height = height, width
            yield abs(float(at[0])) + width, abs(float(at[1])) + height
        yield from ((abs(x), abs(y)) for x, y in drawn_points(inner, ["F.Fab"], ["B.Fab"]))
