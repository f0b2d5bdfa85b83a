"""What a bill of materials (BOM) says of parts, and placements joined with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from coe.bring.parts.placement_file import FittedQuestion, Placement, expect_answered
from coe.errors import list_few
from coe.placement.panel_split import on_boards

_MOST_TOLD = 3


@dataclass(frozen=True, slots=True)
class BomPart:
    """What a BOM says of a part; `line` is its line in the file.

    `whole` is the word, as R1/R2, that is the name instead if a placement file has it.
    """

    value: str
    package: str
    is_fitted: bool
    line: int
    whole: str = ""


_UNLISTED = BomPart("", "", is_fitted=True, line=0)


class Bom(dict[str, BomPart]):
    """What a BOM says, by reference designator; `notes` are sentences on how it was read, as on hidden rows.

    `read_as` says for a person which column is what. `asked` are parts of which it leaves open whether they are fitted.
    `passed` are lines that name no part by their look, with the parts that they name if a placement file has all of
    these.
    """

    notes: tuple[str, ...] = ()
    read_as: str = ""
    passed: Mapping[str, Mapping[str, BomPart]] = {}
    asked: Mapping[str, FittedQuestion] = {}


@dataclass(frozen=True, slots=True)
class BomJoin:
    """Placements with the values and packages of a BOM, and what a person should know of the two files.

    `not_fitted` are parts that the BOM leaves out: they are not among the placements. `only_placed` and `only_listed`
    stand in one of the two files alone; those that are only placed stay.
    """

    placements: tuple[Placement, ...]
    not_fitted: tuple[str, ...]
    only_placed: tuple[str, ...]
    only_listed: tuple[str, ...]
    notes: tuple[str, ...] = ()


def join(
    placements: Sequence[Placement],
    bom: Mapping[str, BomPart],
    *,
    said: Collection[str] = (),
    not_placed: Collection[str] = (),
) -> BomJoin:
    """Return placements with the BOM's words where the placement file has none, without what is not fitted.

    A part of a BOM is that of each board of a panel whose parts are named as Board_0-R1.

    The placement file has `said` which parts are fitted, and leaves out what is `not_placed`. Raises ConfigError for
    parts of which the BOM leaves that open, and the placement file, too.
    """
    read = bom if isinstance(bom, Bom) else Bom(bom)
    placed = {place.refdes for place in placements if place.refdes}
    known = {*placed, *not_placed}
    of_board = on_boards(sorted(known - read.keys()), placements)
    named = known | of_board.keys()
    listed, notes = _listed(read, named)
    names = {refdes: part.whole if part.whole in named else refdes for refdes, part in listed.items()}
    places = {refdes: _places_of(name, known, of_board) for refdes, name in names.items()}
    parts = {place: part for refdes, part in listed.items() for place in places[refdes]}
    asked = {place: fault for refdes, fault in read.asked.items() for place in places[refdes]}
    expect_answered(fault for place, fault in asked.items() if place in placed and place not in said)
    against = [place for place in not_placed if place in parts and parts[place].is_fitted and place not in asked]
    if against:
        notes = (*notes, f"{list_few(against)}: listed as fitted, but left out of the placement file: not inspected")
    with_parts = [(place, parts.get(place.refdes, _UNLISTED)) for place in placements]
    return BomJoin(
        tuple(
            replace(place, value=place.value or part.value, package=place.package or part.package)
            for place, part in with_parts
            if part.is_fitted
        ),
        tuple(place.refdes for place, part in with_parts if not part.is_fitted),
        tuple(place.refdes for place, part in with_parts if place.refdes and part is _UNLISTED),
        tuple(refdes for refdes, part in parts.items() if refdes not in known and part.is_fitted),
        notes,
    )


def _listed(bom: Bom, named: Set[str]) -> tuple[dict[str, BomPart], tuple[str, ...]]:
    """Return what a BOM says, with the lines passed over all parts of which are `named` and in no other, and notes."""
    counted = {at: parts for at, parts in bom.passed.items() if parts and parts.keys() <= named - bom.keys()}
    listed = {**bom, **{refdes: part for parts in counted.values() for refdes, part in parts.items()}}
    left = [at for at in bom.passed if at not in counted]
    told = f"passed over, as they name no part: {list_few(left, _MOST_TOLD, '; ')}"
    return listed, (told, *bom.notes) if left else bom.notes


def _places_of(name: str, known: Collection[str], of_board: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names that a part of a BOM has on the boards of a panel; its own if none, or if it is `known`, too."""
    return [*of_board.get(name, ()), *([name] if name in known or name not in of_board else [])]
