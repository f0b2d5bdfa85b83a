"""A first board recipe from a placement file: what its names tell, and TODO where a person must decide.

Parts of one package and one value become one component. Fiducials and mounting holes are told by their designators and
packages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import dist

from coe.board.drafting import TODO
from coe.board.parts_list import Side
from coe.bring.board.board_outline import Rectangle
from coe.bring.board.found_camera import FoundCamera
from coe.bring.board.package_sizes import LIBRARY, NamedSize, PackageSize, size_of
from coe.bring.parts.converting import Converted
from coe.bring.parts.naming import Mark, mark_of
from coe.bring.parts.placements import Placement
from coe.errors import ConfigError, list_few
from coe.placement.panel_split import pattern_of
from coe.placement.recipe_spec import CameraSpec

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
        raise ConfigError("say how the placement file describes the bottom side, --bottom-x and --bottom-angle")
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


_MOST_NAMED = 6
_UM_PER_PIXEL = 20.0
_STRAIGHT = CameraSpec()
_HELD = (
    f"held: true  # {TODO}: does a fixture hold each board in this place, the same way round? No mark proves it; look "
    "at all overlays"
)


@dataclass(frozen=True, slots=True)
class RecipeDraft:
    """A recipe in the making: what files tell, and what pictures tell of the camera and the marks.

    `fiducials` are all of one diameter and look; without any, a fixture holds each board. `landmarks` are marks that
    may tell how a board lies where those do not. `picture` is the width and height that all pictures must have then.
    """

    name: str
    plan: BoardPlan
    fiducials: tuple[Mark, ...]
    um_per_pixel: float = _UM_PER_PIXEL
    camera: CameraSpec = _STRAIGHT
    search_mm: float = 5.0
    landmarks: tuple[Mark, ...] = ()
    landmark: Mark | None = None
    picture: tuple[int, int] | None = None

    def measured(self, camera: FoundCamera, seen: Sequence[Sequence[Mark]]) -> RecipeDraft:
        """Return the draft with a camera, and with those of its marks that all pictures show, as they look there."""
        if not self.fiducials:
            return replace(self, um_per_pixel=camera.um_per_pixel, camera=camera.camera)
        shown = {mark.name for mark in seen[0]}.intersection(*({mark.name for mark in marks} for marks in seen))
        places = {mark.name: mark for mark in self.plan.marks}
        marks = [
            replace(places[mark.name], diameter_mm=mark.diameter_mm, look=mark.look)
            for mark in seen[0]
            if mark.name in shown
        ]
        best = fiducials(marks, wants_four=camera.keystones_differ) or self.fiducials
        others = tuple(mark for mark in marks if mark not in best)
        search = min(10.0, max(2.0, round(2 * camera.spread_mm + 1.5, 1)))
        return replace(
            self,
            um_per_pixel=camera.um_per_pixel,
            camera=camera.camera,
            fiducials=best,
            search_mm=search,
            landmarks=others,
        )

    def with_landmark(self, mark: Mark) -> RecipeDraft:
        """Return the draft with a landmark."""
        return replace(self, landmark=mark)

    def text(self, *, todo: str = "") -> str:
        """Return the recipe as YAML; `todo` is what a person must do where no picture told the scale."""
        plan = self.plan
        edge = (
            "from a file" if plan.outline_is_known else "the parts' extent and a little more; the true edge is better"
        )
        scale = "measured in the pictures"
        if plan.in_pixels:
            edge, scale = "the whole picture", "a pixel is 1 mm"
        lines = [
            "# A first recipe: look at the overlay, and change what is not right.",
            "# Lengths are mm in the frame of parts.csv.",
            f"recipe: {self.name}",
            f"side: {plan.side}",
            f"um_per_pixel: {self.um_per_pixel:.6g}  # {todo or scale}",
            f"outline: {{x: {_pair(plan.x)}, y: {_pair(plan.y)}}}  # {edge}",
        ]
        if self.camera != _STRAIGHT:
            turn, middle, slant = f"{self.camera.turn:g}", _pair(self.camera.middle), _pair(self.camera.keystone)
            lines.append(f"camera: {{turn: {turn}, middle: {middle}, keystone: {slant}}}  # measured in the pictures")
        lines += self._fiducials() or [_HELD]
        if self.picture is not None:
            lines.append(f"picture: {_pair(self.picture)}  # pixels; in pictures of another size parts lie elsewhere")
        if (mark := self.landmark) is not None:
            lines.append(
                f"landmark: {{at: {_pair((mark.x_mm, mark.y_mm))}, diameter: {mark.diameter_mm:g}, look: {mark.look}}}"
                f"  # {mark.name}: it shows how the board lies where fiducials coincide"
            )
        if plan.panel is not None:
            lines += [f"panel: {{refdes: {_flow(plan.panel)}}}  # how parts are named on the panel's boards"]
        lines += ["components:  # size: width and height of the package with its leads, at a rotation of 0"]
        lines += _sizes(plan)
        return "\n".join(lines) + "\n"

    def _fiducials(self) -> list[str]:
        if not self.fiducials:
            return []
        first = self.fiducials[0]
        return [
            "fiducials:",
            f"  diameter: {first.diameter_mm:g}",
            f"  look: {first.look}",
            f"  search: {self.search_mm:g}  # mm around where each should be",
            "  at:",
            *(f"    {_flow(mark.name)}: {_pair((mark.x_mm, mark.y_mm))}" for mark in self.fiducials),
        ]


def first_draft(name: str, plan: BoardPlan, *, held: bool = False) -> RecipeDraft:
    """Return the draft that files alone tell; raises ConfigError if they have no two marks, and no fixture holds it."""
    if held:
        return RecipeDraft(name, plan, ())
    marks = fiducials(plan.marks)
    if len(marks) < 2:
        raise ConfigError(
            "the placement file has no two fiducials (FID1, FID2, ...) or mounting holes (H1, H2, ... of a package "
            "MountingHole); export them too, or add lines for them, with a package such as Fiducial_1mm or "
            "MountingHole_3.2mm; where a fixture holds each board in one place, give --held, or --in-pixels for "
            "places in pixels of the pictures"
        )
    return RecipeDraft(name, plan, marks)


def drawn_in_pixels(plan: BoardPlan, width_px: int, height_px: int) -> BoardPlan:
    """Return a plan whose mm are pixels of a picture, y upwards from its top left corner; the outline is the picture.

    Names of packages tell mm: each size is guessed as half of the way to the nearest other place, so far as the picture
    reaches.
    """
    at = {place.refdes: (place.x_mm, place.y_mm) for place in plan.placements}

    def room(name: str) -> float:
        (x, y), others = at[name], [other for refdes, other in at.items() if refdes != name]
        nearest = min((dist((x, y), other) for other in others), default=min(width_px, height_px))
        return min(nearest / 2, *(2 * max(edge, 1.0) for edge in (x, -y, width_px - x, height_px + y)))

    parts = []
    for part in plan.parts:
        side = float(max(8, round(min(map(room, part.refdes)))))
        parts.append(replace(part, size_mm=(side, side), source=""))
    return replace(plan, parts=tuple(parts), x=(0.0, float(width_px)), y=(-float(height_px), 0.0), in_pixels=True)


def fiducials(marks: Sequence[Mark], *, wants_four: bool = False) -> tuple[Mark, ...]:
    """Return the marks that a recipe searches: of one diameter and look, fiducials rather than holes, most of all.

    Three tell an affine map; `wants_four` asks for four, which tell a projective map. Empty if there are no two.
    """
    kinds = {(mark.look, mark.diameter_mm) for mark in marks}
    groups = [tuple(m for m in marks if (m.look, m.diameter_mm) == kind) for kind in sorted(kinds)]
    wanted = 4 if wants_four else 3
    best = max(groups, key=lambda group: (len(group) >= wanted, group[0].look == "bright", len(group)), default=())
    return best if len(best) > 1 else ()


def _sizes(plan: BoardPlan) -> list[str]:
    lines = []
    for part in plan.parts:
        said = f"{len(part.refdes)}: {list_few(part.refdes, _MOST_NAMED)}"
        if plan.in_pixels:
            side = part.size_mm[0]
            said = f"{TODO}: what is cut out, in pixels; {side:g} x {side:g} is a guess ({said})"
        elif not part.source:
            what = part.package or "a part without a package"
            guess = f"{part.size_mm[0]:g} x {part.size_mm[1]:g} mm is a guess"
            said = f"{TODO}: the size of {what}; {guess} ({said}); in {LIBRARY} it applies to all boards"
        lines.append(f"  {part.name}: {{size: {_pair(part.size_mm)}}}  # {said}")
    return lines


def _pair(values: tuple[float, float]) -> str:
    return f"[{values[0]:.8g}, {values[1]:.8g}]"


def _flow(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
