"""The edge of a board from a Gerber file of its profile, or from KiCad's board file: the rectangle around it, in mm.

Gerber: the subset of the format (Ucamco's specification) that profiles have: coordinates, lines and arcs. KiCad's own
file has y downwards, and its placement file counts from the auxiliary origin if there is one.
"""

from __future__ import annotations

import re
from cmath import rect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import atan2, cos, hypot, isfinite, pi, radians, sin
from pathlib import Path

from coe.bring.board.package_sizes import PackageSize
from coe.bring.parts import text_table
from coe.bring.parts.answers import Answers
from coe.bring.parts.cad_files import numbers_in
from coe.bring.parts.kicad_board import FOOTPRINTS, read_board, words_of
from coe.bring.parts.placements import PlacementFile
from coe.bring.parts.text_table import Node, Numbered
from coe.errors import ConfigError

Rectangle = tuple[float, float, float, float]
"""Left, bottom, right and top in mm."""
_NOUN = "the outline"
_MOVE = re.compile(r"(?:G0?([123]))?(?:X([+-]?\d+))?(?:Y([+-]?\d+))?(?:I([+-]?\d+))?(?:J([+-]?\d+))?D0?([12])")
_MODE = re.compile(r"G0?([123])")
_STEPS = 72
"""So quarters of a turn are among those of an arc of one, two, three or four quarters."""


def read_outline(path: Path) -> tuple[Rectangle, Mapping[str, PackageSize]]:
    """Return the rectangle around the board, and the sizes of the packages that a board of KiCad draws.

    Raises ConfigError if the file is no Gerber file and none of KiCad.
    """
    raw = text_table.content(path, _NOUN)
    text = raw.decode("utf-8-sig", "replace")
    drawn = read_board(path, raw) if text.lstrip().startswith("(kicad_pcb") else []
    with numbers_in(path, "its edge"):
        edge = _around(_kicad(drawn) if drawn else _gerber(path, text))
    if edge is None:
        raise ConfigError(f"{path}: no board edge in it; give the layer Edge.Cuts, or the profile")
    return edge, drawn_sizes(path, drawn)


def edge_in(path: Path, file: PlacementFile, form: Answers) -> Rectangle | None:
    """Return the rectangle around the board by what its placement file, a board of KiCad, draws.

    None if that is no edge, or if a person turns or shifts the places in the file.
    """
    is_as_drawn = (form.y, form.offset) == ("up", (0.0, 0.0))
    with numbers_in(path, "its edge"):
        return _around(_kicad(file.drawn)) if is_as_drawn else None


def _around(drawn: Iterable[tuple[float, float]]) -> Rectangle | None:
    """Return the rectangle around points; raises ValueError for what is no number."""
    points = [*drawn]
    if len(points) < 2:
        return None
    if not all(map(isfinite, chain(*points))):
        raise ValueError
    xs, ys = ([point[axis] for point in points] for axis in (0, 1))
    return round(min(xs), 4), round(min(ys), 4), round(max(xs), 4), round(max(ys), 4)


def _gerber(path: Path, text: str) -> Iterator[tuple[float, float]]:
    """Yield points of what is drawn."""
    form = re.search(r"%FSLAX\d(\d)Y\d(\d)\*%", text)
    unit = re.search(r"%MO(MM|IN)\*%", text)
    if form is None or unit is None:
        raise ConfigError(f"{path}: neither a Gerber file (no %FSLA and %MO) nor a .kicad_pcb")
    scale = (25.4 if unit[1] == "IN" else 1.0) / 10 ** int(form[1])
    x = y = 0.0
    mode = "1"
    for word in re.sub(r"%.*?%", "", text, flags=re.DOTALL).replace("\n", "").replace("\r", "").split("*"):
        if match := _MODE.match(word):
            mode = match[1]
        match = _MOVE.fullmatch(word)
        if match is None:
            continue
        to = [x if match[2] is None else int(match[2]) * scale, y if match[3] is None else int(match[3]) * scale]
        if match[6] == "1":
            yield x, y
            if mode != "1":
                offset = [int(word or 0) * scale for word in (match[4], match[5])]
                yield from _arc((x, y), (to[0], to[1]), (x + offset[0], y + offset[1]), clockwise=mode == "2")
            yield to[0], to[1]
        x, y = to


def _arc(
    start: tuple[float, float], end: tuple[float, float], middle: tuple[float, float], *, clockwise: bool
) -> Iterator[tuple[float, float]]:
    """Yield points on an arc, without its ends; a whole circle if these are one."""
    radius = hypot(start[0] - middle[0], start[1] - middle[1])
    first, last = (atan2(at[1] - middle[1], at[0] - middle[0]) for at in (start, end))
    sweep = (first - last if clockwise else last - first) % (2 * pi) or 2 * pi
    for step in range(1, _STEPS):
        angle = first + (-1 if clockwise else 1) * sweep * step / _STEPS
        yield middle[0] + radius * cos(angle), middle[1] + radius * sin(angle)


def _kicad(lists: Sequence[Numbered]) -> Iterator[tuple[float, float]]:
    """Yield points of what is drawn on Edge.Cuts, also in footprints, as the placement file counts them."""
    zero = next((_point(words) for _, node in lists for words in words_of(node, "aux_axis_origin")), (0.0, 0.0))
    for _, node in lists:
        is_footprint = node[0] in FOOTPRINTS
        place = next(words_of(node, "at"), []) if is_footprint else []
        (left, top), turn = _point(place or ["0", "0"]), radians(float(place[2])) if len(place) > 2 else 0.0
        for shape in node if is_footprint else [node]:
            for x, y in drawn_points(shape, ["Edge.Cuts"]):
                at = left + x * cos(turn) + y * sin(turn), top - x * sin(turn) + y * cos(turn)
                yield at[0] - zero[0], zero[1] - at[1]


def drawn_points(shape: Node | str, *layers: list[str]) -> list[tuple[float, float]]:
    """Return points of a line, a rectangle, an arc, a curve, a polygon or a circle of KiCad; none of another layer.

    They are in the frame of its footprint, if it is of one, with y downwards.
    """
    if not isinstance(shape, list) or not any(layer in layers for layer in words_of(shape, "layer")):
        return []
    points = _points(shape)
    if str(shape[0]).endswith("_circle") and len(points) == 2:
        end, middle = points
        radius = hypot(end[0] - middle[0], end[1] - middle[1])
        points = [(middle[0] - radius, middle[1] - radius), (middle[0] + radius, middle[1] + radius)]
    elif str(shape[0]).endswith("_curve") and len(points) == 4:
        points = [*_curve(*(complex(*point) for point in points))]
    return points


def _points(shape: Node) -> list[tuple[float, float]]:
    """Return the points that a shape names, and those on its arc, or on the arcs of its polygon."""
    inner = [one for list_ in shape if list_[:1] == ["pts"] for one in list_ if isinstance(one, list)]
    named = [*shape, *inner]
    points = [_point(words) for word in ("start", "mid", "end", "center", "xy") for words in words_of(named, word)]
    if str(shape[0]).endswith("arc"):
        if angle := next(words_of(shape, "angle"), []):  # KiCad 5 and earlier
            centre, begin = (complex(*point) for point in points)
            turns = (rect(1, radians(float(angle[0])) * step / _STEPS) for step in range(_STEPS + 1))
            points = [(at.real, at.imag) for at in (centre + (begin - centre) * turn for turn in turns)]
        elif len(points) == 3:
            points += _bow(*points)
    return [*points, *(point for arc in inner if arc[0] == "arc" for point in _points(arc))]


def _bow(
    start: tuple[float, float], middle: tuple[float, float], end: tuple[float, float]
) -> Iterator[tuple[float, float]]:
    """Yield points on the arc through three points; none if they lie in a line."""
    first, second, third = (complex(*point) for point in (start, middle, end))
    ratio = (third - first) / (second - first) if second != first else 0j
    if ratio.imag:
        centre = first + (second - first) * (ratio - abs(ratio) ** 2) / (2j * ratio.imag)
        yield from _arc(start, end, (centre.real, centre.imag), clockwise=ratio.imag < 0)


def _curve(start: complex, first: complex, second: complex, end: complex) -> Iterator[tuple[float, float]]:
    """Yield points on a cubic Bezier curve."""
    for share in (step / _STEPS for step in range(_STEPS + 1)):
        rest = 1 - share
        at = rest**3 * start + 3 * rest**2 * share * first + 3 * rest * share**2 * second + share**3 * end
        yield at.real, at.imag


def _point(words: Sequence[str]) -> tuple[float, float]:
    return float(words[0]), float(words[1])


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
