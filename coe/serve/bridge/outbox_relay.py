"""The bridge: each sink with its queue on a thread of `web`. Events go in their order.

A sink that fails is tried again after pauses that grow to a minute; its events wait in the outbox, and no other sink
waits for it. A crash between the acknowledgement and the outbox repeats a message, with the same id.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from sqlalchemy import Connection

from coe.errors import CoeError
from coe.serve import failpoints
from coe.serve.bridge.sinks import EventEnvelope, Sign, Sink, SinkFailed, StationStatus
from coe.serve.clock import now_us
from coe.serve.database import event_log, fault_log, recipe_versions, row_types, states
from coe.serve.database.connecting import Database, DatabaseError
from coe.serve.database.recipe_versions import KeptRecipes
from coe.serve.database.tables import Board, Event, NewFault
from coe.serve.enums import EventKind, FaultKind, Process

LOOK_S = 0.2  # how often a relay looks into the outbox
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # after the first failure; each later pause is twice as long
TOGETHER = 100  # how many events are acknowledged in one transaction
GRACE_S = 3.0  # for what a sink sends when the process ends; what was not acknowledged is sent again
_SHOWN = {EventKind.STATE_CHANGED, EventKind.FAULT_RAISED, EventKind.FAULT_CLEARED}

_log = logging.getLogger(__name__)


class OutboxRelay:
    """Tells one sink what is in the outbox for it, until it is stopped; `make` makes the sink after each failure."""

    def __init__(self, name: str, make: Callable[[], Sink], database: Database, stop: threading.Event) -> None:
        self._name, self._make, self._database, self._stop = name, make, database, stop
        self._sink: Sink | None = None
        self._is_shown = False
        self._status: StationStatus | None = None
        self._failures = 0
        self._told: list[Event] = []
        self._recipes = KeptRecipes()
        # A fault may be open from before the process was started.
        self._may_have_fault = True
        self._next_beat_s = 0.0

    def run(self) -> None:
        """Tell the sink until the stop is set."""
        try:
            while not self._stop.is_set():
                self._stop.wait(self._turn())
            self._take_leave()
        finally:
            self._close()

    def _close(self) -> None:
        sink, self._sink = self._sink, None
        try:
            if sink is not None:
                sink.connection.close()
        except Exception:  # of a connection that has failed already
            _log.exception("sink '%s' did not close cleanly", self._name)

    def _turn(self) -> float:
        """Send the events that wait, and return the pause in seconds; no error ends the thread."""
        try:
            self._note_told()
            self._tell(waiting := self._waiting())
            self._overcome()
        except DatabaseError:
            return FIRST_PAUSE_S
        except CoeError as error:  # also of a secret or a certificate that cannot be read
            return self._fail(str(error))
        except Exception as error:  # whatever a library raises, the other sinks and the queue live on
            _log.exception("sink '%s' failed", self._name)
            return self._fail(f"{type(error).__name__}: {error}")
        return 0.0 if len(waiting) == TOGETHER else LOOK_S

    def _waiting(self) -> list[EventEnvelope]:
        with self._database.reading() as connection:
            waiting = event_log.waiting(connection, self._name, limit=TOGETHER)
            return [envelope_of(connection, event, self._recipes) for event in waiting]

    def _tell(self, waiting: list[EventEnvelope]) -> None:
        """Tell events in order; raises SinkFailed at the first that cannot be told."""
        try:
            sink = self._connected()
            self._answer(sink)
            self._show(sink)
            for envelope in waiting:
                if self._stop.is_set():
                    break
                for message in sink.format.messages(envelope):
                    sink.connection.send(message)
                    failpoints.reached(failpoints.Failpoint.SINK_TOLD)
                self._told.append(envelope.event)
        finally:
            self._note_told()

    def _note_told(self) -> None:
        """Remove sent events from the outbox; as long as the database refuses that, nothing is sent again."""
        if self._told:
            self._database.write(event_log.delivered, self._name, [event.id for event in self._told])
            self._is_shown &= not any(event.kind in _SHOWN for event in self._told)
            self._told.clear()
            self._failures = 0

    def _connected(self) -> Sink:
        if self._sink is None:
            self._is_shown, self._next_beat_s, self._status = False, 0.0, None
            self._sink = self._make()
            self._sink.connection.connect()
        return self._sink

    def _answer(self, sink: Sink) -> None:
        """Answer those who ask; whoever asks badly gets no answer, and holds nobody up."""
        for request in sink.connection.look():
            try:
                if (message := sink.format.answer(request.body, now_us())) is not None:
                    sink.connection.answer(request, message)
            except SinkFailed:
                raise
            except Exception as error:  # a request may hold what no answer can repeat, as NaN
                _log.warning("sink '%s': a request cannot be answered: %r", self._name, error)

    def _take_leave(self) -> None:
        if self._sink is not None and self._status is not None:
            try:
                self._say(self._sink, Sign.ENDING, replace(self._status, at_us=now_us()))
            except Exception as error:  # nothing waits for it any more
                _log.warning("sink '%s' was not notified that the station stops: %s", self._name, error)

    def _say(self, sink: Sink, sign: Sign, status: StationStatus) -> None:
        if (message := sink.format.sign(sign, status)) is not None:
            sink.connection.send(message)

    def _show(self, sink: Sink) -> None:
        """Show the station's state if it has changed, and send a sign of life if it is time."""
        is_time = time.monotonic() >= self._next_beat_s
        if self._is_shown and not is_time:
            return
        status = self._database.read(_status)
        if self._status is None:
            self._say(sink, Sign.CONNECTED, status)
        self._status = status
        sink.connection.show(status)
        self._is_shown = True
        if is_time:
            self._next_beat_s = time.monotonic() + sink.heartbeat_s
            self._say(sink, Sign.ALIVE, status)

    def _overcome(self) -> None:
        if self._may_have_fault:
            self._database.write(fault_log.clear_about, Process.WEB, FaultKind.SINK, about=self._name, now_us=now_us())
        self._may_have_fault, self._failures = False, 0

    def _fail(self, why: str) -> float:
        self._close()
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(self._failures, 30), LONGEST_PAUSE_S)
        self._failures += 1
        try:
            self._note(why)
        except Exception as trouble:
            _log.warning("sink '%s' failed (%s), which cannot be recorded: %s", self._name, why, trouble)
        return pause_s

    def _note(self, why: str) -> None:
        name = self._name
        message = f"delivery to sink '{name}' failed: {why}; its messages stay queued"
        with self._database.writing() as connection:
            fault_log.note(connection, NewFault(Process.WEB, FaultKind.SINK, message, name), now_us())
            for oldest in event_log.waiting(connection, name, limit=1):
                event_log.failed(connection, name, oldest.id, error=why)
        self._may_have_fault = True


def envelope_of(connection: Connection, event: Event, kept: KeptRecipes) -> EventEnvelope:
    """Return an event with its board and its recipe, whose content is large; raises DatabaseError."""
    board = None if event.board_id is None else row_types.get(connection, Board, event.board_id)
    recipe = None if board is None else kept.get(connection, board.recipe_id)
    if event.kind is EventKind.RECIPE_ACTIVATED:
        recipe = recipe_versions.version(connection, event.body["name"], event.body["version"])
    return EventEnvelope(event, recipe, board)


def _status(connection: Connection) -> StationStatus:
    return StationStatus(
        states.line(connection), states.intake(connection), fault_log.open_faults(connection), now_us()
    )


def tell(sinks: Mapping[str, Callable[[], Sink]], database: Database, stop: threading.Event) -> None:
    """Tell each registered sink on a thread of its own until `stop`."""
    # Daemons: a sink that hangs does not keep the process alive.
    threads = [
        threading.Thread(target=OutboxRelay(name, make, database, stop).run, name=f"coe-sink-{name}", daemon=True)
        for name, make in sinks.items()
    ]
    for thread in threads:
        thread.start()
    stop.wait()
    for thread in threads:
        thread.join(GRACE_S)
