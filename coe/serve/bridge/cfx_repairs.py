"""The body of the IPC-CFX message about a repair; its defects have the identifiers that `UnitsInspected` gave them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from coe.serve.board_units import BoardUnit
from coe.serve.bridge.cfx_inspections import Judged, component, defect, defect_id, operator, region
from coe.serve.bridge.cfx_units import Body, CfxBoard
from coe.serve.bridge.sinks import EventEnvelope
from coe.serve.clock import iso
from coe.serve.enums import RepairOutcome

REPAIRED = "CFX.Production.ReworkAndRepair.UnitsRepaired"
_DONE, _SCRAP = "RepairSuccessful", "Scrap"
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
        "OverallResult": _SCRAP if is_scrap else _DONE,
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
        "Result": _SCRAP if outcome is RepairOutcome.SCRAPPED else _DONE,
        "Error": None,
    }
