"""The loop that decides boards. Each accepted board gets one decision, by its due time, whatever happens.

The loop waits for nothing but new work: pictures are handed in by `feeder`, recipes are opened by `product`. Everything
that it knows can be forgotten: what is written is in the database, and what is not is done again after a crash.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection

from coe.core import Failure, FailureKind
from coe.serve import failpoints
from coe.serve.clock import CLOCKS, Clocks
from coe.serve.credentials import place_of
from coe.serve.database import audit, board_rows, event_log, fault_log, recipe_versions, row_types, states, views
from coe.serve.database.connecting import Database, DatabaseError
from coe.serve.database.tables import Activation, Board, NewFault, Recipe
from coe.serve.enums import ActivationState, EventKind, FaultKind, Intake, LineState, Process
from coe.serve.picture_folder import Pictures
from coe.serve.service_config import ServeConfig
from coe.serve.worker import verdicts
from coe.serve.worker.line_watch import LineWatch
from coe.serve.worker.locating import Feeder, Locating
from coe.serve.worker.product import Changed, OpenLine, Product, Products, line_opener
from coe.serve.worker.verdicts import BoardRun, Items, Queue, Queued
from coe.serve.worker.write_report import WorkerReport

LOOK_S = 0.25  # how often the loop takes in what others have written
GLANCE_S = 0.05  # how often it asks for the newest event while it can begin a board
RETRY_S = 0.2  # how long the loop waits before it asks a database again that did not answer
MAX_ATTEMPTS = 5  # after so many attempts that ended with the worker, a board is decided without findings


class Station:
    """The line of a service: decides the accepted boards of a database, in their order. One process at a time."""

    def __init__(
        self, config: ServeConfig, database: Database, *, open_line: OpenLine | None = None, clocks: Clocks = CLOCKS
    ) -> None:
        self._config, self._database, self._clocks = config, database, clocks
        self._rules = config.stop_rules
        self._pictures = Pictures(config.pictures)
        self._rung = threading.Event()
        watch = LineWatch(clocks.now_s, config.line.hangs_after_s)
        self._products = Products(config.data, open_line or line_opener(config, watch), self._rung.set)
        self._changeover = Changeover(database, self._products, clocks.now_us)
        self._feeder = Feeder(clocks.now_s, self._rung.set)
        self._queue = Queue()
        self._runs: dict[int, BoardRun] = {}
        self._report = WorkerReport(database, clocks, watch, place_of(config.data))
        self._locating = Locating(database, self._rung.set, self._report, watch)
        self._next_look_s = -math.inf
        self._seen_event = 0
        self._intake = Intake.OPEN
        self._broken = ""
        self._has_begun = self._was_open = False
        self.is_ending = False
        """Whether it begins no more boards; `end` and signals set it."""

    @property
    def is_idle(self) -> bool:
        """Whether no board is under way."""
        return not self._runs

    @property
    def waits_for_database(self) -> bool:
        """Whether the database does not answer; what is to be written waits in memory."""
        return self._report.waits_for_database

    def end(self) -> None:
        """Begin no more boards; may be called by a signal handler."""
        self.is_ending = True

    def run(self, turn: Callable[[], object] = bool, drain: Callable[[], object] = bool) -> None:
        """Decide boards until `end`, calling `turn` each round; then `drain`, finish begun boards, close. LineHangs."""
        ends_s = math.inf
        while not (self.is_ending and (self.is_idle or self._clocks.now_s() >= ends_s)):
            if self.is_ending and ends_s == math.inf:
                ends_s = self._clocks.now_s() + self._config.drain_s
                drain()
            turn()
            self.step()
        self.close()

    def step(self) -> None:
        """Do what can be done now, and wait until there is more to do. Raises LineHangs."""
        try:
            if not self._work():
                self._wait()
        except DatabaseError as error:
            # Nothing is lost: every part of the work is done again until it is written.
            self._report.database_failed(error)
            self._next_look_s = -math.inf
            time.sleep(RETRY_S)

    def close(self) -> None:
        """End all threads; boards that are under way are begun again by the next line."""
        self._products.close(at_once=bool(self._runs))
        self._feeder.close()
        self._locating.close()
        with suppress(DatabaseError):  # its last sign of life gets old, and says the same
            self._report.say(LineState.DOWN)

    def _work(self) -> bool:
        if not self._has_begun:
            self._report.say(LineState.STARTING)
            self._has_begun = True
        self._collect()
        if self._broken and not self.is_ending and not self._products.is_changing:
            self._give_up(self._broken)
        if self._clocks.now_s() >= self._next_look_s:
            self._look()
        self._decide()
        self._changeover.step(self._clocks.now_s(), is_between=self._feeder.is_idle, is_free=self.is_idle)
        has_more = not self.is_ending and self._begin_next()
        self._report.worked(self._runs, self._queue, self._state(), self._products)
        return has_more

    def _wait(self) -> None:
        """Wait until a thread of this process rings, something is due, or others have written something."""
        dues = [self._next_look_s, *(run.due_s for run in self._runs.values() if not run.is_decided)]
        if (queued := self._queue.next_due()) is not None:
            dues.append(queued.due_s)
        left_s = min(dues) - self._clocks.now_s()
        while left_s > 0 and not self._rung.wait(min(left_s, GLANCE_S)) and not self._is_news():
            left_s -= GLANCE_S
        self._rung.clear()

    def _is_news(self) -> bool:
        """Whether there are events since the last look that may bring a board which can begin now."""
        if not self._feeder.is_idle:
            return False
        is_news = self._database.read(event_log.newest_id) != self._seen_event
        if is_news:
            self._next_look_s = -math.inf
        return is_news

    def _look(self) -> None:
        with self._database.reading() as connection:
            self._seen_event = event_log.newest_id(connection)
            self._queue.look(connection, self._clocks.now_us(), self._clocks.now_s())
            boards_now = [*(one.board for one in self._queue), *(run.board for run in self._runs.values())]
            self._changeover.look(connection, {board.recipe_id for board in boards_now}, self._clocks.now_s())
            self._intake = states.intake(connection)
        self._next_look_s = self._clocks.now_s() + LOOK_S

    def _state(self) -> LineState:
        if self._products.is_changing and not self._products.current and not self._changeover.is_retry:
            return LineState.CHANGING if self._was_open else LineState.STARTING
        self._was_open = True
        if self._runs:
            return LineState.RUNNING
        return {Intake.DRAINING: LineState.DRAINED, Intake.HELD: LineState.HELD}.get(self._intake, LineState.WAITING)

    def _collect(self) -> None:
        """Take results from the experts; if the line itself has failed, its boards wait for their turn again."""
        for found in self._feeder.found():
            if self._runs.get(found.run.board.id) is not found.run:
                continue  # of an attempt that was given up
            if found.result.failure is not None and found.result.failure.kind in verdicts.UNSEEN_BY_LINE:
                self._broken = found.result.failure.reason
                continue
            failpoints.reached(failpoints.Failpoint.FOUND)
            found.run.take(found.item.refdes, found.result, found.at_s)
            self._report.image_done()
            image, board_id = found.item.image, found.run.board.id
            if verdicts.is_lost_image(found.result, image):
                self._report.picture_gone(board_id, f"{found.item.refdes} on board {board_id}", image)

    def _give_up(self, reason: str) -> None:
        """Let a failed line go, and put its undecided boards back into the queue."""
        self._report.fault(NewFault(Process.WORKER, FaultKind.INSPECTOR_FAILED, reason))
        self._products.give_up()
        with self._database.reading() as connection:
            again = [row_types.get(connection, Board, id) for id, run in self._runs.items() if not run.is_decided]
        due_s = {id: run.due_s for id, run in self._runs.items()}
        self._queue.come_back([Queued(board, due_s[board.id]) for board in again if board is not None])
        self._runs.clear()
        self._broken = ""

    def _decide(self) -> None:
        """Decide boards that are complete or due, of those that wait one in each round; amend decided boards."""
        now_s = self._clocks.now_s()
        for run in list(self._runs.values()):
            if not run.is_decided and (run.is_complete or now_s >= run.due_s):
                self._write_decision(run)
            if run.late and run.is_decided:
                self._amend(run)
            if run.is_decided and run.is_complete:
                self._runs.pop(run.board.id, None)
        if (queued := self._queue.next_due()) is not None and now_s >= queued.due_s:
            self._decide_unseen(queued.board, None)

    def _write_decision(self, run: BoardRun, failure: Failure | None = None) -> None:
        decision = verdicts.decision_of(run, self._clocks.now_us(), failure)
        with self._database.writing() as connection:
            written = board_rows.decide(connection, decision, self._rules)
            self._intake = states.intake(connection)  # a stop rule may hold the line
            failpoints.reached(failpoints.Failpoint.DECIDING)
        failpoints.reached(failpoints.Failpoint.DECIDED)
        run.is_decided = True
        if not written:
            # It was aborted, or decided by a commit of which nobody learned: what still comes changes nothing.
            self._runs.pop(run.board.id, None)

    def _amend(self, run: BoardRun) -> None:
        with self._database.writing() as connection:
            board_rows.amend(connection, verdicts.amendment_of(run, self._clocks.now_us()), self._rules)
            failpoints.reached(failpoints.Failpoint.AMENDED)
        run.late.clear()

    def _decide_unseen(self, board: Board, failure: Failure | None) -> None:
        self._write_decision(BoardRun(board, self._items(board)), failure)
        self._leave(board)

    def _leave(self, board: Board) -> None:
        self._queue.leave(board.id)
        self._locating.forget(board)

    def _begin_next(self) -> bool:
        """Begin the board whose turn it is, if the line has room for it; return whether there may be another."""
        queued, now_s = self._queue.first(), self._clocks.now_s()
        if queued is None or self._intake is not Intake.OPEN:
            return False
        board = queued.board
        reason = self._changeover.refusal(board.recipe_id, now_s)
        if board.attempts >= MAX_ATTEMPTS:
            reason = f"the worker ended {board.attempts} times while it inspected this board"
            self._report.fault(NewFault(Process.WORKER, FaultKind.BOARD_FAILED, reason, f"board {board.id}", board.id))
        if reason is not None:
            self._decide_unseen(board, Failure(FailureKind.LINE, reason))
            return True
        under_way = [run.board for run in self._runs.values()]
        is_ready = not verdicts.must_wait(board, under_way) and self._locating.look_at(board, self._items)
        if not is_ready or self._changeover.is_holding_up or not self._feeder.is_idle:
            return False
        product = self._changeover.product_for(board.recipe_id)
        if product is None:
            return False
        self._begin(product, queued)
        return True

    def _begin(self, product: Product, queued: Queued) -> None:
        board, moment_us = queued.board, self._clocks.now_us()
        located, items = self._locating.of(board), self._items(board)
        with self._database.writing() as connection:
            if (intake := states.intake(connection)) is not Intake.OPEN:  # since the last look, as by a person's answer
                self._intake = intake
                return
            begun = board_rows.begin(connection, board.id, moment_us, is_counted=located is not None)
            if begun:
                body = {**board.facts, "components": items.number}
                event_log.append(connection, EventKind.BOARD_STARTED, moment_us, body, board.id)
        self._leave(board)
        if begun:
            failpoints.reached(failpoints.Failpoint.BOARD_BEGUN)
            run = self._runs[board.id] = BoardRun(board, items, queued.due_s, product)
            self._feeder.feed(run, located)

    def _items(self, board: Board) -> Items:
        if (located := self._locating.of(board)) is not None:
            return located.items
        with self._database.reading() as connection:
            content = recipe_versions.get(connection, board.recipe_id).content
            there = views.of_board(connection, board.key)
        return verdicts.items_of(board, content, there, self._pictures)


# Which recipes are on the line. All active versions, and each version of which boards wait, together
REFUSED_S = 30.0  # how long a recipe that could not be opened is left alone before the next attempt
STAYS_S = 60.0  # how long a version that is not active stays on the line after its last board
_KINDS = (FaultKind.INSPECTOR_FAILED, FaultKind.RECIPE_REFUSED)


@dataclass(frozen=True, slots=True)
class RefusedRecipe:
    """Why a recipe cannot be opened, and until when nobody tries again, on the monotonic clock."""

    reason: str
    until_s: float


class Changeover:
    """Brings recipes onto the line as boards and activations need them. The loop's thread alone uses it."""

    def __init__(self, database: Database, products: Products, now_us: Callable[[], int]) -> None:
        self._database, self._products, self._now_us = database, products, now_us
        self._asked: list[Activation] = []
        self._answering: Activation | None = None
        self._active: frozenset[int] = frozenset()
        self._needed_s: dict[int, float] = {}
        self._recipes: dict[int, Recipe] = {}
        self._ended: Changed | None = None
        self._refused: dict[int, RefusedRecipe] = {}
        self._apart: dict[int, str] = {}
        self._first: int | None = None
        self._kept: frozenset[int] = frozenset()
        """What went on as it was during the change."""
        self.is_retry = False
        """Whether the change under way brings nothing but recipes that could not be opened before."""

    @property
    def is_holding_up(self) -> bool:
        """Whether no board may begin, because a line is to be opened anew as soon as no board is under way."""
        return self._first is not None

    def look(self, connection: Connection, needed: Collection[int], now_s: float) -> None:
        """Take in which activations were asked for, and that boards need recipes, by their ids."""
        self._asked = recipe_versions.asked(connection)
        self._active = recipe_versions.active_ids(connection)
        lately = {id: seen_s for id, seen_s in self._needed_s.items() if now_s - seen_s < STAYS_S}
        self._needed_s = lately | dict.fromkeys(needed, now_s)

    def step(self, now_s: float, *, is_between: bool, is_free: bool) -> None:
        """Go on as far as possible between boards (`is_between`), or with none under way (`is_free`). DatabaseError."""
        self._ended = self._ended or self._products.finished()
        if self._ended is not None:
            self._conclude(self._ended, now_s)
            self._ended = None
        if self._products.is_changing or not is_between or (self._first is not None and not is_free):
            return
        if self._answering is None and self._asked:
            self._answering = self._asked[0]
        again = None if self._answering is None else self._answering.recipe_id
        wanted, current = self._wanted(now_s), self._products.current.keys()
        if self._first is not None or again is not None or wanted - current - self._apart.keys() or current - wanted:
            self._begin(wanted, again)

    def product_for(self, recipe_id: int) -> Product | None:
        """Return a recipe that is on the line; None for a recipe that comes onto it as soon as that is possible."""
        product = self._products.current.get(recipe_id)
        if product is None and recipe_id in self._apart and self._first is None and not self._products.is_changing:
            self._first = recipe_id
        return product

    def refusal(self, recipe_id: int, now_s: float) -> str | None:
        """Return why a recipe cannot be opened now, or None."""
        refused = self._refused.get(recipe_id)
        return refused.reason if refused is not None and now_s < refused.until_s else None

    def _wanted(self, now_s: float) -> set[int]:
        """Return the recipes that should be on the line; those that were refused are tried again after a while."""
        wanted = {id for id in self._active | self._needed_s.keys() if self.refusal(id, now_s) is None}
        return wanted | ({self._answering.recipe_id} if self._answering is not None else set())

    def _begin(self, wanted: Collection[int], again: int | None) -> None:
        first = self._first if self._first is not None else again
        ids = sorted(wanted, key=lambda id: (id != first, id))
        with self._database.reading() as connection:
            self._recipes = {id: self._recipes.get(id) or recipe_versions.get(connection, id) for id in ids}
            # A gate of another version, or a person with the database, may have let it in.
            refusals = {id: recipe_versions.refusal(connection, one) for id, one in self._recipes.items()}
        refused = {id: reason for id, reason in refusals.items() if reason is not None}
        wanted_now = [one for id, one in self._recipes.items() if id not in refused]
        self._products.begin_to_change(wanted_now, again=again, anew=self._first is not None, refused=refused)
        self._first, self._kept = None, frozenset(self._products.current)
        self.is_retry = again is None and set(wanted) - self._kept <= self._refused.keys()

    def _conclude(self, changed: Changed, now_s: float) -> None:
        """Write what became of a change; what nobody could try is tried again."""
        asked = self._answering
        is_answered = asked is not None and not changed.is_lost and asked.recipe_id not in changed.apart
        with self._database.writing() as connection:
            for id, reason in changed.refused.items():
                is_asked = asked is not None and asked.recipe_id == id
                kind = FaultKind.RECIPE_REFUSED if is_asked else FaultKind.INSPECTOR_FAILED
                fault_log.note(connection, NewFault(Process.WORKER, kind, reason, self._about(id)), self._now_us())
            opened = changed.products.keys() - self._kept - changed.refused.keys()
            activated = asked.recipe_id if asked is not None and is_answered and asked.recipe_id in opened else None
            self._clear_faults(connection, opened, activated, changed.refused)
            if asked is not None and is_answered:
                self._answer(connection, asked, changed.refused.get(asked.recipe_id, ""))
        # A recipe that could not be read again is still on the line as it was.
        refused = {id: reason for id, reason in changed.refused.items() if id not in changed.products}
        self._refused = {id: one for id, one in self._refused.items() if id not in changed.products}
        self._refused |= {id: RefusedRecipe(reason, now_s + REFUSED_S) for id, reason in refused.items()}
        self._apart = changed.apart
        if asked is not None and is_answered:
            self._asked = [one for one in self._asked if one.id != asked.id]
            if asked.recipe_id in changed.products:
                # As the database says from now on; without it this step would take the version off the line again.
                self._active |= {asked.recipe_id}
            self._answering = None
        elif asked is not None and not changed.is_lost:
            self._first = asked.recipe_id

    def _clear_faults(
        self, connection: Connection, opened: Collection[int], activated: int | None, refused: Collection[int]
    ) -> None:
        """Clear the faults of opened versions, and of those that an activated one replaces, also older ones."""
        name = None if activated is None else self._recipes[activated].name
        mended, still = {self._about(id) for id in opened}, {self._about(id) for id in refused}
        for fault in fault_log.open_faults(connection):
            is_ours = fault.process is Process.WORKER and fault.kind in _KINDS and fault.about not in still
            if is_ours and (fault.about in mended or fault.about.rpartition(" ")[0] == name):
                fault_log.clear(connection, fault.id, by=Process.WORKER.value, now_us=self._now_us())

    def _about(self, id: int) -> str:
        return f"{self._recipes[id].name} {self._recipes[id].version}"

    def _answer(self, connection: Connection, asked: Activation, reason: str) -> None:
        wanted, state = self._recipes[asked.recipe_id], ActivationState.FAILED if reason else ActivationState.ACTIVE
        now_us = self._now_us()
        if not recipe_versions.answer(connection, asked.id, state, now_us=now_us, reason=reason):
            return
        kind = EventKind.RECIPE_FAILED if reason else EventKind.RECIPE_ACTIVATED
        body = {"name": wanted.name, "version": wanted.version, "reason": reason, "by": asked.asked_by}
        event_log.append(connection, kind, now_us, body)
        audit.append(connection, Process.WORKER, kind.value, f"recipe {wanted.name} {wanted.version}", now_us=now_us)
