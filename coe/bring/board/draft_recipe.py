"""A first board recipe from a placement file: what its names tell, and TODO where a person must decide.

Parts of one package and one value become one component. Fiducials and mounting holes are told by their designators and
packages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import dist

from coe.board.parts_list import Side
from coe.bring.board.board_outline import Rectangle
from coe.bring.board.package_sizes import NamedSize, PackageSize, size_of
from coe.bring.parts.converting import Converted
from coe.bring.parts.naming import Mark, mark_of
from coe.bring.parts.placement_file import Placement
from coe.errors import ConfigError, list_few
from coe.placement.panel_split import pattern_of

UNKNOWN_MM = 3.0
"""The side of a package whose name tells no size, until a person says it."""
_MOST_MARKS = 12
_EDGE_MM = 2.0
"""By how much the outline is taken to reach over the parts where no file tells it."""


@dataclass(frozen=True, slots=True)
class DraftPart:
    """A component of the draft: its parts, and how large they are.

    `package` and `value` are those of the first part. `source` says where the size comes from; it is empty if the name
    of no package tells one.
    """

    name: str
    package: str
    refdes: tuple[str, ...]
    size_mm: tuple[float, float]
    source: str


@dataclass(frozen=True, slots=True)
class BoardPlan:
    """What a placement file tells of one side of a board: parts by component, marks, and its extent in mm.

    `panel` is how parts are named if the file is of a whole panel. `in_pixels` means that mm are pixels of a picture.
    `unseen` are parts that no picture shows.
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
    unseen: tuple[str, ...] = ()

    def seen_x(self, x_mm: float) -> float:
        """Return an x as the camera sees it, which sees that of the bottom side mirrored; and back."""
        return -x_mm if self.side is Side.BOTTOM else x_mm

    @property
    def seen_marks(self) -> tuple[Mark, ...]:
        """The marks as the camera sees the side."""
        return tuple(replace(mark, x_mm=self.seen_x(mark.x_mm)) for mark in self.marks)


def plan(
    converted: Converted,
    side: Side,
    library: Sequence[NamedSize] = (),
    outline: Rectangle | None = None,
    edge: Rectangle | None = None,
    drawn: Mapping[str, PackageSize] | None = None,
) -> BoardPlan:
    """Return what is inspected on a side; `outline` is its left, bottom, right and top in mm, if a file tells it.

    What the placement file draws itself counts where nothing else tells it: its `edge`, and the sizes by package,
    `drawn`. Raises ConfigError for a side without parts, and for parts outside of an outline of a file.
    """
    if side is Side.BOTTOM and converted.answers.bottom is None:
        raise ConfigError(
            "say how the placement file describes the bottom side, --bottom-x and --bottom-angle (docs/placements.md)"
        )
    found = [(place, mark_of(place)) for place in converted.places]
    marks = [
        mark
        for place, mark in found
        if mark is not None and not place.component and (place.side is side or mark.look == "dark")
    ]
    here = [place for place in converted.places if place.side is side]
    kinds: dict[str, list[Placement]] = {}
    for place in here:
        if place.component:
            kinds.setdefault(place.component, []).append(place)
    if not kinds:
        raise ConfigError(f"the placement file has no part on the {side} side; give --side, or another file")
    parts = []
    for name, places in sorted(kinds.items(), key=lambda kind: -len(kind[1])):
        packages = dict.fromkeys(place.package for place in places)
        sizes = (size_of(package, library) or (drawn or {}).get(package) for package in packages)
        size = next(filter(None, sizes), None)
        parts.append(
            DraftPart(
                name,
                places[0].package,
                tuple(place.refdes for place in places),
                (size.width_mm, size.height_mm) if size else (UNKNOWN_MM, UNKNOWN_MM),
                size.source if size else "",
            )
        )
    placed = [place for places in kinds.values() for place in places]
    rectangle = outline or (edge and _around(edge, placed)) or _extent(placed, parts, marks)
    left, bottom, right, top = rectangle
    outside = [p.refdes for p in placed if not (left <= p.x_mm <= right and bottom <= p.y_mm <= top)]
    if outside:
        raise ConfigError(
            f"{len(outside)} of {len(placed)} parts ({list_few(outside)}) lie "
            f"outside of the outline, x {left:g} to {right:g} mm and y {bottom:g} to {top:g} mm: export both files "
            "with one origin, or shift the places with `offset` in answers.yaml"
        )
    return BoardPlan(
        side,
        tuple(placed),
        tuple(parts),
        tuple(_outermost(_without_twins(marks))),
        tuple(dict.fromkeys(place.refdes for place in here if place.refdes and not place.component)),
        (left, right),
        (bottom, top),
        rectangle in (outline, edge),
        pattern_of(placed),
    )


def _around(edge: Rectangle, placed: Sequence[Placement]) -> Rectangle:
    """Return the rectangle around an edge and all places, as that of a connector may lie beyond the edge."""
    xs, ys = ([place.x_mm for place in placed], [place.y_mm for place in placed])
    return min(edge[0], *xs), min(edge[1], *ys), max(edge[2], *xs), max(edge[3], *ys)


def _extent(placed: Sequence[Placement], parts: Sequence[DraftPart], marks: Sequence[Mark]) -> Rectangle:
    """Return the extent of all parts and marks, and a little more, in full tenths of a mm."""
    reach = {refdes: max(part.size_mm) / 2 for part in parts for refdes in part.refdes}
    places = [(place.x_mm, place.y_mm, reach[place.refdes]) for place in placed]
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
