"""The units of a board in messages of IPC-CFX: those of a panel, each with its number, serial and status, or the board.

Numbers count from 1 in the order of the board recipe. A unit with a bad mark is `Skip` in every message: nobody looked
at it, so no word of a person on other parts makes it good.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coe.core import Verdict
from coe.errors import ConfigError
from coe.placement import Layout
from coe.serve.board_units import BoardUnit, layout_of, unit_of, units_of
from coe.serve.bridge.sinks import EventEnvelope
from coe.serve.enums import CallReason, EventKind
from coe.serve.recipe_content import RecipeContent

Body = Mapping[str, Any]
_NAMESPACE = uuid.UUID("5b3d5a0c-1c0e-4f57-9a53-6f2f7c1f5f0e")
"""Our namespace: ids of transactions and faults are made from it, so that they are the same after a crash."""


def id_of(handle: str, *words: object) -> str:
    """Return an identifier that is the same each time for something of an endpoint."""
    return str(uuid.uuid5(_NAMESPACE, "/".join(map(str, (handle, *words)))))


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


@dataclass(frozen=True)
class CfxEvent:
    """An event as messages of the endpoint `handle` see it; of a board, its units, and which call is of which unit."""

    envelope: EventEnvelope
    handle: str

    @property
    def body(self) -> Body:
        """What the event says."""
        return self.envelope.event.body

    @property
    def is_aborted(self) -> bool:
        """Whether the board was taken back."""
        return self.envelope.event.kind is EventKind.BOARD_ABORTED

    @cached_property
    def transaction(self) -> str:
        """The identifier of all that is done with the board."""
        # The number alone would come again with a new database; the feeder's key never does.
        return id_of(self.handle, "board", self.body["board"], self.body["key"])

    @cached_property
    def layout(self) -> Layout | None:
        """The layout of the recipe; None if it cuts no whole boards."""
        recipe = self.envelope.recipe
        return layout_of(recipe.content if recipe else None)

    @cached_property
    def units(self) -> tuple[BoardUnit, ...]:
        """The units, in the order of their numbers."""
        board = self.envelope.board
        skipped = [call["refdes"] for call in self.body.get("calls", ()) if call["reason"] == CallReason.SKIPPED]
        components = board.components if board else None
        return units_of(self.layout, board.request if board else {}, self._identifier, skipped, components)

    @property
    def is_panel(self) -> bool:
        """Whether it has units with names."""
        return bool(self.units[0].name)

    @property
    def _identifier(self) -> str:
        """The serial; a board without a serial goes by the feeder's key."""
        return str(self.body["serial"] or self.body["key"])

    @property
    def identity(self) -> dict[str, Any]:
        """The identifiers of all of it."""
        return {"PrimaryIdentifier": self.body["panel"] or self._identifier, "HermesIdentifier": None}

    @property
    def is_in_doubt(self) -> bool:
        """Whether all of it is in doubt, whatever its calls say."""
        is_without_call = self.body.get("verdict", Verdict.OK) != Verdict.OK and not self.body.get("calls", ())
        return is_without_call or bool(self.envelope.board and self.envelope.board.reason)

    def unit_of(self, call: Body) -> BoardUnit | None:
        """Return the unit of a call; None for a call of a panel that names none of its units."""
        return unit_of(self.units, str(call["refdes"]))

    def refdes_of(self, call: Body) -> str:
        """Return the reference designator of a call on its unit."""
        return str(call["refdes"]).partition("/")[2] or str(call["refdes"]) if self.is_panel else str(call["refdes"])

    @property
    def positions(self) -> dict[str, Any]:
        """All units with the status that the body gives them."""
        failed = {self.unit_of(call) for call in self.body.get("calls", ())}
        all_fail = self.is_aborted or self.is_in_doubt or None in failed
        units = [position(unit, "Fail" if all_fail or unit in failed else "Pass") for unit in self.units]
        return {"UnitCount": len(units), "Units": units}


def present(event: CfxEvent) -> dict[str, Any]:
    """Return the body of `UnitsArrived`, and of `UnitsDeparted`: the station has done with the board."""
    return {**event.identity, **event.positions, "Lane": None}


def started(event: CfxEvent) -> dict[str, Any]:
    """Return the body of `WorkStarted`."""
    body = event.body
    return {
        **event.identity,
        "TransactionID": event.transaction,
        "Lane": None,
        **event.positions,
        **recipe_of(event, "RecipeName", "Revision"),
        "RelevantSurface": surface(body["side"]),
        "WorkOrderIdentifier": {"WorkOrderId": body["work_order"], "Batch": None} if body["work_order"] else None,
    }


def completed(event: CfxEvent) -> dict[str, Any]:
    """Return the body of `WorkCompleted`: of a board that was decided, or taken back after its inspection had begun."""
    return {
        "TransactionID": event.transaction,
        "Result": "Aborted" if event.is_aborted else "Completed",
        **event.identity,
        **event.positions,
        "PerformanceImpacts": [],
    }


def recipe_of(event: CfxEvent, name: str, revision: str) -> dict[str, Any]:
    """Return name and version of the recipe under the names of a message."""
    recipe = event.envelope.recipe
    return {name: recipe and recipe.name, revision: recipe and str(recipe.version)}


def surface(side: str) -> str:
    """Return a side of a board as a `Surface`."""
    return {"top": "PrimarySurface", "bottom": "SecondarySurface"}.get(side, "Unspecified")


def activated(event: CfxEvent) -> dict[str, Any]:
    """Return the body of `RecipeActivated`. Its times are numbers, which nobody knows here: 0 stands for unknown."""
    body, recipe, layout = event.body, event.envelope.recipe, event.layout
    units, side = (len(layout.units), layout.recipe.side) if layout else (1, "")
    parts = 0
    with suppress(ConfigError):
        if recipe is not None:
            content = RecipeContent.model_validate(recipe.content)
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
