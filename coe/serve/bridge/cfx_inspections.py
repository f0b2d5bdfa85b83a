"""The bodies of IPC-CFX messages about what was found. REVIEW is sent as Failed; only a person's word makes it Passed.

An inspection is listed for each component that is not OK; `TotalInspectionCount` says how many there were. The standard
verifies defects: a unit without one has nothing to verify, and stays `NotVerifiedYet`; its `OverallResult` counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coe.core import Verdict
from coe.serve.board_units import BoardUnit
from coe.serve.bridge.cfx_units import Body, CfxBoard, recipe_of
from coe.serve.bridge.sinks import EventEnvelope
from coe.serve.clock import iso
from coe.serve.enums import CallReason, Outcome, RepairOutcome

INSPECTED = "CFX.Production.TestAndInspection.UnitsInspected"
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


def inspected(transaction: str, envelope: EventEnvelope) -> dict[str, Any]:
    """Return the body of `UnitsInspected` for what the line decided, which nobody has verified yet."""
    return _units_inspected(transaction, envelope, "AOI", None, _by_line(envelope))


def amended(transaction: str, envelope: EventEnvelope) -> dict[str, Any]:
    """Return the body of `UnitsInspected` for what became worse; of a panel, the units alone of which that is."""
    body, board = _units_inspected(transaction, envelope, "AOI", None, _by_line(envelope)), CfxBoard(envelope)
    worse = {unit.number for call in envelope.event.body["calls"] if (unit := board.unit_of(call)) is not None}
    units = [unit for unit in body["InspectedUnits"] if unit["UnitPositionNumber"] in worse]
    return {**body, "InspectedUnits": units, "InspectedPanel": None}


def _by_line(envelope: EventEnvelope) -> list[Judged]:
    return [Judged(call, _FAILED, _NOT_YET) for call in envelope.event.body["calls"]]


def verified(transaction: str, envelope: EventEnvelope) -> dict[str, Any]:
    """Return the body of `UnitsInspected` for a person's words on all calls of a board."""
    body, judged = envelope.event.body, []
    for call in body["calls"]:
        outcome = Outcome(call["outcome"])
        judged.append(Judged(call, _FAILED if outcome is Outcome.CONFIRMED else _PASSED, _VERIFIED[outcome]))
    return _units_inspected(transaction, envelope, "Human", operator(body["by"]), judged)


def operator(name: str) -> dict[str, Any]:
    """Return a person, who is known here by the name of a key."""
    return {
        "OperatorIdentifier": name,
        "ActorType": "Human",
        "LastName": None,
        "FirstName": None,
        "LoginName": None,
    }


def defect_id(transaction: str, refdes: str) -> str:
    """Return the identifier of the defect of a component of a board."""
    return str(uuid.uuid5(uuid.uuid5(uuid.UUID(transaction), refdes), "defect"))


def component(board: CfxBoard, call: Body) -> dict[str, Any]:
    """Return the component of a call as a `ComponentDesignator`, without its unit, in which it stands."""
    return {
        "ReferenceDesignator": board.refdes_of(call),
        "UnitPosition": None,
        "PartNumber": call["component"],
    }


def region(board: CfxBoard, refdes: str) -> dict[str, Any] | None:
    """Return the outline of a component's crop, closed, in mm as the camera sees the board; None if unknown.

    The standard gives the coordinates of a region no unit; all its other lengths are mm.
    """
    sites = board.layout.sites if board.layout else ()
    if (site := next((site for site in sites if site.name == refdes), None)) is None:
        return None
    points = [{"X": round(at.x_mm, 4), "Y": round(at.y_mm, 4)} for at in site.corners]
    start = points[0]
    return {"StartPointX": start["X"], "StartPointY": start["Y"], "RegionSegments": [*points[1:], start]}


def _units_inspected(
    transaction: str, envelope: EventEnvelope, method: str, inspector: Body | None, judged: Sequence[Judged]
) -> dict[str, Any]:
    board = CfxBoard(envelope)
    by_unit: dict[BoardUnit | None, list[Judged]] = {}
    for one in judged:
        by_unit.setdefault(board.unit_of(one.call), []).append(one)
    of_panel = by_unit.get(None, [])
    units = [
        {
            "UnitIdentifier": unit.serial,
            "UnitPositionNumber": unit.number,
            "OverallResult": _SKIPPED if unit.is_skipped else _result(board, by_unit.get(unit, []), of_panel),
            "Inspections": [_inspection(transaction, board, one) for one in by_unit.get(unit, [])],
            "Verification": _worst(by_unit.get(unit, [])),
            "TotalInspectionCount": 0 if unit.is_skipped else unit.components,
        }
        for unit in board.units
    ]
    return {
        # The standard writes this name with a small d, unlike that of the other messages.
        "TransactionId": transaction,
        "InspectionMethod": method,
        "SamplingInformation": {"SamplingMethod": "NoSampling", "LotSize": None, "SampleSize": None},
        "Inspector": inspector,
        **recipe_of(envelope, "RecipeName", "RecipeRevision"),
        "InspectedUnits": units,
        "InspectedPanel": _panel(transaction, board, of_panel, units) if board.is_panel else None,
    }


def _result(board: CfxBoard, own: Sequence[Judged], of_panel: Sequence[Judged]) -> str:
    is_failed = any(one.result == _FAILED for one in (*own, *of_panel)) or (board.is_in_doubt and not own)
    return _FAILED if is_failed else _PASSED


def _worst(judged: Sequence[Judged]) -> str:
    found = {one.verification for one in judged}
    return next((word for word in _WORST if word in found), _NOT_YET)


def _panel(transaction: str, board: CfxBoard, own: Sequence[Judged], units: Sequence[Body]) -> dict[str, Any]:
    """Return what is said of a panel as a whole: it fails with any of its units."""
    is_failed = any(unit["OverallResult"] == _FAILED for unit in units)
    return {
        "UnitIdentifier": board.identity["PrimaryIdentifier"],
        "OverallResult": _FAILED if is_failed else _PASSED,
        "Inspections": [_inspection(transaction, board, one) for one in own],
        "Verification": _worst(own),
        "TotalInspectionCount": sum(unit["TotalInspectionCount"] or 0 for unit in units),
        "Stretch": None,
        "RecognizedStrokeDirection": None,
        "Fiducials": [],
        "PCBVariant": None,
    }


def _inspection(transaction: str, board: CfxBoard, judged: Judged) -> dict[str, Any]:
    """Return the inspection of a component that was called; a component that nobody could see has an error too."""
    call = judged.call
    is_skipped = call["reason"] == CallReason.SKIPPED
    return {
        "UniqueIdentifier": str(uuid.uuid5(uuid.UUID(transaction), call["refdes"])),
        "InspectionName": call["refdes"],
        "InspectionStartTime": None,
        "InspectionEndTime": None,
        "TestProcedure": None,
        "Comments": None,
        "Result": _SKIPPED if is_skipped else judged.result,
        "Verification": judged.verification,
        "VerificationDetail": None,
        "Error": None if call["reason"] == CallReason.EXPERT else call["reason"],
        "DefectsFound": [] if is_skipped else [defect(transaction, board, judged)],
        "Symptoms": [],
        "Measurements": [],
        "RefNo": None,
    }


def defect(transaction: str, board: CfxBoard, judged: Judged) -> dict[str, Any]:
    """Return the defect of a call."""
    call, score = judged.call, judged.call["score"]
    return {
        "UniqueIdentifier": defect_id(transaction, call["refdes"]),
        "DefectCode": call["label"] or call["reason"],
        "DefectCategory": call["verdict"],
        "Description": None,
        "Comments": None,
        "ComponentOfInterest": component(board, call),
        "RegionOfInterest": region(board, call["refdes"]),
        "DefectImages": [],
        "Priority": 1 if call["verdict"] == Verdict.NG else 2,
        "ConfidenceLevel": None if score is None else round(100.0 * score, 4),
        "RelatedMeasurements": [],
        "RelatedSymptoms": [],
        "Verification": judged.verification,
        "VerificationDetail": None,
    }


REPAIRED = "CFX.Production.ReworkAndRepair.UnitsRepaired"
_REPAIRED_WELL, _SCRAP = "RepairSuccessful", "Scrap"
_NAMES = {
    RepairOutcome.REPAIRED: "Repaired",
    RepairOutcome.SCRAPPED: "Scrapped",
    RepairOutcome.NO_DEFECT: "No defect found",
}


def repaired(transaction: str, envelope: EventEnvelope) -> dict[str, Any]:
    """Return the body of `UnitsRepaired`: the units of which a defect was confirmed, with what became of each."""
    body, board = envelope.event.body, CfxBoard(envelope)
    by_unit: dict[BoardUnit, list[Body]] = {}
    for call in body["repairs"]:
        by_unit.setdefault(board.unit_of(call) or board.units[0], []).append(call)
    return {
        "TransactionId": transaction,
        "RepairOperator": operator(body["by"]),
        "RepairedUnits": [_unit(transaction, board, unit, calls) for unit, calls in by_unit.items()],
    }


def _unit(transaction: str, board: CfxBoard, unit: BoardUnit, calls: Sequence[Body]) -> dict[str, Any]:
    is_scrap = any(call["repair"] == RepairOutcome.SCRAPPED for call in calls)
    return {
        "UnitIdentifier": unit.serial,
        "UnitPositionNumber": unit.number,
        "OverallResult": _SCRAP if is_scrap else _REPAIRED_WELL,
        "Repairs": [_repair(transaction, board, call) for call in calls],
    }


def _repair(transaction: str, board: CfxBoard, call: Body) -> dict[str, Any]:
    outcome, refdes = RepairOutcome(call["repair"]), call["refdes"]
    is_none = outcome is RepairOutcome.NO_DEFECT
    rejected = Judged(call, "Passed", "DefectRejected")
    return {
        "UniqueIdentifier": str(uuid.uuid5(uuid.UUID(transaction), f"{refdes}/repair/{call['repaired_us']}")),
        "RepairName": _NAMES[outcome],
        "RepairStartTime": None,
        "RepairEndTime": iso(call["repaired_us"]),
        "Comments": call["note"] or None,
        "ComponentOfInterest": component(board, call),
        "RegionOfInterest": region(board, refdes),
        "RelatedDefectIdentifiers": [defect_id(transaction, refdes)],
        "ReclassifiedDefects": [defect(transaction, board, rejected)] if is_none else [],
        "RelatedSymptomIdentifiers": [],
        "ReclassifiedSymptoms": [],
        "Result": _SCRAP if outcome is RepairOutcome.SCRAPPED else _REPAIRED_WELL,
        "Error": None,
    }
