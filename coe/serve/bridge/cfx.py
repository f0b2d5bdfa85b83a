"""Events as messages of IPC-CFX 2.1. The same event gives the same messages, with the same ids, at each delivery.

The shapes of envelope and messages are those of IPC-2591, as the public SDK has them (IPCConnectedFactoryExchange/CFX,
`CFX/CFXEnvelope.cs` and `CFX/Production`). docs/integration.md has a table of events and messages.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from coe.serve.bridge import cfx_inspections as inspections
from coe.serve.bridge import cfx_units as units
from coe.serve.bridge.cfx_endpoint import CfxEndpoint, envelope, time_span
from coe.serve.bridge.sinks import EventEnvelope, Format, Message, Origin, Sign, StationStatus
from coe.serve.clock import iso
from coe.serve.database.row_types import shown
from coe.serve.enums import EventKind, FaultKind, LineState, Process, Subject

_NAMESPACE = uuid.UUID("5b3d5a0c-1c0e-4f57-9a53-6f2f7c1f5f0e")
"""Our namespace: ids of transactions and faults are made from it, so that they are the same after a crash."""

_STATES = {
    LineState.STARTING: 6500,  # shutdown and start-up
    LineState.WAITING: 2202,  # standby, no product: starved
    LineState.RUNNING: 1100,  # regular work
    LineState.CHANGING: 4500,  # scheduled downtime: set-up
    LineState.DRAINED: 4000,  # scheduled downtime
    LineState.HELD: 5400,  # unscheduled downtime: what comes in is out of order
    LineState.DOWN: 5000,  # unscheduled downtime
}
"""States of SEMI E58."""
_STOPS = {
    FaultKind.PROCESS_DIED,
    FaultKind.PROCESS_SILENT,
    FaultKind.INSPECTOR_FAILED,
    FaultKind.EXPERT_HANGS,
    FaultKind.DATABASE,
    FaultKind.DISK_FULL,
    FaultKind.DISK_FAILED,
    FaultKind.LINE_HELD,
}
_SERVICES = {FaultKind.DATABASE, FaultKind.DISK_FULL, FaultKind.DISK_FAILED, FaultKind.DISK_LOW, FaultKind.SINK}
_QUALITY = {FaultKind.STOP_RULE, FaultKind.LINE_HELD}


class CfxFormat(Format):
    """Messages of IPC-CFX from the endpoint of the origin's handle."""

    def __init__(self, origin: Origin, heartbeat_s: float = 60.0) -> None:
        self._handle, self._endpoint = origin.handle, CfxEndpoint(origin, heartbeat_s)

    def messages(self, told: EventEnvelope) -> list[Message]:
        id, at_us = uuid.UUID(told.event.uuid), told.event.happened_us
        return [
            envelope(self._handle, str(uuid.uuid5(id, name)), name, at_us, body) for name, body in self._bodies(told)
        ]

    def sign(self, sign: Sign, status: StationStatus) -> Message:
        """Return what the endpoint says when it comes, lives, or goes; signs of life have the open faults."""
        said = [(shown(fault, "message", fault="id", fault_kind="kind"), fault.raised_us) for fault in status.faults]
        return self._endpoint.sign(sign, status.at_us, [self._fault(*one) for one in said])

    def answer(self, request: Mapping[str, Any], at_us: int) -> Message | None:
        return self._endpoint.answer(request, at_us)

    def _bodies(self, told: EventEnvelope) -> list[tuple[str, dict[str, Any]]]:
        event, body = told.event, told.event.body
        match event.kind:
            case EventKind.BOARD_ACCEPTED:
                return [("CFX.Production.UnitsArrived", units.arrived(told))]
            case EventKind.BOARD_STARTED:
                return [("CFX.Production.WorkStarted", units.started(self._transaction(body), told))]
            case EventKind.BOARD_DECIDED:
                id = self._transaction(body)
                said = [(inspections.INSPECTED, inspections.inspected(id, told))]
                return [*said, (units.COMPLETED, units.completed(id, told)), (units.DEPARTED, units.departed(told))]
            case EventKind.BOARD_AMENDED:
                return [(inspections.INSPECTED, inspections.amended(self._transaction(body), told))]
            case EventKind.BOARD_VERIFIED:
                return [(inspections.INSPECTED, inspections.verified(self._transaction(body), told))]
            case EventKind.BOARD_REPAIRED:
                return [(inspections.REPAIRED, inspections.repaired(self._transaction(body), told))]
            case EventKind.BOARD_ABORTED:
                ended = [(units.DEPARTED, units.departed(told, is_aborted=True))]
                if told.board is not None and told.board.started_us is not None:
                    ended.insert(0, (units.COMPLETED, units.completed(self._transaction(body), told, is_aborted=True)))
                return ended
            case EventKind.RECIPE_ACTIVATED:
                return [("CFX.Production.RecipeActivated", units.activated(told))]
            case EventKind.STATE_CHANGED if body["subject"] == Subject.LINE:
                return [("CFX.ResourcePerformance.StationStateChanged", _state_changed(body))]
            case EventKind.FAULT_RAISED:
                return [("CFX.ResourcePerformance.FaultOccurred", {"Fault": self._fault(body, event.happened_us)})]
            case EventKind.FAULT_CLEARED:
                return [("CFX.ResourcePerformance.FaultCleared", self._fault_cleared(body))]
        return []

    def _transaction(self, body: Mapping[str, Any]) -> str:
        # The number alone would come again with a new database; the feeder's key never does.
        return str(uuid.uuid5(_NAMESPACE, f"{self._handle}/board/{body['board']}/{body['key']}"))

    def _fault_id(self, id: int) -> str:
        return str(uuid.uuid5(_NAMESPACE, f"{self._handle}/fault/{id}"))

    def _fault(self, body: Mapping[str, Any], at_us: int) -> dict[str, Any]:
        kind = FaultKind(body["fault_kind"])
        services = "ServicesFailure" if kind in _SERVICES else "SoftwareFailure"
        return {
            "TransactionID": None,
            "Cause": "QualityCheck" if kind in _QUALITY else services,
            "Severity": "Error" if kind in _STOPS else "Warning",
            "FaultCode": kind.value,
            "FaultOccurrenceId": self._fault_id(body["fault"]),
            "Lane": None,
            "Stage": None,
            "SideLocation": "Unknown",
            "AccessType": "Unknown",
            "Description": body["message"],
            "DescriptionTranslations": {},
            "OccurredAt": iso(at_us),
            "DueDateTime": None,
        }

    def _fault_cleared(self, body: Mapping[str, Any]) -> dict[str, Any]:
        by = body["by"]
        by_itself = by in set(Process)
        return {
            "FaultOccurrenceId": self._fault_id(body["fault"]),
            "Operator": None if by_itself else inspections.operator(by),
        }


def _state_changed(body: Mapping[str, Any]) -> dict[str, Any]:
    before, lasted_us = body["before"], body["lasted_us"]
    return {
        "OldState": _STATES[LineState(before) if before else LineState.DOWN],
        "OldStateDuration": None if lasted_us is None else time_span(lasted_us),
        "NewState": _STATES[LineState(body["state"])],
        "RelatedFault": None,
    }
