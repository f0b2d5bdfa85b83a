"""The units of a board: those of a panel, each with its number, serial and bad mark, or the board itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from coe.core import Verdict, worst
from coe.errors import ConfigError
from coe.placement import Layout
from coe.placement.board_pictures import serial_of
from coe.serve.database.tables import Board, Call, Recipe
from coe.serve.enums import CallReason
from coe.serve.recipe_content import RecipeContent


@dataclass(frozen=True, slots=True)
class BoardUnit:
    """A unit; numbers count from 1 in the order of the board recipe, and `name` is empty for a board that is no panel.

    `at` is where the board recipe has it: x and y in mm, and degrees. `components` are how many there are to inspect,
    None if the recipe does not say. A unit that `is_skipped` has a bad mark, or was named as bad: nobody looked at it.
    """

    name: str
    number: int
    serial: str
    is_skipped: bool
    at: tuple[float, float, float]
    components: int | None


def layout_of(content: Mapping[str, Any] | None) -> Layout | None:
    """Return the layout of a recipe's content; None if it cuts no whole boards."""
    whole = RecipeContent.model_validate(content).whole if content else None
    with suppress(ConfigError):  # the recipe was in order when the board was accepted, and an update refuses it
        return whole.layout if whole else None
    return None


def units_of(
    layout: Layout | None, request: Mapping[str, Any], serial: str, skipped: Collection[str], components: int | None
) -> tuple[BoardUnit, ...]:
    """Return the units of a board in the order of their numbers.

    `serial` is that of the board, `skipped` are the names of units that the line found marked.
    """
    serials, bad = request.get("serials", {}), {*skipped, *request.get("bad_marks", ())}
    of_sites = [site.unit for site in layout.sites] if layout else []
    specs = layout.recipe.units if layout else {}
    units = []
    for number, name in enumerate(layout.units if layout else ("",), 1):
        spec = specs.get(name)
        at = (*spec.at, spec.rotation) if spec else (0.0, 0.0, 0.0)
        own = serials.get(name) or serial_of(serial, name)
        units.append(BoardUnit(name, number, own, name in bad, at, of_sites.count(name) if name else components))
    return tuple(units)


def unit_of(units: Sequence[BoardUnit], refdes: str) -> BoardUnit | None:
    """Return the unit of a call's reference designator; None for a call of a panel that names none of its units."""
    if not units[0].name:
        return units[0]
    name = refdes.partition("/")[0]
    return next((unit for unit in units if unit.name == name), None)


def verdict_of(
    unit: BoardUnit,
    units: Sequence[BoardUnit],
    called: Sequence[tuple[str, Verdict]],
    of_board: Verdict | None,
    reason: str,
) -> Verdict | None:
    """Return the verdict of a unit, from the calls of its board as reference designators with verdicts.

    A skipped unit, and one of a board that is not decided, has none. A board with a `reason` of its own not to be OK,
    or without a call although it is not OK, makes each of its units REVIEW at least.
    """
    if unit.is_skipped or of_board is None:
        return None
    own = [verdict for refdes, verdict in called if unit_of(units, refdes) in (unit, None)]
    is_in_doubt = bool(reason) or (of_board is not Verdict.OK and not called)
    return worst([*own, Verdict.REVIEW] if is_in_doubt else own)


@dataclass(frozen=True, slots=True)
class UnitView:
    """A unit of a panel with its verdict; None if it was skipped, or if the board is not decided."""

    unit: BoardUnit
    verdict: Verdict | None


def views_of(board: Board, recipe: Recipe, calls: Sequence[Call]) -> list[UnitView]:
    """Return the units of a panel with their verdicts, from its calls; none of another board."""
    skipped = [call.refdes for call in calls if call.reason is CallReason.SKIPPED]
    units = units_of(layout_of(recipe.content), board.request, board.serial or board.key, skipped, None)
    called = [(call.refdes, call.verdict) for call in calls]
    views = [UnitView(one, verdict_of(one, units, called, board.verdict, board.reason)) for one in units]
    return views if units[0].name else []
