"""What each part of a board is called, and what is no part: a fiducial, a hole, a test point."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coe.bring.parts.answers import Answers, NamedParts
from coe.bring.parts.placements import Placement
from coe.helpers.spelling import fits, look
from coe.placement.panel_split import on_boards
from coe.placement.recipe_spec import Look

_FIDUCIAL = re.compile(r"fid|fd\d|fm\d", re.IGNORECASE)
_HOLE = re.compile(r"(mh|mk|mp|hole|h)\d*", re.IGNORECASE)
_HOLE_PACKAGE = re.compile(r"mounting.?hole|mtg|hole", re.IGNORECASE)
_NO_PART = re.compile(r"tp\d*|ref\*\*|logo.*|g\*+|kibuzzard.*|mark\d*", re.IGNORECASE)
_NO_PART_PACKAGE = re.compile(r"test.?point|logo|symbol|silk|kibuzzard|netti|solderjumper", re.IGNORECASE)
_SCREWS = {"2": 2.2, "2.5": 2.7, "3": 3.2, "4": 4.3}
_FIDUCIAL_MM, _HOLE_MM = 1.0, 3.2
_SPELT = {ord(sign): letter for sign, letter in zip("\u2126\u03a9\u00b5\u03bc", "RRuu", strict=True)}
"""Ohm and micro, as names of components spell them."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A disc that may tell how the board lies: a fiducial or a hole, with its diameter in mm."""

    name: str
    x_mm: float
    y_mm: float
    diameter_mm: float
    look: Look


def mark_of(place: Placement) -> Mark | None:
    """Return the fiducial or the hole that a placement is; None if it is a part."""
    if place.is_fiducial or _FIDUCIAL.match(place.refdes) or "fiducial" in place.package.casefold():
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


_LEFT_OUT = NamedParts.model_construct(component="", refdes="*")


class Names:
    """What parts are called: as a person says, as a column of the file says, or by package and value.

    What a person does not name is not inspected if it is a mark or no part. `packages` are the answers, with an entry
    for each package and value that has none.
    """

    def __init__(self, answers: Answers, places: Sequence[Placement]) -> None:
        self.packages = [*answers.packages]
        self._answers = answers
        self._on_board = {
            name: part for part, names in on_boards([p.refdes for p in places], places).items() for name in names
        }
        self._of_kind: dict[tuple[str, str], list[NamedParts]] = {}
        is_part = {_words(place) for place in places if not self._is_out(place)}
        self._all_out = {_words(place) for place in places if not place.is_fiducial} - is_part
        self._names: dict[tuple[str, str, str], str] = {}
        taken = {entry.component.casefold() for entry in answers.packages}
        unsaid = [place for place in places if place.refdes and self._said(place) is None and not self._is_out(place)]
        firsts = {_kind(place): place for place in reversed(unsaid)}
        for kind, _ in Counter(map(_kind, unsaid)).most_common():
            package, value, component = firsts[kind].package, firsts[kind].value, firsts[kind].component
            name = component_name(*(("", component) if component else (package, value)), taken)
            self._names[kind] = name
            if not component and (package or value):
                self.packages.append(NamedParts(package=package, value=value, component=name))

    def component(self, place: Placement) -> str:
        """Return the component of a place; "" for one that is not inspected."""
        said = self._said(place)
        if said is not None and (not said.component or said.refdes is not None):
            return said.component
        # An entry for packages names marks if it names nothing else: else that of a part would be theirs, too.
        if self._is_out(place) and (said is None or place.is_fiducial or _words(place) not in self._all_out):
            return ""
        return self._names[_kind(place)] if said is None else said.component

    def _said(self, place: Placement) -> NamedParts | None:
        """Return what a person says of the part at a place: without a component, it is left out; None if nothing."""
        name = self._on_board.get(place.refdes, place.refdes)
        if any(fits(word, one) for word in self._answers.not_inspected for one in {place.refdes, name}):
            return _LEFT_OUT
        # Large boards have thousands of parts and hundreds of entries, which are compared once for each kind of part.
        words = place.package, place.value
        if words not in self._of_kind:
            self._of_kind[words] = [one for one in self._answers.packages if one.fits(*words)]
        entries = self._of_kind[words]
        return next((one for one in entries if one.refdes is None or fits(one.refdes, name)), None)

    def _is_out(self, place: Placement) -> bool:
        """Tell whether a place is a mark or no part by its look, under its name on the panel or on its board."""
        own = self._on_board.get(place.refdes, place.refdes)
        both = (place,) if own == place.refdes else (place, replace(place, refdes=own))
        is_none = _NO_PART_PACKAGE.search(place.package) or any(_NO_PART.fullmatch(one.refdes) for one in both)
        return bool(is_none) or any(mark_of(one) is not None for one in both)


def _kind(place: Placement) -> tuple[str, str, str]:
    return ("", "", place.component) if place.component else (*_words(place), "")


def _words(place: Placement) -> tuple[str, str]:
    return look(place.package), look(place.value)
