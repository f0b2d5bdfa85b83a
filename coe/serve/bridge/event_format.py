"""Events in the service's own words, as JSON. The same event gives the same message at each delivery.

docs/integration.md describes the body of each kind of event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coe.serve.bridge.sinks import EventEnvelope, Message, Origin, Sign, StationStatus
from coe.serve.clock import iso


class EventFormat:
    """Messages with the content of an event; they name a recipe by name and version, not by the id of its row."""

    def __init__(self, origin: Origin, heartbeat_s: float = 60.0) -> None:
        self._station = origin.station

    def messages(self, envelope: EventEnvelope) -> list[Message]:
        """Return the event as one message."""
        event, recipe = envelope.event, envelope.recipe
        content = {
            "id": event.uuid,
            "number": event.id,
            "kind": event.kind.value,
            "at": iso(event.happened_us),
            "station": self._station,
            "body": {**event.body, **({"recipe": recipe.name, "version": recipe.version} if recipe else {})},
        }
        return [Message(event.uuid, event.kind.value, event.happened_us, content)]

    def sign(self, sign: Sign, status: StationStatus) -> Message | None:
        """Return nothing; a sink that has a place for the station's state shows it there."""
        return None

    def answer(self, request: Mapping[str, Any], at_us: int) -> Message | None:
        """Return nothing; questions are those of IPC-CFX, or go to the API."""
        return None
