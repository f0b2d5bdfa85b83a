"""What a bill of materials (BOM) says of parts, and placements joined with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from coe.errors import list_few
from coe.placement.panel_split import on_boards
from coe.placement.placement_file import FittedQuestion, Placement, expect_answered

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


class Bom(dict[str, BomPart]):
    """What a BOM says, by reference designator; `notes` are sentences on how it was read, as on hidden rows.

    `asked` are parts of which it leaves open whether they are fitted. `passed` are lines that name no part by their
    look, with the parts that they name if a placement file has all of these.
    """

    notes: tuple[str, ...] = ()
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
    placed = {place.refdes for place in placements if place.refdes}
    notes, asked, passed = (bom.notes, bom.asked, bom.passed) if isinstance(bom, Bom) else ((), {}, {})
    known = {*placed, *not_placed}
    of_board = on_boards(sorted(known - bom.keys()), placements)
    named = known | of_board.keys()
    counted = [line for line, parts in passed.items() if parts and parts.keys() <= named - bom.keys()]
    bom = {**bom, **{refdes: part for line in counted for refdes, part in passed[line].items()}}
    if left := passed.keys() - {*counted}:
        few = list_few((line for line in passed if line in left), _MOST_TOLD, "; ")
        notes = (f"passed over, as they name no part: {few}", *notes)
    names = {refdes: part.whole if part.whole in named else refdes for refdes, part in bom.items()}
    places = {
        one: [*of_board.get(name, ()), *({name} & known or {name} - of_board.keys())] for one, name in names.items()
    }
    asked = {place: asked[refdes] for refdes in asked for place in places[refdes]}
    expect_answered(row for refdes, row in asked.items() if refdes in placed and refdes not in said)
    bom = {place: part for refdes, part in bom.items() for place in places[refdes]}
    against = [refdes for refdes in not_placed if refdes in bom and bom[refdes].is_fitted and refdes not in asked]
    if against:
        notes = (*notes, f"{list_few(against)}: listed as fitted, but left out of the placement file: not inspected")
    kept: list[Placement] = []
    not_fitted: list[str] = []
    for place in placements:
        part = bom.get(place.refdes)
        if part is not None and not part.is_fitted:
            not_fitted.append(place.refdes)
        elif part is None:
            kept.append(place)
        else:
            kept.append(replace(place, value=place.value or part.value, package=place.package or part.package))
    return BomJoin(
        tuple(kept),
        tuple(not_fitted),
        tuple(place.refdes for place in placements if place.refdes and place.refdes not in bom),
        tuple(refdes for refdes, part in bom.items() if refdes not in known and part.is_fitted),
        notes,
    )
