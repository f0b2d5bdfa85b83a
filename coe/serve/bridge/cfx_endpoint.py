"""What a station of IPC-CFX says of itself: that it comes and goes, its signs of life, and answers to who asks for it.

Requests are those of the public SDK (IPCConnectedFactoryExchange/CFX, `CFX/AreYouThereRequest.cs` and its neighbours).
"""

from __future__ import annotations

import platform
import uuid
from collections.abc import Mapping
from typing import Any

import coe
from coe.serve.bridge.sinks import Message, Origin, Sign
from coe.serve.clock import SECOND_US, iso

VERSION = "2.1"
PUBLISHED: Mapping[str, tuple[str, ...]] = {
    "CFX": (
        "AreYouThereResponse", "EndpointConnected", "EndpointShuttingDown", "GetEndpointInformationResponse",
        "Heartbeat", "NotSupportedResponse", "WhoIsThereResponse",
    ),
    "CFX.Production": (
        "RecipeActivated", "UnitsArrived", "UnitsDeparted", "WorkCompleted", "WorkStarted",
    ),
    "CFX.Production.ReworkAndRepair": ("UnitsRepaired",),
    "CFX.Production.TestAndInspection": ("UnitsInspected",),
    "CFX.ResourcePerformance": ("FaultCleared", "FaultOccurred", "StationStateChanged"),
}  # fmt: skip
"""The messages that are sent, by topic."""
_PLATFORMS = {"x86_64": "Platform64bit", "AMD64": "Platform64bit", "aarch64": "ARM64", "arm64": "ARM64"}
_DONE = {"Result": "Success", "ResultCode": 0, "Message": None}


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


class CfxEndpoint:
    """A station as an endpoint; requests come in where the sink's config says."""

    def __init__(self, origin: Origin, heartbeat_s: float) -> None:
        self._origin, self._handle, self._heartbeat_s = origin, origin.handle, heartbeat_s

    def sign(self, sign: Sign, at_us: int, faults: list[dict[str, Any]]) -> Message:
        """Return what the endpoint says when it comes, lives, or goes."""
        names = {
            Sign.CONNECTED: ("CFX.EndpointConnected", self._where),
            Sign.ALIVE: (
                "CFX.Heartbeat",
                {
                    "CFXHandle": self._handle,
                    "HeartbeatFrequency": time_span(round(self._heartbeat_s * SECOND_US)),
                    "ActiveFaults": faults,
                    "ActiveRecipes": None,
                },
            ),
            Sign.ENDING: ("CFX.EndpointShuttingDown", {"CFXHandle": self._handle}),
        }
        name, body = names[sign]
        return envelope(self._handle, str(uuid.uuid4()), name, at_us, body)

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
            "FirmwareVersion": None,
            "OperatingSystem": "OtherLinux" if platform.system() == "Linux" else "Other",
            "OperatingSystemPlatform": _PLATFORMS.get(platform.machine(), "Other"),
            "OperatingSystemVersion": platform.release(),
            "Stages": [{"Stage": {"StageSequence": 1, "StageName": "INSPECTION", "StageType": "Work"}}],
            "NumberOfLanes": 1,
            "HermesInformation": None,
            "OperatingRequirements": None,
            "SupportedTopics": [
                {
                    "TopicName": topic,
                    "TopicSupportType": "Publisher",
                    "SupportedMessages": [f"{topic}.{name}" for name in names],
                }
                for topic, names in PUBLISHED.items()
            ],
            "SupportedPCBDimensions": None,
            "SleepStates": [],
        }


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
