"""What each sink can do, and what it is given. Law: `send` returns only after the other machine has acknowledged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coe.errors import CoeError
from coe.serve.database.board_rows import Board
from coe.serve.database.event_log import Event
from coe.serve.database.fault_log import Fault
from coe.serve.database.recipe_versions import Recipe
from coe.serve.enums import Intake, LineState


class SinkFailed(CoeError):
    """A sink could not be told, or its connection is lost; the message is a sentence for people."""


@dataclass(frozen=True, slots=True)
class EventEnvelope:
    """An event with what the database knows of its board; `recipe` and `board` are None if it concerns no board."""

    event: Event
    recipe: Recipe | None = None
    board: Board | None = None


@dataclass(frozen=True, slots=True)
class StationStatus:
    """What the station does now: its line, its intake and its open faults."""

    line: LineState
    intake: Intake
    faults: Sequence[Fault]
    at_us: int


@dataclass(frozen=True, slots=True)
class Message:
    """A message: `id` is the same at each delivery, `name` says what `body`, which is JSON, is about."""

    id: str
    name: str
    at_us: int
    body: Mapping[str, Any]

    @property
    def encoded(self) -> bytes:
        """The body as it is sent."""
        return json.dumps(self.body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


class Format(Protocol):
    """A format: how events and signs of life become messages."""

    def messages(self, envelope: EventEnvelope) -> list[Message]:
        """Return the messages of an event, in order; none if the format has no message for it."""

    def heartbeat(self, status: StationStatus) -> Message | None:
        """Return a sign of life; None if the format has none."""


class SinkConnection(Protocol):
    """A connection to a sink, used by one thread. Every method but `close` may raise SinkFailed."""

    def connect(self) -> None:
        """Connect; called again after a failure, once `close` was called."""

    def send(self, message: Message) -> None:
        """Send a message, and return once it is acknowledged."""

    def show(self, status: StationStatus) -> None:
        """Show what the station does now, where a sink has a place for that."""

    def look(self) -> None:
        """Find out whether the connection still stands, and keep it alive; called several times a second."""

    def close(self) -> None:
        """End the connection, in order if it stands; never raises SinkFailed."""
