"""Events as messages of IPC-CFX 2.1. The same event gives the same messages, with the same ids, at each delivery.

A station also says that it comes and goes, gives signs of life, and answers who asks for it. The shapes of envelope,
messages and requests are those of IPC-2591, as the public SDK has them (IPCConnectedFactoryExchange/CFX,
`CFX/CFXEnvelope.cs`, `CFX/Production`, `CFX/AreYouThereRequest.cs` and its neighbours). docs/integration.md has a table
of events and messages.
"""

from __future__ import annotations

import platform
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import coe
from coe.serve.bridge import cfx_inspections as inspections
from coe.serve.bridge.cfx_inspections import CfxEvent
from coe.serve.bridge.sinks import EventEnvelope, Format, Message, Origin, Sign, StationStatus
from coe.serve.clock import SECOND_US, iso
from coe.serve.database.row_types import shown
from coe.serve.enums import EventKind, FaultKind, LineState, Process, Subject

_STATES = {
    LineState.STARTING: 6500,  # shutdown and start-up
    LineState.WAITING: 2202,  # standby, no product: starved
    LineState.RUNNING: 1100,  # regular work
    LineState.CHANGING: 4500,  # scheduled downtime: set-up
    LineState.DRAINED: 4000,  # scheduled downtime
    LineState.HELD: 5400,  # unscheduled downtime: what comes in is out of order
    LineState.DOWN: 5000,  # unscheduled downtime
}  # states of SEMI E58
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

VERSION = "2.1"
_COMPLETED, _DEPARTED = "CFX.Production.WorkCompleted", "CFX.Production.UnitsDeparted"
_INSPECTED = "CFX.Production.TestAndInspection.UnitsInspected"
_PLATFORMS = {"x86_64": "Platform64bit", "AMD64": "Platform64bit", "aarch64": "ARM64", "arm64": "ARM64"}
_DONE = {"Result": "Success", "ResultCode": 0, "Message": None}


class CfxFormat(Format):
    """Messages of IPC-CFX from the endpoint of the origin's handle."""

    def __init__(self, origin: Origin, heartbeat_s: float = 60.0) -> None:
        self._origin, self._handle, self._heartbeat_s = origin, origin.handle, heartbeat_s

    def messages(self, told: EventEnvelope) -> list[Message]:
        id, event = uuid.UUID(told.event.uuid), CfxEvent(told, self._handle)
        return [
            envelope(self._handle, str(uuid.uuid5(id, name)), name, told.event.happened_us, body_of(event))
            for name, body_of in _BODIES.get(told.event.kind, ())
            if _is_told(name, event)
        ]

    def sign(self, sign: Sign, status: StationStatus) -> Message:
        """Return what the endpoint says when it comes, lives, or goes; signs of life have the open faults."""
        said = [(shown(fault, "message", fault="id", fault_kind="kind"), fault.raised_us) for fault in status.faults]
        names = {
            Sign.CONNECTED: ("CFX.EndpointConnected", self._where),
            Sign.ALIVE: (
                "CFX.Heartbeat",
                {
                    "CFXHandle": self._handle,
                    "HeartbeatFrequency": time_span(round(self._heartbeat_s * SECOND_US)),
                    "ActiveFaults": [_fault(self._handle, *one) for one in said],
                    "ActiveRecipes": None,
                },
            ),
            Sign.ENDING: ("CFX.EndpointShuttingDown", {"CFXHandle": self._handle}),
        }
        name, body = names[sign]
        return envelope(self._handle, str(uuid.uuid4()), name, status.at_us, body)

    @property
    def _where(self) -> dict[str, Any]:
        origin = self._origin
        return {
            "CFXHandle": self._handle,
            "RequestNetworkUri": origin.request_uri or None,
            "RequestTargetAddress": origin.request_address or None,
        }

    def answer(self, request: Mapping[str, Any], at_us: int) -> Message | None:
        """Return the answer to an envelope; None if it is no request, or not for this endpoint."""
        name, asked = request.get("MessageName"), request.get("MessageBody")
        if not isinstance(name, str) or not name.endswith("Request") or not isinstance(asked, Mapping):
            return None
        if request.get("Target") not in (None, "", self._handle, self._origin.request_address):
            return None
        if asked.get("CFXHandle", self._handle) not in (None, "", self._handle):
            return None
        match name:
            case "CFX.AreYouThereRequest":
                said = ("CFX.AreYouThereResponse", {"Result": _DONE, **self._where})
            case "CFX.WhoIsThereRequest" if not _is_meant(asked):
                return None
            case "CFX.WhoIsThereRequest":
                said = ("CFX.WhoIsThereResponse", {"Result": _DONE, **self._where})
            case "CFX.GetEndpointInformationRequest":
                body = {"Result": _DONE, "EndpointInformation": self._information}
                said = ("CFX.GetEndpointInformationResponse", body)
            case _:
                refusal = {"Result": "Failed", "ResultCode": 1, "Message": f"{name[:200]} is not supported"}
                said = ("CFX.NotSupportedResponse", {"RequestResult": refusal})
        ids = {"target": request.get("Source"), "request": request.get("RequestID")}
        return envelope(self._handle, str(uuid.uuid4()), said[0], at_us, said[1], **ids)

    @property
    def _information(self) -> dict[str, Any]:
        words = self._handle.split(".", 2)
        vendor, model, number = words if len(words) == 3 else (None, None, None)
        return {
            **self._where,
            "CFXVersion": VERSION,
            "UniqueIdentifier": self._handle,
            "FriendlyName": self._origin.station,
            "Vendor": vendor,
            "ModelNumber": model,
            "SerialNumber": number,
            "SoftwareVersion": coe.__version__,
            "OperatingSystem": "OtherLinux" if platform.system() == "Linux" else "Other",
            "OperatingSystemPlatform": _PLATFORMS.get(platform.machine(), "Other"),
            "OperatingSystemVersion": platform.release(),
            "Stages": [{"Stage": {"StageSequence": 1, "StageName": "INSPECTION", "StageType": "Work"}}],
            "NumberOfLanes": 1,
            "SupportedTopics": [
                {"TopicName": topic, "TopicSupportType": "Publisher", "SupportedMessages": names}
                for topic, names in PUBLISHED.items()
            ],
            **inspections.unsaid("FirmwareVersion HermesInformation OperatingRequirements SupportedPCBDimensions"),
            "SleepStates": [],
        }


def _fault(handle: str, body: Mapping[str, Any], at_us: int) -> dict[str, Any]:
    kind = FaultKind(body["fault_kind"])
    services = "ServicesFailure" if kind in _SERVICES else "SoftwareFailure"
    return {
        "Cause": "QualityCheck" if kind in _QUALITY else services,
        "Severity": "Error" if kind in _STOPS else "Warning",
        "FaultCode": kind.value,
        "FaultOccurrenceId": inspections.id_of(handle, "fault", body["fault"]),
        "SideLocation": "Unknown",
        "AccessType": "Unknown",
        "Description": body["message"],
        "DescriptionTranslations": {},
        "OccurredAt": iso(at_us),
        **inspections.unsaid("TransactionID Lane Stage DueDateTime"),
    }


def _fault_raised(event: CfxEvent) -> dict[str, Any]:
    return {"Fault": _fault(event.handle, event.body, event.envelope.event.happened_us)}


def _fault_cleared(event: CfxEvent) -> dict[str, Any]:
    by = event.body["by"]
    return {
        "FaultOccurrenceId": inspections.id_of(event.handle, "fault", event.body["fault"]),
        "Operator": None if by in set(Process) else inspections.operator(by),
    }


def _state_changed(event: CfxEvent) -> dict[str, Any]:
    before, lasted_us = event.body["before"], event.body["lasted_us"]
    return {
        "OldState": _STATES[LineState(before) if before else LineState.DOWN],
        "OldStateDuration": None if lasted_us is None else time_span(lasted_us),
        "NewState": _STATES[LineState(event.body["state"])],
        "RelatedFault": None,
    }


_BODIES: Mapping[EventKind, Sequence[tuple[str, Callable[[CfxEvent], dict[str, Any]]]]] = {
    EventKind.BOARD_ACCEPTED: [("CFX.Production.UnitsArrived", inspections.present)],
    EventKind.BOARD_STARTED: [("CFX.Production.WorkStarted", inspections.started)],
    EventKind.BOARD_DECIDED: [
        (_INSPECTED, inspections.inspected),
        (_COMPLETED, inspections.completed),
        (_DEPARTED, inspections.present),
    ],
    EventKind.BOARD_AMENDED: [(_INSPECTED, inspections.amended)],
    EventKind.BOARD_VERIFIED: [(_INSPECTED, inspections.verified)],
    EventKind.BOARD_REPAIRED: [("CFX.Production.ReworkAndRepair.UnitsRepaired", inspections.repaired)],
    EventKind.BOARD_ABORTED: [(_COMPLETED, inspections.completed), (_DEPARTED, inspections.present)],
    EventKind.RECIPE_ACTIVATED: [("CFX.Production.RecipeActivated", inspections.activated)],
    EventKind.STATE_CHANGED: [("CFX.ResourcePerformance.StationStateChanged", _state_changed)],
    EventKind.FAULT_RAISED: [("CFX.ResourcePerformance.FaultOccurred", _fault_raised)],
    EventKind.FAULT_CLEARED: [("CFX.ResourcePerformance.FaultCleared", _fault_cleared)],
}  # the messages of each event, and what makes their bodies


def _is_told(name: str, event: CfxEvent) -> bool:
    """Return whether a message is sent of an event: the line alone has a state, and work that never began no end."""
    board, is_of_end = event.envelope.board, name == _COMPLETED and event.is_aborted
    has_begun = board is not None and board.started_us is not None
    return event.body.get("subject", Subject.LINE) == Subject.LINE and (has_begun or not is_of_end)


_OF_ENDPOINT = (
    "CFX.AreYouThereResponse",
    "CFX.EndpointConnected",
    "CFX.EndpointShuttingDown",
    "CFX.GetEndpointInformationResponse",
    "CFX.Heartbeat",
    "CFX.NotSupportedResponse",
    "CFX.WhoIsThereResponse",
)
_NAMES = {*_OF_ENDPOINT, *(name for bodies in _BODIES.values() for name, _ in bodies)}
PUBLISHED: Mapping[str, Sequence[str]] = {
    topic: sorted(name for name in _NAMES if name.rpartition(".")[0] == topic)
    for topic in sorted({name.rpartition(".")[0] for name in _NAMES})
}  # the messages that are sent, by topic


def envelope(
    handle: str, id: str, name: str, at_us: int, body: Mapping[str, Any], *, target: Any = None, request: Any = None
) -> Message:
    """Return a message in its envelope; `target` and `request` are those of a request that it answers."""
    content = {
        "MessageName": name,
        "Version": VERSION,
        "TimeStamp": iso(at_us),
        "UniqueID": id,
        "Source": handle,
        "Target": target,
        "RequestID": request,
        "MessageBody": {"$type": f"{name}, CFX", **body},
    }
    return Message(id, name, at_us, content)


def time_span(length_us: int) -> str:
    """Return a length of time as the messages write it: "1.02:03:04.5000000" with days, "00:01:00" without."""
    seconds, rest_us = divmod(max(0, length_us), SECOND_US)
    days, seconds = divmod(seconds, 86400)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return (f"{days}." if days else "") + clock + (f".{rest_us * 10:07}" if rest_us else "")


def _is_meant(asked: Mapping[str, Any]) -> bool:
    """Return whether who asks for endpoints with certain topics means this one."""
    topics = asked.get("SupportedTopics")
    wanted = [
        one.get("TopicName") in PUBLISHED and one.get("TopicSupportType", "Publisher") == "Publisher"
        for one in (topics if isinstance(topics, list) else [])
        if isinstance(one, Mapping)
    ]
    match asked.get("SupportedTopicQueryType", "Ignore"):
        case "All":
            return all(wanted)
        case "Any":
            return any(wanted)
    return True
