"""A placement file and a BOM made `parts.csv`: a row for each part, with its component as `answers.yaml` names it."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coe.board.parts_file import COLUMNS, BoardPart, Side
from coe.bring.parts.answers import Answers
from coe.errors import list_few
from coe.helpers.spelling import fits
from coe.placement.bom_join import Bom, BomJoin, join
from coe.placement.cad_files import read_bom, read_file
from coe.placement.draft_recipe import component_name, is_no_part, mark_of
from coe.placement.panel_split import on_boards
from coe.placement.placement_file import Placement, PlacementFile
from coe.placement.recipe_spec import MappingSpec

_MOVED_MM, _MOST_TOLD = 0.001, 12


@dataclass(frozen=True, slots=True)
class Converted:
    """A placement file as it was read and joined with the BOM, if there is one, and what becomes of it.

    `places` are the parts that are fitted, and the marks, in the frame of `parts`. `answers` name each package of
    them. `notes` are sentences that a person should read.
    """

    file: PlacementFile
    joined: BomJoin | None
    places: tuple[Placement, ...]
    parts: tuple[BoardPart, ...]
    answers: Answers
    notes: tuple[str, ...]

    @property
    def not_fitted(self) -> tuple[str, ...]:
        """The parts that the files leave out."""
        return (*self.file.not_placed, *(self.joined.not_fitted if self.joined else ()))


def convert(path: Path, bom: Path | None, answers: Answers, dialect: str = "generic") -> Converted:
    """Read a placement file, and a BOM if one is given, as `answers` say.

    Raises ConfigError with file and line for what cannot be read, and for what only a person can tell.
    """
    listed = None if bom is None else read_bom(bom, dialect, answers, asks=False)
    file = read_file(path, dialect, str(answers.unit or ""), answers, listed)
    joined = None if listed is None else join(file.placements, listed, said=file.said, not_placed=file.not_placed)
    notes = [f"{path.name}: {note}" for note in file.notes]
    if bom is not None and joined is not None:
        notes += [listed.read_as] if isinstance(listed, Bom) and listed.read_as else []
        notes += [f"{bom.name}: {note}" for note in joined.notes]
    read = file.placements if joined is None else joined.placements
    below = [place.refdes for place in read if place.side is Side.BOTTOM]
    places = tuple(_from_top(place, answers) for place in read if place.side is Side.TOP or answers.bottom is not None)
    if below and answers.bottom is None:
        notes.append(
            f"{len(below)} parts of the bottom side are left out ({list_few(below)}): say how the file describes "
            "them with --bottom-x and --bottom-angle, if they are inspected"
        )
    if nameless := [str(place.line) for place in places if not place.refdes]:
        notes.append(f"{len(nameless)} places without a designator are left out (line {list_few(nameless)})")
    named = _Names(answers, places)
    parts = tuple(
        BoardPart(p.refdes, p.x_mm, p.y_mm, p.rotation_deg, p.side, named.component(p), p.line)
        for p in places
        if p.refdes
    )
    answers = answers.model_copy(update={"packages": tuple(named.packages)})
    return Converted(file, joined, places, parts, answers, tuple(notes))


def _from_top(place: Placement, answers: Answers) -> Placement:
    """Return a place in the frame of parts.csv: x as seen from the top, the angle as the camera sees the side."""
    if place.side is Side.TOP or answers.bottom is None:
        return place
    seen = answers.bottom.spec
    return replace(place, x_mm=-seen.x_of(place.x_mm), rotation_deg=seen.angle_of(place.rotation_deg))


class _Names:
    """What parts are called: as a person says, as a column of the file says, or by package and value.

    `packages` are the answers, with an entry for each package and value that has none.
    """

    def __init__(self, answers: Answers, places: Sequence[Placement]) -> None:
        self.packages = [*answers.packages]
        self._answers = answers
        self._fitting: dict[tuple[str, str], list[MappingSpec]] = {}
        self._on_board = {
            name: part for part, names in on_boards([p.refdes for p in places], places).items() for name in names
        }
        self._known: dict[tuple[str, str, str], str] = {}
        taken = {entry.component.casefold() for entry in answers.packages}
        unsaid = Counter(_kind(p) for p in places if p.refdes and not self._is_left_out(p) and self._said(p) is None)
        for (package, value, component), _ in unsaid.most_common():
            name = component_name(*(("", component) if component else (package, value)), taken)
            self._known[package, value, component] = name
            if not component:
                self.packages.append(MappingSpec(package=package, value=value, component=name))

    def component(self, place: Placement) -> str:
        """Return the component of a place; "" for one that is not inspected."""
        return "" if self._is_left_out(place) else self._said(place) or self._known[_kind(place)]

    def _said(self, place: Placement) -> str | None:
        # Large boards have thousands of parts, and hundreds of entries: these are compared once for each kind.
        kind, name = (place.package, place.value), self._on_board.get(place.refdes, place.refdes)
        if kind not in self._fitting:
            self._fitting[kind] = [one for one in self._answers.packages if one.fits(*kind, one.refdes or "")]
        return next((one.component for one in self._fitting[kind] if one.fits(*kind, name)), None)

    def _is_left_out(self, place: Placement) -> bool:
        names = {place.refdes, self._on_board.get(place.refdes, place.refdes)}
        is_said = any(fits(word, name) for word in self._answers.not_inspected for name in names)
        return is_said or any(
            mark_of(one) is not None or is_no_part(one) for one in (replace(place, refdes=name) for name in names)
        )


def _kind(place: Placement) -> tuple[str, str, str]:
    return place.package, "" if place.component else place.value, place.component


def text_of(parts: Sequence[BoardPart], said: str) -> str:
    """Return `parts.csv`; the remark in it says `said`."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(COLUMNS)
    for part in parts:
        numbers = (f"{round(value, 6) + 0.0:.10g}" for value in (part.x_mm, part.y_mm, part.angle_deg))  # no -0
        writer.writerow([part.refdes, *numbers, str(part.side), part.component])
    return f"# {' '.join(said.split())}\n{written.getvalue()}"


def changes(before: Sequence[BoardPart], after: Sequence[BoardPart]) -> list[str]:
    """Return in sentences which parts came, went, moved, or are other components than before."""
    old, new = _by_name(before), _by_name(after)
    same = [(old[key], new[key]) for key in old if key in new]
    found = {
        "came": [_told(part) for key, part in new.items() if key not in old],
        "went": [part.refdes for key, part in old.items() if key not in new],
        "moved": [f"{b.refdes} ({_place(a)} to {_place(b)})" for a, b in same if _is_moved(a, b)],
        "other component": [
            f"{b.refdes} ({a.component or 'none'} to {b.component or 'none'})"
            for a, b in same
            if a.component != b.component
        ],
    }
    return [f"{what} ({len(names)}): {list_few(names, _MOST_TOLD)}" for what, names in found.items() if names]


def _by_name(parts: Sequence[BoardPart]) -> Mapping[tuple[str, int], BoardPart]:
    """Return parts by name; on a panel a name may stand once for each board."""
    found: dict[tuple[str, int], BoardPart] = {}
    counts: dict[str, int] = {}
    for part in parts:
        counts[part.refdes] = number = counts.get(part.refdes, 0) + 1
        found[part.refdes, number] = part
    return found


def _told(part: BoardPart) -> str:
    return f"{part.refdes} ({part.component})" if part.component else part.refdes


def _place(part: BoardPart) -> str:
    return f"{part.x_mm:.3f} {part.y_mm:.3f} mm, {part.angle_deg:g} degrees, {part.side}"


def _is_moved(before: BoardPart, after: BoardPart) -> bool:
    turned = abs((after.angle_deg - before.angle_deg + 180) % 360 - 180)
    apart = max(abs(after.x_mm - before.x_mm), abs(after.y_mm - before.y_mm))
    return apart > _MOVED_MM or turned > _MOVED_MM or before.side is not after.side
