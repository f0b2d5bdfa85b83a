"""The units of a board in messages of IPC-CFX: those of a panel, each with its number, serial and status, or the board.

Numbers count from 1 in the order of the board recipe. A unit with a bad mark is `Skip` in every message: nobody looked
at it, so no word of a person on other parts makes it good.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from coe.core import Verdict
from coe.errors import ConfigError
from coe.placement import Layout
from coe.serve.board_units import BoardUnit, layout_of, unit_of, units_of
from coe.serve.bridge.sinks import EventEnvelope
from coe.serve.enums import CallReason
from coe.serve.recipe_content import RecipeContent

COMPLETED, DEPARTED = "CFX.Production.WorkCompleted", "CFX.Production.UnitsDeparted"
Body = Mapping[str, Any]


def position(unit: BoardUnit, status: str) -> dict[str, Any]:
    """Return a unit as a `UnitPosition`."""
    return {
        "UnitIdentifier": unit.serial,
        "PositionNumber": unit.number,
        "PositionName": unit.name or None,
        "X": unit.at[0],
        "Y": unit.at[1],
        "Z": None,
        "Rotation": unit.at[2],
        "FlipX": False,
        "FlipY": False,
        "Status": "Skip" if unit.is_skipped else status,
    }


class CfxBoard:
    """A board as messages see it: its units, and which call is of which unit."""

    def __init__(self, envelope: EventEnvelope) -> None:
        self._envelope, self._body = envelope, envelope.event.body

    @cached_property
    def layout(self) -> Layout | None:
        """The layout of the recipe; None if it cuts no whole boards."""
        recipe = self._envelope.recipe
        return layout_of(recipe.content if recipe else None)

    @cached_property
    def units(self) -> tuple[BoardUnit, ...]:
        """The units, in the order of their numbers."""
        board = self._envelope.board
        skipped = [call["refdes"] for call in self._body.get("calls", ()) if call["reason"] == CallReason.SKIPPED]
        components = board.components if board else None
        return units_of(self.layout, board.request if board else {}, self._identifier, skipped, components)

    @property
    def is_panel(self) -> bool:
        """Whether it has units with names."""
        return bool(self.units[0].name)

    @property
    def _identifier(self) -> str:
        """The serial; a board without a serial goes by the feeder's key."""
        return str(self._body["serial"] or self._body["key"])

    @property
    def identity(self) -> dict[str, Any]:
        """The identifiers of all of it."""
        return {"PrimaryIdentifier": self._body["panel"] or self._identifier, "HermesIdentifier": None}

    @property
    def is_in_doubt(self) -> bool:
        """Whether all of it is in doubt, whatever its calls say."""
        body = self._body
        verdict = body.get("verdict", Verdict.OK)
        return bool(self._envelope.board and self._envelope.board.reason) or (
            verdict != Verdict.OK and not body.get("calls", ())
        )

    def unit_of(self, call: Body) -> BoardUnit | None:
        """Return the unit of a call; None for a call of a panel that names none of its units."""
        return unit_of(self.units, str(call["refdes"]))

    def refdes_of(self, call: Body) -> str:
        """Return the reference designator of a call on its unit."""
        return str(call["refdes"]).partition("/")[2] or str(call["refdes"]) if self.is_panel else str(call["refdes"])

    def positions(self, *, is_aborted: bool = False) -> dict[str, Any]:
        """Return all units with the status that the body gives them."""
        failed = {self.unit_of(call) for call in self._body.get("calls", ())}
        all_fail = is_aborted or self.is_in_doubt or None in failed
        units = [position(unit, "Fail" if all_fail or unit in failed else "Pass") for unit in self.units]
        return {"UnitCount": len(units), "Units": units}


def arrived(envelope: EventEnvelope) -> dict[str, Any]:
    """Return the body of `UnitsArrived`."""
    board = CfxBoard(envelope)
    return {**board.identity, **board.positions(), "Lane": None}


def departed(envelope: EventEnvelope, *, is_aborted: bool = False) -> dict[str, Any]:
    """Return the body of `UnitsDeparted`: the station has done with the board."""
    board = CfxBoard(envelope)
    return {**board.identity, **board.positions(is_aborted=is_aborted), "Lane": None}


def started(transaction: str, envelope: EventEnvelope) -> dict[str, Any]:
    """Return the body of `WorkStarted`."""
    body, board = envelope.event.body, CfxBoard(envelope)
    return {
        **board.identity,
        "TransactionID": transaction,
        "Lane": None,
        **board.positions(),
        **recipe_of(envelope, "RecipeName", "Revision"),
        "RelevantSurface": surface(body["side"]),
        "WorkOrderIdentifier": {"WorkOrderId": body["work_order"], "Batch": None} if body["work_order"] else None,
    }


def completed(transaction: str, envelope: EventEnvelope, *, is_aborted: bool = False) -> dict[str, Any]:
    """Return the body of `WorkCompleted`: of a board that was decided, or taken back after its inspection had begun."""
    board = CfxBoard(envelope)
    return {
        "TransactionID": transaction,
        "Result": "Aborted" if is_aborted else "Completed",
        **board.identity,
        **board.positions(is_aborted=is_aborted),
        "PerformanceImpacts": [],
    }


def recipe_of(envelope: EventEnvelope, name: str, revision: str) -> dict[str, Any]:
    """Return name and version of the recipe under the names of a message."""
    recipe = envelope.recipe
    return {name: recipe and recipe.name, revision: recipe and str(recipe.version)}


def surface(side: str) -> str:
    """Return a side of a board as a `Surface`."""
    return {"top": "PrimarySurface", "bottom": "SecondarySurface"}.get(side, "Unspecified")


def activated(envelope: EventEnvelope) -> dict[str, Any]:
    """Return the body of `RecipeActivated`. Its times are numbers, which nobody knows here: 0 stands for unknown."""
    body, recipe = envelope.event.body, envelope.recipe
    content = RecipeContent.model_validate(recipe.content) if recipe else None
    parts, units, side = 0, 1, ""
    with suppress(ConfigError):
        if content is not None:
            layout = layout_of(recipe.content if recipe else None)
            units, side = (len(layout.units), layout.recipe.side) if layout else (1, "")
            of_types = content.board(body["name"]).components.values()
            parts = len(content.components) or round(sum(one.count for one in of_types))
    return {
        "RecipeName": body["name"],
        "Revision": str(body["version"]),
        "Lane": None,
        "Stage": None,
        "ExpectedCycleTime": 0.0,
        "ExpectedWorkTime": None,
        "ExpectedUnitsPerWorkTransaction": float(units),
        "NumberOfComponentsPerUnit": parts / units,
        "WorkOrderIdentifier": None,
        "TargetQuantity": None,
        "RelevantSurface": surface(side),
        "RecipeStagesInformation": [],
    }
