"""A first board recipe from a placement file: what its names tell, and TODO where a person must decide.

Parts of one package and one value become one component. Fiducials and mounting holes are told by their designators and
packages.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import dist
from pathlib import Path

from coe.board.parts_file import Side
from coe.errors import ConfigError, did_you_mean, list_few
from coe.helpers import strict_yaml
from coe.helpers.spelling import fits
from coe.helpers.strict_model import of_yaml
from coe.placement.board_layout import Bottom
from coe.placement.board_outline import Rectangle
from coe.placement.package_sizes import NamedSize, PackageSize, size_of
from coe.placement.panel_split import pattern_of
from coe.placement.placement_file import FileForm, Placement
from coe.placement.recipe_spec import Look

_FIDUCIAL = re.compile(r"fid|fd\d|fm\d", re.IGNORECASE)
_FIDUCIAL_PACKAGE = re.compile("fiducial", re.IGNORECASE)
_HOLE = re.compile(r"(mh|mk|mp|hole|h)\d*", re.IGNORECASE)
_HOLE_PACKAGE = re.compile(r"mounting.?hole|mtg|hole", re.IGNORECASE)
_NO_PART = re.compile(r"tp\d*|ref\*\*|logo.*|g\*+|kibuzzard.*|mark\d*", re.IGNORECASE)
_NO_PART_PACKAGE = re.compile(r"test.?point|logo|symbol|silk|kibuzzard|netti|solderjumper", re.IGNORECASE)
_SCREWS = {"2": 2.2, "2.5": 2.7, "3": 3.2, "4": 4.3}
_FIDUCIAL_MM, _HOLE_MM = 1.0, 3.2
_SPELT = {ord(sign): letter for sign, letter in zip("\u2126\u03a9\u00b5\u03bc", "RRuu", strict=True)}
"""Ohm and micro, as names of components spell them."""
UNKNOWN_MM = 3.0
"""The side of a package whose name tells no size, until a person says it."""
_MOST_MARKS = 12
_EDGE_MM = 2.0
"""By how much the outline is taken to reach over the parts where no file tells it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A disc that may tell how the board lies: a fiducial or a hole, with its diameter in mm."""

    name: str
    x_mm: float
    y_mm: float
    diameter_mm: float
    look: Look


@dataclass(frozen=True, slots=True)
class DraftPart:
    """A component of the draft: the parts of one package and one value, and how large they are.

    `source` says where the size comes from; it is empty if the name of the package tells none. `component` is what a
    column of the file calls it, and is empty without such a column.
    """

    name: str
    package: str
    value: str
    refdes: tuple[str, ...]
    size_mm: tuple[float, float]
    source: str
    component: str = ""


@dataclass(frozen=True, slots=True)
class BoardPlan:
    """What a placement file tells of one side of a board: parts by component, marks, and its extent in mm.

    `panel` is how parts are named if the file is of a whole panel. `in_pixels` means that mm are pixels of a picture.
    `not_fitted` are parts that files leave out, `unseen` those of `left_out` that no picture shows.
    """

    side: Side
    placements: tuple[Placement, ...]
    parts: tuple[DraftPart, ...]
    marks: tuple[Mark, ...]
    left_out: tuple[str, ...]
    x: tuple[float, float]
    y: tuple[float, float]
    outline_is_known: bool = False
    panel: str | None = None
    in_pixels: bool = False
    not_fitted: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    def without(self, unseen: Collection[str]) -> BoardPlan:
        """Return the plan with parts left out that no picture shows."""
        return replace(self, left_out=(*self.left_out, *unseen), unseen=tuple(unseen))

    def seen_marks(self, bottom: Bottom | None) -> tuple[Mark, ...]:
        """Return the marks as the camera sees the side."""
        return tuple(replace(mark, x_mm=bottom.x_of(mark.x_mm) if bottom else mark.x_mm) for mark in self.marks)


def plan(
    placements: Sequence[Placement],
    side: Side,
    library: Sequence[NamedSize] = (),
    outline: Rectangle | None = None,
    edge: Rectangle | None = None,
    drawn: Mapping[str, PackageSize] | None = None,
    leave_out: Sequence[str] = (),
) -> BoardPlan:
    """Return what is inspected on a side; `outline` is its left, bottom, right and top in mm, if a file tells it.

    What the placement file draws itself counts where nothing else tells it: its `edge`, and the sizes by package,
    `drawn`. `leave_out` names parts that a person leaves out.

    Raises ConfigError for a side without parts, for parts outside of an outline of a file, and for a name of no part.
    """
    names = [place.refdes for place in placements]
    if unknown := [word for word in leave_out if not any(fits(word, name) for name in names)]:
        raise ConfigError(f"--leave-out: the board has no part '{unknown[0]}'{did_you_mean(unknown[0], names)}")
    marks: list[Mark] = []
    kinds: dict[tuple[str, str, str], list[Placement]] = {}
    left_out: list[str] = []
    for place in placements:
        mark = mark_of(place)
        if mark is not None and (place.side is side or mark.look == "dark"):
            marks.append(mark)
        if place.side is not side:
            continue
        is_left_out = is_no_part(place) or any(fits(word, place.refdes) for word in leave_out)
        if mark is not None or not place.refdes or is_left_out:
            left_out.append(place.refdes)
        else:
            value = "" if place.component else place.value
            kinds.setdefault((place.package, value, place.component), []).append(place)
    if not kinds:
        raise ConfigError(f"the placement file has no part on the {side} side; give --side, or another file")
    parts, taken = [], set[str]()
    for (package, value, component), places in sorted(kinds.items(), key=lambda kind: -len(kind[1])):
        name = component_name("", component, taken) if component else component_name(package, value, taken)
        size = size_of(package, library) or (drawn or {}).get(package)
        parts.append(
            DraftPart(
                name,
                package,
                value,
                tuple(place.refdes for place in places),
                (size.width_mm, size.height_mm) if size else (UNKNOWN_MM, UNKNOWN_MM),
                size.source if size else "",
                component,
            )
        )
    placed = [place for places in kinds.values() for place in places]
    rectangle = outline or (edge and _around(edge, placed)) or _extent(kinds, parts, marks)
    left, bottom, right, top = rectangle
    outside = [p.refdes for p in placed if not (left <= p.x_mm <= right and bottom <= p.y_mm <= top)]
    if outside:
        raise ConfigError(
            f"{len(outside)} of {len(placed)} parts ({list_few(outside)}) lie "
            f"outside of the outline, x {left:g} to {right:g} mm and y {bottom:g} to {top:g} mm: export both files "
            "with one origin, or shift the places with `offset` of --form"
        )
    return BoardPlan(
        side,
        tuple(placed),
        tuple(parts),
        tuple(_outermost(_without_twins(marks))),
        tuple(dict.fromkeys(refdes for refdes in left_out if refdes)),
        (left, right),
        (bottom, top),
        rectangle in (outline, edge),
        pattern_of(placed),
    )


def _around(edge: Rectangle, placed: Sequence[Placement]) -> Rectangle:
    """Return the rectangle around an edge and all places, as that of a connector may lie beyond the edge."""
    xs, ys = ([place.x_mm for place in placed], [place.y_mm for place in placed])
    return min(edge[0], *xs), min(edge[1], *ys), max(edge[2], *xs), max(edge[3], *ys)


def is_no_part(place: Placement) -> bool:
    """Tell whether a placement is a test point, a logo or the like, by its designator or its package."""
    return bool(_NO_PART.fullmatch(place.refdes) or _NO_PART_PACKAGE.search(place.package))


def mark_of(place: Placement) -> Mark | None:
    """Return the fiducial or the hole that a placement is; None if it is a part."""
    if place.is_fiducial or _FIDUCIAL.match(place.refdes) or _FIDUCIAL_PACKAGE.search(place.package):
        diameter = _millimetres(place.package) or _FIDUCIAL_MM
        return Mark(place.refdes, place.x_mm, place.y_mm, diameter, "bright")
    if _HOLE_PACKAGE.search(place.package) and _HOLE.match(place.refdes or "H"):
        screw = re.search(r"M(\d(?:\.5)?)(?!\d|\.\d*mm)", place.package)
        diameter = _millimetres(place.package) or (_SCREWS.get(screw[1]) if screw else None) or _HOLE_MM
        return Mark(place.refdes, place.x_mm, place.y_mm, diameter, "dark")
    return None


def _millimetres(package: str) -> float | None:
    match = re.search(r"_(\d+(?:\.\d+)?)mm", package)
    return float(match[1]) if match else None


def component_name(package: str, value: str, taken: set[str]) -> str:
    """Return a name for a component, of the signs that names may have, and none twice."""
    short = re.sub(r"_(HandSolder\w*|\d{4}Metric.*)", "", package.rpartition(":")[2])
    short = re.sub(r"(?<=[A-Za-z0-9])_\d.*", "", re.sub(r"^([A-Z]+)_(?=\d)", r"\1", short))
    words = "-".join(word for word in (short, value) if word)
    words = words.translate(_SPELT)
    bare = re.sub(r"-{2,}", "-", re.sub(r"[^A-Za-z0-9._+-]+", "-", words)).strip("-._+")[:60] or "part"
    number, name = 1, bare
    while name.casefold() in taken:
        number += 1
        name = f"{bare}-{number}"
    taken.add(name.casefold())
    return name


def _extent(
    kinds: Mapping[tuple[str, str, str], Sequence[Placement]], parts: Sequence[DraftPart], marks: Sequence[Mark]
) -> tuple[float, float, float, float]:
    """Return the extent of all parts and marks, and a little more, in full tenths of a mm."""
    reach = {refdes: max(part.size_mm) / 2 for part in parts for refdes in part.refdes}
    places = [(place.x_mm, place.y_mm, reach[place.refdes]) for of_kind in kinds.values() for place in of_kind]
    places += [(mark.x_mm, mark.y_mm, mark.diameter_mm / 2) for mark in marks]
    low_x, low_y = (min(place[axis] - place[2] for place in places) - _EDGE_MM for axis in (0, 1))
    high_x, high_y = (max(place[axis] + place[2] for place in places) + _EDGE_MM for axis in (0, 1))
    return round(low_x, 1), round(low_y, 1), round(high_x, 1), round(high_y, 1)


def _outermost(marks: Sequence[Mark]) -> list[Mark]:
    """Return the marks that lie farthest from the middle of all, where there are very many, as on a panel."""
    x, y = (sum(getattr(mark, axis) for mark in marks) / max(1, len(marks)) for axis in ("x_mm", "y_mm"))
    far = sorted(marks, key=lambda mark: -dist((mark.x_mm, mark.y_mm), (x, y)))[:_MOST_MARKS]
    return [mark for mark in marks if mark in far]


def _without_twins(marks: Sequence[Mark]) -> list[Mark]:
    """Return marks of which none lies on another, each with a name of its own."""
    kept: list[Mark] = []
    for mark in marks:
        if all(dist((mark.x_mm, mark.y_mm), (one.x_mm, one.y_mm)) > mark.diameter_mm for one in kept):
            names = {one.name for one in kept}
            name = re.sub(r"[^A-Za-z0-9._+-]", "", mark.name) or "H"
            number = 1
            while name in names:
                number += 1
                name = f"{mark.name or 'H'}-{number}"
            kept.append(Mark(name, mark.x_mm, mark.y_mm, mark.diameter_mm, mark.look))
    return kept


def read_form(path: Path) -> FileForm:
    """Read a file of the keys that `placement_file` of a recipe has; raises RulesError with file and line."""
    raw = strict_yaml.content(path, "form of placement files")
    return of_yaml(
        strict_yaml.parse(
            path, raw, "columns, sides, not_fitted, decimal, angles, clockwise, y, offset, side or rotation"
        ),
        FileForm,
    )
