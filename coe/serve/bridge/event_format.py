"""Events in the service's own words, as JSON, the same at each delivery; docs/integration.md describes the bodies."""

from __future__ import annotations

from coe.serve.bridge.sinks import EventEnvelope, Format, Message, Origin
from coe.serve.clock import iso


class EventFormat(Format):
    """Messages with the content of an event; they name a recipe by name and version, not by the id of its row."""

    def __init__(self, origin: Origin, heartbeat_s: float = 60.0) -> None:
        self._station = origin.station

    def messages(self, envelope: EventEnvelope) -> list[Message]:
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
