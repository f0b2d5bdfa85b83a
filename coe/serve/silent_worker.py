"""A worker that stands still, as when it is stopped, swaps, or hangs in native code: boards do not wait for it.

A dead process is seen by its end; one that stands still only by its sign of life. While there is none, boards that are
due are decided without the worker, and without torch: REVIEW and late. A decision is written once, so a worker that
goes on meanwhile decides none of them again.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import update

from coe.serve.clock import CLOCKS, Clocks
from coe.serve.database import decisions, fault_log, recipe_versions, states, views
from coe.serve.database.connecting import Database
from coe.serve.database.database_errors import DatabaseError
from coe.serve.database.states import SILENT_S
from coe.serve.database.tables import Board, NewFault, heartbeat
from coe.serve.enums import FaultKind, Process
from coe.serve.picture_folder import Pictures
from coe.serve.service_config import ServeConfig
from coe.serve.worker.items import items_of
from coe.serve.worker.verdicts import BoardRun, decision_of
from coe.serve.worker.waiting_boards import Queue

OVERDUE_S = 1.0
"""A worker that goes on decides a board sooner than so long after its due time."""
TOGETHER = 20
"""How many boards are decided in one look; whoever looks has more to do."""
AWAY_S = SILENT_S / 2
"""What takes so long waited for the database, and so does the worker: the silence before it does not count."""
STARTS_FOR = 5
"""A worker that has given no sign since its start, as while libraries are read from a slow disk, has so many times as
long."""


class SilentWorker:
    """Looks at the worker's sign of life. One thread."""

    def __init__(
        self,
        config: ServeConfig,
        database: Database,
        refused: Callable[[DatabaseError], object],
        clocks: Clocks = CLOCKS,
    ) -> None:
        self._config, self._database, self._refused, self._clocks = config, database, refused, clocks
        self._pictures = Pictures(config.pictures)
        self._sign: tuple[int, int] | None = None
        self._has_looked = False
        self._heard_s = self._looked_s = clocks.now_s()
        self._due: Queue | None = None
        self._is_told: bool | None = None  # not known: a fault may be open from before this process was started

    def look(self, pid: int | None, started_s: float) -> str:
        """Decide what is due if the worker is silent; return why it must be killed, empty if it need not.

        `pid` is that of the worker that was started at `started_s`; None if none runs. While the database answers
        nobody, nobody can give a sign of life: that is `refused`.
        """
        try:
            return self._look(pid, started_s)
        except DatabaseError as error:
            self._refused(error)
            self._heard_s = self._clocks.now_s()
            return ""

    def _look(self, pid: int | None, started_s: float) -> str:
        beat = self._database.read(states.heartbeats).get(Process.WORKER)
        now_s = self._clocks.now_s()
        if now_s - self._looked_s > AWAY_S:
            self._heard_s = now_s
        self._looked_s = now_s
        sign = None if beat is None else (beat.pid, beat.beat_us)
        if sign != self._sign:
            if self._has_looked:
                self._heard(now_s)
            self._sign = sign
        self._has_looked = True
        silent_s = now_s - self._heard_s
        if silent_s < SILENT_S:
            return ""
        self._try_to_write()
        if self._clocks.now_s() - now_s > AWAY_S:
            self._heard_s = self._clocks.now_s()
            return ""
        has_begun = beat is not None and beat.pid == pid
        if has_begun and not self._is_told:
            self._tell(silent_s)
        self._decide_due(now_s)
        most_s = self._config.line.hangs_after_s * (1 if has_begun else STARTS_FOR)
        if pid is not None and min(silent_s, now_s - started_s) > most_s:
            self._heard_s = now_s
            return f"the worker gave no sign of life for {silent_s:.0f} s, and was killed"
        return ""

    def _heard(self, now_s: float) -> None:
        """Take in a sign of life."""
        self._heard_s, self._due = now_s, None
        if self._is_told is not False:
            self._database.write(
                fault_log.clear_about,
                Process.SUPERVISOR,
                FaultKind.PROCESS_SILENT,
                about=Process.WORKER,
                now_us=self._clocks.now_us(),
            )
            self._is_told = False

    def _try_to_write(self) -> None:
        """Write as the worker would write its sign of life; changes nothing."""
        with self._database.writing() as connection:
            same = heartbeat.c.process == Process.WORKER
            connection.execute(update(heartbeat).where(same).values(pid=heartbeat.c.pid))

    def _tell(self, silent_s: float) -> None:
        message = f"the worker has given no sign of life for {silent_s:.0f} s; due boards are REVIEW without it"
        new = NewFault(Process.SUPERVISOR, FaultKind.PROCESS_SILENT, message, Process.WORKER)
        self._database.write(fault_log.note, new, self._clocks.now_us())
        self._is_told = True

    def _decide_due(self, now_s: float) -> None:
        queue = self._due = self._due or Queue()
        self._database.read(queue.look, self._clocks.now_us(), now_s)
        for _ in range(TOGETHER):
            queued = queue.next_due()
            if queued is None or now_s < queued.due_s + OVERDUE_S:
                return
            self._decide(queued.board)
            queue.leave(queued.board.id)

    def _decide(self, board: Board) -> None:
        """Write that nobody has looked at a board: each component is REVIEW, and late."""
        with self._database.writing() as connection:
            content = recipe_versions.get(connection, board.recipe_id).content
            items = items_of(board, content, views.of_board(connection, board.key), self._pictures)
            decision = decision_of(BoardRun(board, items), self._clocks.now_us())
            decisions.write(connection, decision, self._config.stop_rules)
