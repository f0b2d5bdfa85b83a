"""The bodies of IPC-CFX messages about boards. REVIEW is sent as Failed; only a person's word makes it Passed.

An inspection is listed for each component that is not OK; `TotalInspectionCount` says how many there were.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from coe.core import Verdict
from coe.errors import ConfigError
from coe.placement import Site
from coe.placement.dialects import Side
from coe.serve.bridge.sinks import EventEnvelope
from coe.serve.enums import CallReason, Outcome
from coe.serve.recipe_content import RecipeContent

INSPECTED = "CFX.Production.TestAndInspection.UnitsInspected"
COMPLETED = "CFX.Production.WorkCompleted"
_PASSED, _FAILED = "Passed", "Failed"
_NOT_YET = "NotVerifiedYet"
_VERIFIED = {
    Outcome.CONFIRMED: "DefectConfirmed",
    Outcome.FALSE_CALL: "DefectRejected",
    Outcome.ACCEPTED: "DefectAccepted",
}

Body = Mapping[str, Any]


def arrived(body: Body) -> dict[str, Any]:
    """Return the body of `UnitsArrived`."""
    return {**_identity(body), **_units(body), "Lane": None}


def started(transaction: str, envelope: EventEnvelope) -> dict[str, Any]:
    """Return the body of `WorkStarted`."""
    body = envelope.event.body
    return {
        **_identity(body),
        "TransactionID": transaction,
        "Lane": None,
        **_units(body),
        **_recipe(envelope, "RecipeName", "Revision"),
        "RelevantSurface": "PrimarySurface" if body["side"] == Side.TOP else "SecondarySurface",
        "WorkOrderIdentifier": {"WorkOrderId": body["work_order"], "Batch": None} if body["work_order"] else None,
    }


def completed(transaction: str, body: Body) -> dict[str, Any]:
    """Return the body of `WorkCompleted` of a board that was decided."""
    return _completed(transaction, body, "Completed", is_good=body["verdict"] == Verdict.OK)


def aborted(transaction: str, body: Body) -> dict[str, Any]:
    """Return the body of `WorkCompleted` of a board that was taken back after its inspection had begun."""
    return _completed(transaction, body, "Aborted", is_good=False)


def inspected(transaction: str, envelope: EventEnvelope) -> dict[str, Any]:
    """Return the body of `UnitsInspected` for what the line decided, which nobody has verified yet."""
    body = envelope.event.body
    result = _PASSED if body["verdict"] == Verdict.OK else _FAILED
    regions = _Regions(envelope)
    inspections = [_inspection(transaction, call, regions, _FAILED, _NOT_YET) for call in body["calls"]]
    return _units_inspected(transaction, envelope, "AOI", None, _unit(envelope, result, inspections, _NOT_YET))


def verified(transaction: str, envelope: EventEnvelope) -> dict[str, Any]:
    """Return the body of `UnitsInspected` for a person's words on all calls of a board."""
    body = envelope.event.body
    outcomes, regions = [Outcome(call["outcome"]) for call in body["calls"]], _Regions(envelope)
    results = [_FAILED if outcome is Outcome.CONFIRMED else _PASSED for outcome in outcomes]
    inspections = [
        _inspection(transaction, call, regions, result, _VERIFIED[outcome])
        for call, result, outcome in zip(body["calls"], results, outcomes, strict=True)
    ]
    whole = next(
        (outcome for outcome in (Outcome.CONFIRMED, Outcome.ACCEPTED) if outcome in outcomes), Outcome.FALSE_CALL
    )
    result = _FAILED if whole is Outcome.CONFIRMED else _PASSED
    unit = _unit(envelope, result, inspections, _VERIFIED[whole])
    return _units_inspected(transaction, envelope, "Human", operator(body["by"]), unit)


def operator(name: str) -> dict[str, Any]:
    """Return a person, who is known here by the name of a key."""
    return {
        "OperatorIdentifier": name,
        "ActorType": "Human",
        "LastName": None,
        "FirstName": None,
        "LoginName": None,
    }


def _identity(body: Body) -> dict[str, Any]:
    return {"PrimaryIdentifier": body["panel"] or _unit_id(body), "HermesIdentifier": None}


def _unit_id(body: Body) -> str:
    """Return the serial of a board; a board without a serial goes by the feeder's key."""
    return str(body["serial"] or body["key"])


def _units(body: Body, *, is_good: bool = True) -> dict[str, Any]:
    unit = {
        "UnitIdentifier": _unit_id(body),
        "PositionNumber": 1,
        "PositionName": None,
        "X": 0.0,
        "Y": 0.0,
        "Z": None,
        "Rotation": 0.0,
        "FlipX": False,
        "FlipY": False,
        "Status": "Pass" if is_good else "Fail",
    }
    return {"UnitCount": 1, "Units": [unit]}


def _recipe(envelope: EventEnvelope, name: str, revision: str) -> dict[str, Any]:
    recipe = envelope.recipe
    return {name: recipe and recipe.name, revision: recipe and str(recipe.version)}


def _completed(transaction: str, body: Body, result: str, *, is_good: bool) -> dict[str, Any]:
    return {
        "TransactionID": transaction,
        "Result": result,
        **_identity(body),
        **_units(body, is_good=is_good),
        "PerformanceImpacts": [],
    }


def _units_inspected(
    transaction: str, envelope: EventEnvelope, method: str, inspector: Body | None, unit: Body
) -> dict[str, Any]:
    return {
        # The standard writes this name with a small d, unlike that of the other messages.
        "TransactionId": transaction,
        "InspectionMethod": method,
        "SamplingInformation": {"SamplingMethod": "NoSampling", "LotSize": None, "SampleSize": None},
        "Inspector": inspector,
        **_recipe(envelope, "RecipeName", "RecipeRevision"),
        "InspectedUnits": [unit],
        "InspectedPanel": None,
    }


def _unit(envelope: EventEnvelope, result: str, inspections: list[dict[str, Any]], verification: str) -> dict[str, Any]:
    body, board = envelope.event.body, envelope.board
    return {
        "UnitIdentifier": _unit_id(body),
        "UnitPositionNumber": 1,
        "OverallResult": result,
        "Inspections": inspections,
        "Verification": verification,
        "TotalInspectionCount": board and board.components,
    }


class _Regions:
    """Where the components of a board lie by its placement file."""

    def __init__(self, envelope: EventEnvelope) -> None:
        self._sites: dict[str, Site] = {}
        whole = envelope.recipe and RecipeContent.model_validate(envelope.recipe.content).whole
        with suppress(ConfigError):  # the recipe was in order when the board was accepted, and an update refuses it
            self._sites = {site.name: site for site in whole.layout.sites} if whole else {}

    def of(self, refdes: str) -> dict[str, Any] | None:
        """Return the outline of a component's crop, closed, in mm as the camera sees the board; None if unknown.

        The standard gives the coordinates of a region no unit; all its other lengths are mm.
        """
        if (site := self._sites.get(refdes)) is None:
            return None
        points = [{"X": round(at.x_mm, 4), "Y": round(at.y_mm, 4)} for at in site.corners]
        start = points[0]
        return {"StartPointX": start["X"], "StartPointY": start["Y"], "RegionSegments": [*points[1:], start]}


def _inspection(transaction: str, call: Body, regions: _Regions, result: str, verification: str) -> dict[str, Any]:
    """Return the inspection of a component that was called; a component that nobody could see has an error too."""
    id = uuid.uuid5(uuid.UUID(transaction), call["refdes"])
    score = call["score"]
    was_seen = call["reason"] == CallReason.EXPERT
    defect = {
        "UniqueIdentifier": str(uuid.uuid5(id, "defect")),
        "DefectCode": call["label"] or call["reason"],
        "DefectCategory": call["verdict"],
        "Description": None,
        "Comments": None,
        "ComponentOfInterest": {
            "ReferenceDesignator": call["refdes"],
            "UnitPosition": None,
            "PartNumber": call["component"],
        },
        "RegionOfInterest": regions.of(call["refdes"]),
        "DefectImages": [],
        "Priority": 1 if call["verdict"] == Verdict.NG else 2,
        "ConfidenceLevel": None if score is None else round(100.0 * score, 4),
        "RelatedMeasurements": [],
        "RelatedSymptoms": [],
        "Verification": verification,
        "VerificationDetail": None,
    }
    return {
        "UniqueIdentifier": str(id),
        "InspectionName": call["refdes"],
        "InspectionStartTime": None,
        "InspectionEndTime": None,
        "TestProcedure": None,
        "Comments": None,
        "Result": result,
        "Verification": verification,
        "VerificationDetail": None,
        "Error": None if was_seen else call["reason"],
        "DefectsFound": [defect],
        "Symptoms": [],
        "Measurements": [],
        "RefNo": None,
    }
