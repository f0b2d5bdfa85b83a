"""The watch of `web` over the worker's heartbeat: boards do not wait for a worker that is gone or stands still.

While there is no sign of life, boards that are due are decided without the worker, and without torch: REVIEW and late.
A decision is written once, so a worker that goes on meanwhile decides none of them again. Silence counts from the row
of the heartbeat, also over a restart of `web`; who starts a worker again is systemd's business, and its own.
"""

from __future__ import annotations

import logging
import threading

from sqlalchemy import Connection, update

from coe.serve.clock import CLOCKS, SECOND_US, Clocks
from coe.serve.database import board_rows, fault_log, recipe_versions, states, views
from coe.serve.database.connecting import Database, DatabaseError
from coe.serve.database.states import SILENT_S
from coe.serve.database.tables import Board, NewFault, heartbeat
from coe.serve.enums import FaultKind, LineState, Process
from coe.serve.picture_folder import Pictures
from coe.serve.service_config import ServeConfig
from coe.serve.worker.verdicts import BoardRun, Queue, decision_of, items_of

LOOK_S = 1.0
OVERDUE_S = 1.0  # a worker that goes on decides a board sooner than so long after its due time
TOGETHER = 20  # how many boards are decided in one look; whoever looks has more to do
AWAY_S = SILENT_S / 2  # what takes so long waited for the database, and so does the worker
LISTENS_S = 2.5  # a row may look old because the clock was set: a living worker gives a sign within so long
STARTS_FOR = 5  # a worker that starts, or ended in order, is missed only after so many times `SILENT_S`

_log = logging.getLogger(__name__)


class WorkerWatch:
    """Looks at the worker's sign of life. One thread."""

    def __init__(self, config: ServeConfig, database: Database, clocks: Clocks = CLOCKS) -> None:
        self._config, self._database, self._clocks = config, database, clocks
        self._pictures = Pictures(config.pictures)
        self._sign: tuple[int, int] | None = None
        self._began_s = self._looked_s = clocks.now_s()
        self._heard_s: float | None = None
        self._due: Queue | None = None
        self._is_told: bool | None = None  # not known: a fault may be open from before this process was started

    def run(self, stop: threading.Event) -> None:
        """Look again and again until the stop is set; no error ends it, as nobody else decides then."""
        while not stop.wait(LOOK_S):
            try:
                self.look()
            except Exception:
                _log.exception("the watch over the worker failed, and continues")

    def look(self) -> None:
        """Decide what is due if the worker is silent. While the database answers nobody, nobody can give a sign."""
        try:
            self._look()
        except DatabaseError:
            self._heard_s = self._clocks.now_s()

    def _look(self) -> None:
        beat = self._database.read(states.heartbeats).get(Process.WORKER)
        now_s = self._clocks.now_s()
        sign = (0, 0) if beat is None else (beat.pid, beat.beat_us)
        if self._heard_s is None:
            age_us = self._clocks.now_us() - sign[1]
            self._heard_s = now_s - max(0, age_us) / SECOND_US
        elif sign != self._sign:
            self._heard(now_s)
        elif now_s - self._looked_s > AWAY_S:
            self._heard_s = now_s
        self._looked_s, self._sign = now_s, sign
        listened_s = now_s - self._began_s
        if now_s - self._heard_s < SILENT_S or listened_s < LISTENS_S:
            return
        self._database.write(_try)
        if self._clocks.now_s() - now_s > AWAY_S:
            self._heard_s = self._clocks.now_s()
            return
        silent_s = min(listened_s, now_s - self._heard_s)
        is_to_come = self._database.read(states.line) in (LineState.STARTING, LineState.DOWN)
        if not self._is_told and silent_s >= SILENT_S * (STARTS_FOR if is_to_come else 1):
            self._tell(silent_s)
        self._decide_due(now_s)

    def _heard(self, now_s: float) -> None:
        self._heard_s, self._due = now_s, None
        if self._is_told is not False:
            of_silence = (Process.WEB, FaultKind.PROCESS_SILENT)
            now_us = self._clocks.now_us()
            self._database.write(fault_log.clear_about, *of_silence, about=Process.WORKER, now_us=now_us)
            self._is_told = False

    def _tell(self, silent_s: float) -> None:
        message = f"the worker has sent no heartbeat for {silent_s:.0f} s; due boards are REVIEW without it"
        new = NewFault(Process.WEB, FaultKind.PROCESS_SILENT, message, Process.WORKER)
        self._database.write(fault_log.note, new, self._clocks.now_us())
        self._is_told = True

    def _decide_due(self, now_s: float) -> None:
        queue = self._due = self._due or Queue()
        self._database.read(queue.look, self._clocks.now_us(), now_s)
        for _ in range(TOGETHER):
            queued = queue.next_due()
            if queued is None or now_s < queued.due_s + OVERDUE_S:
                return
            self._database.write(self._decide, queued.board)
            queue.leave(queued.board.id)

    def _decide(self, connection: Connection, board: Board) -> None:
        """Write that nobody has looked at a board: each component is REVIEW, and late."""
        content = recipe_versions.get(connection, board.recipe_id).content
        items = items_of(board, content, views.of_board(connection, board.key), self._pictures)
        decision = decision_of(BoardRun(board, items), self._clocks.now_us())
        board_rows.decide(connection, decision, self._config.stop_rules)


def _try(connection: Connection) -> None:
    """Write as the worker would write its sign of life; changes nothing."""
    same = heartbeat.c.process == Process.WORKER
    connection.execute(update(heartbeat).where(same).values(pid=heartbeat.c.pid))
