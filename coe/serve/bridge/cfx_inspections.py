"""The bodies of IPC-CFX messages about what was found. REVIEW is sent as Failed; only a person's word makes it Passed.

An inspection is listed for each component that is not OK; `TotalInspectionCount` says how many there were. The standard
verifies defects: a unit without one has nothing to verify, and stays `NotVerifiedYet`; its `OverallResult` counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coe.core import Verdict
from coe.errors import ConfigError
from coe.placement import Layout
from coe.serve.bridge.sinks import EventEnvelope
from coe.serve.clock import iso
from coe.serve.enums import CallReason, EventKind, Outcome, RepairOutcome
from coe.serve.recipe_content import RecipeContent
from coe.serve.request import BoardUnit, layout_of, unit_of, units_of

Body = Mapping[str, Any]
_NAMESPACE = uuid.UUID("5b3d5a0c-1c0e-4f57-9a53-6f2f7c1f5f0e")
"""Our namespace: ids of transactions and faults are made from it, so that they are the same after a crash."""


def id_of(handle: str, *words: object) -> str:
    """Return an identifier that is the same each time for something of an endpoint."""
    return str(uuid.uuid5(_NAMESPACE, "/".join(map(str, (handle, *words)))))


def unsaid(names: str) -> dict[str, None]:
    """Return fields of a message of which the station has nothing to say; `names` as in `namedtuple`."""
    return dict.fromkeys(names.split())


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
        **_recipe_of(event, "Revision"),
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


def _recipe_of(event: CfxEvent, revision: str) -> dict[str, Any]:
    """Return name and version of the recipe; messages call the version differently."""
    recipe = event.envelope.recipe
    return {"RecipeName": recipe and recipe.name, revision: recipe and str(recipe.version)}


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
        "ExpectedCycleTime": 0.0,
        "ExpectedUnitsPerWorkTransaction": float(units),
        "NumberOfComponentsPerUnit": parts / units,
        **unsaid("Lane Stage ExpectedWorkTime WorkOrderIdentifier TargetQuantity"),
        "RelevantSurface": surface(side),
        "RecipeStagesInformation": [],
    }


_PASSED, _FAILED, _SKIPPED = "Passed", "Failed", "Skipped"
_NOT_YET = "NotVerifiedYet"
_VERIFIED = {
    Outcome.CONFIRMED: "DefectConfirmed",
    Outcome.FALSE_CALL: "DefectRejected",
    Outcome.ACCEPTED: "DefectAccepted",
}
_WORST = (_VERIFIED[Outcome.CONFIRMED], _NOT_YET, _VERIFIED[Outcome.ACCEPTED], _VERIFIED[Outcome.FALSE_CALL])
"""What stands for a unit with several defects: the first of these that one of them has."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A call with its result and its verification."""

    call: Body
    result: str
    verification: str


def inspected(event: CfxEvent) -> dict[str, Any]:
    """Return the body of `UnitsInspected` for what the line decided, which nobody has verified yet."""
    return _units_inspected(event, "AOI", None, [Judged(call, _FAILED, _NOT_YET) for call in event.body["calls"]])


def amended(event: CfxEvent) -> dict[str, Any]:
    """Return the body of `UnitsInspected` for what became worse; of a panel, the units alone of which that is."""
    body = inspected(event)
    worse = {unit.number for call in event.body["calls"] if (unit := event.unit_of(call)) is not None}
    units = [unit for unit in body["InspectedUnits"] if unit["UnitPositionNumber"] in worse]
    return {**body, "InspectedUnits": units, "InspectedPanel": None}


def verified(event: CfxEvent) -> dict[str, Any]:
    """Return the body of `UnitsInspected` for a person's words on all calls of a board."""
    judged = []
    for call in event.body["calls"]:
        outcome = Outcome(call["outcome"])
        judged.append(Judged(call, _FAILED if outcome is Outcome.CONFIRMED else _PASSED, _VERIFIED[outcome]))
    return _units_inspected(event, "Human", operator(event.body["by"]), judged)


def operator(name: str) -> dict[str, Any]:
    """Return a person, who is known here by the name of a key."""
    return {"OperatorIdentifier": name, "ActorType": "Human", "LastName": None, "FirstName": None, "LoginName": None}


def defect_id(event: CfxEvent, refdes: str) -> str:
    """Return the identifier of the defect of a component of a board."""
    return str(uuid.uuid5(uuid.uuid5(uuid.UUID(event.transaction), refdes), "defect"))


def component(event: CfxEvent, call: Body) -> dict[str, Any]:
    """Return the component of a call as a `ComponentDesignator`, without its unit, in which it stands."""
    return {"ReferenceDesignator": event.refdes_of(call), "UnitPosition": None, "PartNumber": call["component"]}


def region(event: CfxEvent, refdes: str) -> dict[str, Any] | None:
    """Return the outline of a component's crop, closed, in mm as the camera sees the board; None if unknown.

    The standard gives the coordinates of a region no unit; all its other lengths are mm.
    """
    sites = event.layout.sites if event.layout else ()
    if (site := next((site for site in sites if site.name == refdes), None)) is None:
        return None
    points = [{"X": round(at.x_mm, 4), "Y": round(at.y_mm, 4)} for at in site.corners]
    start = points[0]
    return {"StartPointX": start["X"], "StartPointY": start["Y"], "RegionSegments": [*points[1:], start]}


def _units_inspected(event: CfxEvent, method: str, inspector: Body | None, judged: Sequence[Judged]) -> dict[str, Any]:
    by_unit: dict[BoardUnit | None, list[Judged]] = {}
    for one in judged:
        by_unit.setdefault(event.unit_of(one.call), []).append(one)
    of_panel = by_unit.get(None, [])
    units = [
        {
            "UnitIdentifier": unit.serial,
            "UnitPositionNumber": unit.number,
            "OverallResult": _SKIPPED if unit.is_skipped else _result(event, by_unit.get(unit, []), of_panel),
            "Inspections": [_inspection(event, one) for one in by_unit.get(unit, [])],
            "Verification": _worst(by_unit.get(unit, [])),
            "TotalInspectionCount": 0 if unit.is_skipped else unit.components,
        }
        for unit in event.units
    ]
    return {
        # The standard writes this name with a small d, unlike that of the other messages.
        "TransactionId": event.transaction,
        "InspectionMethod": method,
        "SamplingInformation": {"SamplingMethod": "NoSampling", "LotSize": None, "SampleSize": None},
        "Inspector": inspector,
        **_recipe_of(event, "RecipeRevision"),
        "InspectedUnits": units,
        "InspectedPanel": _panel(event, of_panel, units) if event.is_panel else None,
    }


def _result(event: CfxEvent, own: Sequence[Judged], of_panel: Sequence[Judged]) -> str:
    is_failed = any(one.result == _FAILED for one in (*own, *of_panel)) or (event.is_in_doubt and not own)
    return _FAILED if is_failed else _PASSED


def _worst(judged: Sequence[Judged]) -> str:
    found = {one.verification for one in judged}
    return next((word for word in _WORST if word in found), _NOT_YET)


def _panel(event: CfxEvent, own: Sequence[Judged], units: Sequence[Body]) -> dict[str, Any]:
    """Return what is said of a panel as a whole: it fails with any of its units."""
    is_failed = any(unit["OverallResult"] == _FAILED for unit in units)
    return {
        "UnitIdentifier": event.identity["PrimaryIdentifier"],
        "OverallResult": _FAILED if is_failed else _PASSED,
        "Inspections": [_inspection(event, one) for one in own],
        "Verification": _worst(own),
        "TotalInspectionCount": sum(unit["TotalInspectionCount"] or 0 for unit in units),
        "Fiducials": [],
        **unsaid("Stretch RecognizedStrokeDirection PCBVariant"),
    }


def _inspection(event: CfxEvent, judged: Judged) -> dict[str, Any]:
    """Return the inspection of a component that was called; a component that nobody could see has an error too."""
    call = judged.call
    is_skipped = call["reason"] == CallReason.SKIPPED
    return {
        "UniqueIdentifier": str(uuid.uuid5(uuid.UUID(event.transaction), call["refdes"])),
        "InspectionName": call["refdes"],
        "Result": _SKIPPED if is_skipped else judged.result,
        "Verification": judged.verification,
        "Error": None if call["reason"] == CallReason.EXPERT else call["reason"],
        "DefectsFound": [] if is_skipped else [defect(event, judged)],
        "Symptoms": [],
        "Measurements": [],
        **unsaid("InspectionStartTime InspectionEndTime TestProcedure Comments VerificationDetail RefNo"),
    }


def defect(event: CfxEvent, judged: Judged) -> dict[str, Any]:
    """Return the defect of a call."""
    call, score = judged.call, judged.call["score"]
    return {
        "UniqueIdentifier": defect_id(event, call["refdes"]),
        "DefectCode": call["label"] or call["reason"],
        "DefectCategory": call["verdict"],
        "ComponentOfInterest": component(event, call),
        "RegionOfInterest": region(event, call["refdes"]),
        "DefectImages": [],
        "Priority": 1 if call["verdict"] == Verdict.NG else 2,
        "ConfidenceLevel": None if score is None else round(100.0 * score, 4),
        "RelatedMeasurements": [],
        "RelatedSymptoms": [],
        "Verification": judged.verification,
        **unsaid("Description Comments VerificationDetail"),
    }


_REPAIRED_WELL, _SCRAP = "RepairSuccessful", "Scrap"
_NAMES = {
    RepairOutcome.REPAIRED: "Repaired",
    RepairOutcome.SCRAPPED: "Scrapped",
    RepairOutcome.NO_DEFECT: "No defect found",
}


def repaired(event: CfxEvent) -> dict[str, Any]:
    """Return the body of `UnitsRepaired`: the units of which a defect was confirmed, with what became of each."""
    by_unit: dict[BoardUnit, list[Body]] = {}
    for call in event.body["repairs"]:
        by_unit.setdefault(event.unit_of(call) or event.units[0], []).append(call)
    return {
        "TransactionId": event.transaction,
        "RepairOperator": operator(event.body["by"]),
        "RepairedUnits": [_unit(event, unit, calls) for unit, calls in by_unit.items()],
    }


def _unit(event: CfxEvent, unit: BoardUnit, calls: Sequence[Body]) -> dict[str, Any]:
    is_scrap = any(call["repair"] == RepairOutcome.SCRAPPED for call in calls)
    return {
        "UnitIdentifier": unit.serial,
        "UnitPositionNumber": unit.number,
        "OverallResult": _SCRAP if is_scrap else _REPAIRED_WELL,
        "Repairs": [_repair(event, call) for call in calls],
    }


def _repair(event: CfxEvent, call: Body) -> dict[str, Any]:
    outcome, refdes = RepairOutcome(call["repair"]), call["refdes"]
    is_none = outcome is RepairOutcome.NO_DEFECT
    rejected = Judged(call, "Passed", "DefectRejected")
    return {
        "UniqueIdentifier": str(uuid.uuid5(uuid.UUID(event.transaction), f"{refdes}/repair/{call['repaired_us']}")),
        "RepairName": _NAMES[outcome],
        "RepairEndTime": iso(call["repaired_us"]),
        "Comments": call["note"] or None,
        "ComponentOfInterest": component(event, call),
        "RegionOfInterest": region(event, refdes),
        "RelatedDefectIdentifiers": [defect_id(event, refdes)],
        "ReclassifiedDefects": [defect(event, rejected)] if is_none else [],
        "RelatedSymptomIdentifiers": [],
        "ReclassifiedSymptoms": [],
        "Result": _SCRAP if outcome is RepairOutcome.SCRAPPED else _REPAIRED_WELL,
        **unsaid("RepairStartTime Error"),
    }
