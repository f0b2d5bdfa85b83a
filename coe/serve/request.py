"""What a feeder says when it hands a board in. What the service cannot use is refused, never ignored."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from coe.board.parts_list import Side
from coe.board.rules import Rules
from coe.core import Verdict, worst
from coe.errors import ConfigError, did_you_mean
from coe.helpers.strict_model import StrictModel
from coe.placement import Layout
from coe.placement.board_pictures import serial_of
from coe.serve.database.tables import Board, Call, Recipe
from coe.serve.enums import CallReason
from coe.serve.recipe_content import RecipeContent
from coe.serve.text_checks import Spelt, SpeltText, Word


class ViewRequest(StrictModel):
    """What a view shows: one component."""

    refdes: Spelt
    component: Spelt


class BoardRequest(StrictModel):
    """The body of `POST /api/v1/boards/{key}`; `views` are by the names under which they were handed in.

    Without `version` the active version of the recipe counts; `within_s` counts from the acceptance. Either `views` are
    pictures of components, or `whole` is the name of the view that shows the whole board, or the whole panel. Then
    `serials` may give units of the panel their serials, and `bad_marks` are units that are known to be bad.
    """

    recipe: Word
    version: Annotated[int, Field(ge=1)] | None = None
    serial: SpeltText = ""
    panel: SpeltText = ""
    side: Side = Side.TOP
    work_order: SpeltText = ""
    within_s: Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)] | None = None
    views: dict[Word, ViewRequest] = Field(default_factory=dict)
    whole: Word | None = None
    serials: dict[Word, SpeltText] = Field(default_factory=dict)
    bad_marks: tuple[Word, ...] = ()

    def check(self, content: RecipeContent, rules: Rules, handed_in: Mapping[str, str]) -> None:
        """Raise ConfigError unless the views fit each other, the recipe, and those `handed_in` (SHA-256 by name)."""
        if bool(self.views) == (self.whole is not None):
            raise ConfigError(
                "views: say either what each view shows, or with `whole` which view shows the whole board"
            )
        shown = [*self.views] if self.whole is None else [self.whole]
        for name in shown:
            if name not in handed_in:
                raise ConfigError(f"view '{name}' was not submitted; PUT it first, then the board")
        if self.whole is None:
            self._check_views(content, rules)
            self._check_pictures(handed_in)
        else:
            self._check_side(content)
        self._check_units(content)
        for name in handed_in:
            if name not in shown:
                raise ConfigError(f"view '{name}' was submitted, but the board does not name it; state what it shows")

    def _check_views(self, content: RecipeContent, rules: Rules) -> None:
        components = content.components
        for name, view in self.views.items():
            if view.component not in rules.components:
                hint = did_you_mean(view.component, rules.components)
                raise ConfigError(f"view '{name}': recipe '{self.recipe}' has no component '{view.component}'{hint}")
            if components and components.get(view.refdes) != view.component:
                stated = components.get(view.refdes)
                says = f"'{view.refdes}' is a '{stated}'" if stated else f"there is no '{view.refdes}'"
                raise ConfigError(
                    f"view '{name}' shows '{view.component}' at '{view.refdes}', and by the recipe {says}"
                )
        twice = [
            refdes for refdes, number in Counter(view.refdes for view in self.views.values()).items() if number > 1
        ]
        if twice:
            raise ConfigError(f"two views show '{twice[0]}'; a component has one view")

    def _check_pictures(self, handed_in: Mapping[str, str]) -> None:
        """Raise ConfigError if one picture stands for two components: sensors have noise, so bytes differ."""
        by_sha256: dict[str, str] = {}
        for name in self.views:
            before = by_sha256.setdefault(handed_in[name], name)
            if before != name:
                both = [f"'{view}' ('{self.views[view].refdes}')" for view in (before, name)]
                raise ConfigError(
                    f"views {both[0]} and {both[1]} are the same picture, byte for byte; submit a picture of each "
                    "component that was taken for it"
                )

    def _check_side(self, content: RecipeContent) -> None:
        if content.whole is None:
            raise ConfigError(
                f"whole: recipe '{self.recipe}' does not say how whole boards are cut; give it parts.csv and a "
                "board recipe, or submit a view of each component"
            )
        seen = content.whole.layout.recipe.side
        if seen.value != self.side.value:
            raise ConfigError(
                f"side: the board's view is of the {self.side} side, and recipe '{self.recipe}' of the {seen} side"
            )

    def _check_units(self, content: RecipeContent) -> None:
        layout = content.whole.layout if content.whole is not None and self.whole is not None else None
        units = [unit for unit in layout.units if unit] if layout is not None else []
        for key, named in (("serials", self.serials), ("bad_marks", self.bad_marks)):
            for unit in named:
                if unit not in units:
                    is_panel = "there is" if units else "the picture shows no panel, so there is"
                    raise ConfigError(f"{key}: {is_panel} no unit '{unit}'{did_you_mean(unit, units)}")


def digest_of(body: Any) -> str:
    """Return a digest of a JSON body; the order of keys does not count."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# The units of a board: those of a panel, each with its number, serial and bad mark, or the board itself.


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
    """Return the units of a board by number; `skipped` names those that the line found marked."""
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
