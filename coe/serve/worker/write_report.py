"""What the worker tells of itself: its state, its faults, boards in danger, signs of life.

A fault stays in memory until it is written. Only `worked` and `say` use the database.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coe.core import Batch
from coe.errors import CoeError, ConfigError
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.events import Command, Event, Evicted, Finished, Late, Load, Loaded, LoadFailed, Lost, Run, RunFailed
from coe.serve.clock import SECOND_US, Clocks
from coe.serve.database import board_rows, fault_log, states
from coe.serve.database.connecting import Database, DatabaseError, DatabaseErrorKind
from coe.serve.database.tables import Board, NewFault
from coe.serve.enums import FaultKind, LineState, Process, Subject
from coe.serve.worker.verdicts import BoardRun, Queue, Queued

if TYPE_CHECKING:
    from coe.inspector.line import Line
    from coe.serve.worker.product import Products


# What watches a line and changes nothing: which experts lie in memory, which boards will be late, and what hang


FACTOR = 20.0
"""A batch hangs only once it has taken so many times the time that its costs forecast."""


class LineHangs(CoeError):
    """A part of the line does not return; the worker has to end, without any thread being waited for."""


@dataclass(frozen=True, slots=True)
class Hang:
    """A batch, a load or a thread that does not end: `words` are a sentence, `expert` is "" if none is to blame."""

    expert: str
    words: str


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """A batch that is under way on an executor: how many images it has, and for how many seconds it has run."""

    executor: str
    expert: str
    images: int
    age_s: float


@dataclass(slots=True)
class _Executor:
    since_s: float = 0.0
    """When the first of its batches began: the next begins when the one before ends."""
    batches: deque[Batch] = field(default_factory=deque)


class LineWatch:
    """The watcher of one line after the other. Nothing hangs before `hangs_after_s`.

    Loads of one disk wait for each other, so a load by itself may take long: loads hang if none of them has ended for
    `hangs_after_s`, and for FACTOR times the longest of their forecasts. Each load ends with an event, also on a device
    that was lost.
    """

    def __init__(self, now_s: Callable[[], float], hangs_after_s: float) -> None:
        self._now_s, self.hangs_after_s = now_s, hangs_after_s
        self.further: list[Callable[[], Hang | None]] = []
        """Say whether something else hangs."""
        self._lock = threading.Lock()
        self._pools: dict[str, set[str]] = {}
        """Where each expert is."""
        self._lost: set[str] = set()
        self._late: set[int] = set()
        self._executors: dict[str, _Executor] = {}
        self._loads: dict[tuple[str, str], Load] = {}
        self._moved_s = 0.0
        """When a load ended last, or began while there was none."""

    def begin(self) -> None:
        """Forget what another line held in memory."""
        with self._lock:
            self._pools, self._lost = {}, set()

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Note what came, went, began and ended; runs on the thread that decides.

        `now` is a time of the line's clock, which its owner does not know.
        """
        with self._lock:
            match event:
                case None:  # a line begins, and the line before it is gone
                    self._executors.clear()
                    self._loads.clear()
                case Loaded() | LoadFailed():
                    if isinstance(event, Loaded):
                        self._pools.setdefault(event.expert, set()).add(event.pool)
                    self._loads.pop((event.pool, event.expert), None)
                    self._moved_s = self._now_s()
                case Evicted():
                    self._pools.get(event.expert, set()).discard(event.pool)
                case Lost() if event.device:
                    self._lost.add(event.device)
                case Finished() | RunFailed():
                    self._ended(event.executor)
            for command in commands:
                match command:
                    case Late():  # the line knows boards by their serials, which are our ids
                        self._late.add(int(command.board))
                    case Run():
                        self._begun(command)
                    case Load():
                        if not self._loads:
                            self._moved_s = self._now_s()
                        self._loads[command.pool, command.expert] = command

    def _begun(self, command: Run) -> None:
        executor = self._executors.setdefault(command.executor, _Executor())
        if not executor.batches:
            executor.since_s = self._now_s()
        executor.batches.append(command.batch)

    def _ended(self, name: str) -> None:
        executor = self._executors.get(name)
        if executor is not None and executor.batches:
            executor.batches.popleft()
            executor.since_s = self._now_s()

    def late_boards(self) -> set[int]:
        """Return the boards that the scheduler is certain to miss, by their ids, since the last call."""
        with self._lock:
            late, self._late = self._late, set()
        return late

    def experts(self, line: Line) -> dict[str, Any]:
        """Return each expert of a line as JSON, by its name in the board files; experts of one name are added up.

        `bytes` are those of its weights in memory, `devices` where it is resident, `rules` and `estimated` the
        probability that an image needs it, by the rules and by the images that came (None if nobody estimates it);
        `exam` holds (item, passed, shown, at most, is blind) for each item of its exam, `notes` sentences beside it.
        """
        with self._lock:
            pools = {expert: set(where) for expert, where in self._pools.items()}
            lost = set(self._lost)
        device_of = {pool.id: pool.device for pool in line.plan.pools}
        drift = {one.expert: one for one in line.drift()}
        listed: dict[str, dict[str, Any]] = {}
        exams, cautions = line.exams, line.cautions
        for expert in line.rules.experts:
            devices = sorted({device_of[pool] for pool in pools.get(expert, ()) if pool in device_of} - lost)
            use = drift.get(expert)
            size = line.costs((devices or line.costs.devices())[0], expert).weights_bytes
            name = line.rules.router.names.get(expert, expert)
            before = listed.get(name, {"bytes": 0, "devices": [], "rules": None, "estimated": None})
            listed[name] = {
                "bytes": before["bytes"] + size,
                "devices": sorted({*before["devices"], *devices}),
                "rules": round(use.rules, 6) if use else before["rules"],
                "estimated": round(use.estimated, 6) if use else before["estimated"],
                "exam": [
                    (item.name, item.passed, item.shown, round(item.rate.upper(), 4), item.is_blind)
                    for item in (exams[expert].items if expert in exams else ())
                ],
                "notes": [*(exams[expert].notes if expert in exams else ()), *cautions[expert]],
            }
        return listed

    def running(self) -> list[RunningBatch]:
        """Return the batch that each busy executor runs, the oldest first."""
        with self._lock:
            now_s = self._now_s()
            batches = [
                RunningBatch(name, executor.batches[0].expert, len(executor.batches[0]), now_s - executor.since_s)
                for name, executor in self._executors.items()
                if executor.batches
            ]
        return sorted(batches, key=lambda batch: -batch.age_s)

    def hanging(self, line: Line | None) -> Hang | None:
        """Return a part that hangs, for which boards would wait for ever; None if none does.

        `line` is the open line, or the line that is being opened.
        """
        found = None
        if line is not None:
            # The largest picture is read and prepared in seconds, and none waits for its turn there. Batches come last:
            # a batch may wait for a picture that is read again.
            decoding = picture_hang(line.longest_decoding_s(), self.hangs_after_s)
            found = decoding or self._hanging_load(line) or self._hanging_batch(line)
        return found or next(filter(None, (watch() for watch in self.further)), None)

    def _hanging_load(self, line: Line) -> Hang | None:
        """Return the oldest load if no load ends."""
        with self._lock:
            pending, age_s = list(self._loads.values()), self._now_s() - self._moved_s
        if not pending:
            return None
        device_of = {pool.id: pool.device for pool in line.plan.pools}
        costs = (_cost(line.costs, device_of.get(load.pool, ""), load.expert) for load in pending)
        longest_s = max((cost.load_s for cost in costs if cost), default=0.0)
        if age_s <= max(self.hangs_after_s, FACTOR * longest_s):
            return None
        oldest = pending[0]
        words = f"expert '{oldest.expert}' waits for the {oldest.source}, and no load has ended for {age_s:.0f} s"
        return Hang(oldest.expert, words)

    def _hanging_batch(self, line: Line) -> Hang | None:
        devices = {executor.id: executor.device for executor in line.plan.executors}
        for batch in self.running():
            cost = _cost(line.costs, devices[batch.executor], batch.expert)
            if batch.age_s > max(self.hangs_after_s, FACTOR * (cost.batch_s(batch.images) if cost else 0.0)):
                return Hang(
                    batch.expert,
                    f"expert '{batch.expert}' has not returned from a batch of {batch.images} on executor "
                    f"'{batch.executor}' for {batch.age_s:.0f} s",
                )
        return None


def _cost(costs: CostTable, device: str, expert: str) -> Cost | None:
    with suppress(ConfigError):  # its board has left the line meanwhile, and its costs with it
        return costs(device, expert)
    return None


def picture_hang(age_s: float, hangs_after_s: float) -> Hang | None:
    """Return that a picture hangs if it has been read for so long."""
    words = f"a picture has been read for {age_s:.0f} s: its disk, or the code of a kind, does not answer"
    return Hang("", words) if age_s > hangs_after_s else None


BEAT_S = 1.0
"""How often the worker gives a sign of life."""
EXPERTS_S = 10.0
"""How often it says which experts are in memory: for hundreds of experts that is much to write."""
QUIET_S = 2.0
"""How long no board must be under way until the line says that it waits: between two boards it only breathes."""
JUMP_S = 2.0
"""A wall clock that differs by more from the monotonic clock than before has jumped."""
NAMED_TOGETHER = 50
"""How many waiting boards in danger a sign of life names at most: each costs a while of the lock for writing."""
SHORTEN_S = 300.0
"""How often the database's log is cut."""
MEMORY = 200.0
"""After about so many images the estimate of the line's speed has forgotten what was before."""


@dataclass(slots=True)
class Speed:
    """How long the line takes for an image, by the images that it finished while it was busy."""

    per_image_s: float = 0.0
    _weight: float = 0.0

    def took(self, seconds: float, images: int) -> None:
        """Take in that the line was busy for so long and finished so many images."""
        if images > 0 and seconds >= 0:
            self._weight = min(self._weight + images, MEMORY)
            share = min(1.0, images / self._weight)
            self.per_image_s += share * (seconds / images - self.per_image_s)


def endangered(images: int, waiting: Iterable[Queued], now_s: float, per_image_s: float) -> Iterator[Board]:
    """Yield the boards that will be late at this speed; they are done in their order, after so many other images."""
    for one in waiting:
        images += one.board.components
        if images * per_image_s > one.due_s - now_s:
            yield one.board


class WorkerReport:
    """The line's own part of the database. The loop's thread alone uses it."""

    def __init__(self, database: Database, clocks: Clocks, watch: LineWatch, place: str) -> None:
        self._database, self._now_us, self._now_s, self._pid = database, clocks.now_us, clocks.now_s, os.getpid()
        self._watch, self._hang, self._place = watch, "", place
        self._faults: list[NewFault] = []
        self._database_fault: FaultKind | None = None
        self._named: set[int] = set()
        self._certain: set[int] = set()
        """Begun boards that will be late, and are not named yet: the database may not answer now."""
        self._speed = Speed()
        self._images = 0
        self._was_busy = False
        self._state: LineState | None = None
        self._worked_s = self._busy_s = self._beat_s = self._shortened_s = self._now_s()
        self._experts_s = -math.inf
        self._offset_s = self._wall_ahead_s()

    @property
    def waits_for_database(self) -> bool:
        """Whether the database did not answer when it was asked last."""
        return self._database_fault is not None

    def picture_gone(self, board_id: int, shown: str, path: Path | None) -> None:
        """Note that the file of an accepted picture cannot be read; `shown` says what it shows."""
        message = f"the picture of {shown} cannot be read at {path}"
        self.fault(NewFault(Process.WORKER, FaultKind.IMAGE_LOST, message, board_id=board_id))

    def fault(self, new: NewFault) -> None:
        """Note a fault; it is written when the database answers."""
        self._faults.append(new)

    def image_done(self) -> None:
        """Count a component that has its result."""
        self._images += 1

    def database_failed(self, error: DatabaseError) -> None:
        """Note that the database did not answer; the fault is written, and cleared, once it does."""
        if self._database_fault is None:
            self._database_fault = FaultKind.DISK_FULL if error.kind is DatabaseErrorKind.FULL else FaultKind.DATABASE
            self._faults.append(NewFault(Process.WORKER, self._database_fault, str(error)))

    def worked(self, runs: Mapping[int, BoardRun], queue: Queue, state: LineState, products: Products) -> None:
        """Write what is new after a round of work.

        Raises DatabaseError, and LineHangs, once its fault is written, if a part of the line hangs.
        """
        now_s = self._now_s()
        self._measure(now_s, bool(runs))
        self._check_clock()
        self._check_hangs(products)
        if self._faults or self._database_fault:
            self._write_faults()
        if state is LineState.WAITING and self._state is LineState.RUNNING and now_s - self._busy_s < QUIET_S:
            state = LineState.RUNNING
        if state is not self._state:
            self.say(state)
        self._certain |= self._watch.late_boards()
        late = [runs[id].board for id in sorted(self._certain) if id in runs and not runs[id].is_decided]
        if now_s - self._beat_s >= BEAT_S or late:
            self._beat_s = now_s
            late += self._in_danger(runs, queue, now_s)
            facts = self._facts(runs, queue, products)
            experts = self._experts(products, now_s)
            now_us, pid = self._now_us(), self._pid
            with self._database.writing() as connection:
                board_rows.endanger(connection, late, now_us)
                states.beat(connection, Process.WORKER, pid=pid, now_us=now_us, facts=facts, experts=experts)
            self._named.update(board.id for board in late)
        self._certain.clear()
        if now_s - self._shortened_s >= SHORTEN_S:
            self._shortened_s = now_s
            with suppress(DatabaseError):  # a reader is in the way; the next time will do
                self._database.shorten_log()
        if self._hang:
            raise LineHangs(self._hang)

    def say(self, state: LineState) -> None:
        """Write the state of the line, and a sign of life. Raises DatabaseError.

        The facts stay as they were told last: a page that is read now must not show a line without a recipe. Those of
        an earlier process go.
        """
        now_us = self._now_us()
        with self._database.writing() as connection:
            states.change(connection, Subject.LINE, state, by=Process.WORKER, now_us=now_us)
            facts = {"place": self._place} if self._state is None else None
            states.beat(connection, Process.WORKER, pid=self._pid, now_us=now_us, facts=facts)
        self._state = state

    def _measure(self, now_s: float, is_busy: bool) -> None:
        """Take in how long the images took that were finished since the last round."""
        if self._was_busy and self._images:
            self._speed.took(now_s - self._worked_s, self._images)
            self._images = 0
            self._worked_s = now_s
        elif not self._was_busy:
            self._worked_s = now_s
        self._was_busy = is_busy
        if is_busy:
            self._busy_s = now_s

    def _wall_ahead_s(self) -> float:
        return self._now_us() / SECOND_US - self._now_s()

    def _check_clock(self) -> None:
        jump_s = self._wall_ahead_s() - self._offset_s
        if abs(jump_s) > JUMP_S:
            self._offset_s += jump_s
            message = f"the wall clock of this machine jumped by {jump_s:+.0f} s; due times of boards follow no jump"
            self.fault(NewFault(Process.WORKER, FaultKind.CLOCK, message))

    def _check_hangs(self, products: Products) -> None:
        if not self._hang and (hang := self._watch.hanging(products.watched_line)) is not None:
            self._hang = f"{hang.words}; the worker ends, and is started again"
            self.fault(NewFault(Process.WORKER, FaultKind.EXPERT_HANGS, self._hang, hang.expert))

    def _write_faults(self) -> None:
        with self._database.writing() as connection:
            for new in self._faults:
                fault_log.note(connection, new, self._now_us())
            if self._database_fault is not None:  # it answers again
                fault_log.clear_about(connection, Process.WORKER, self._database_fault, now_us=self._now_us())
        self._faults.clear()
        self._database_fault = None

    def _in_danger(self, runs: Mapping[int, BoardRun], queue: Queue, now_s: float) -> list[Board]:
        under_way = sum(len(run.waiting) for run in runs.values())
        late = endangered(under_way, queue, now_s, self._speed.per_image_s)
        return list(islice((board for board in late if board.id not in self._named), NAMED_TOGETHER))

    def _experts(self, products: Products, now_s: float) -> Mapping[str, Any] | None:
        """Return what the pages show of the experts; None if that was written a short while ago."""
        if products.line is None or now_s - self._experts_s < EXPERTS_S:
            return None
        self._experts_s = now_s
        return self._watch.experts(products.line)

    def _facts(self, runs: Mapping[int, BoardRun], queue: Queue, products: Products) -> dict[str, Any]:
        line = products.line
        metrics = line.metrics() if line else None
        running = self._watch.running()
        return {
            "place": self._place,
            "recipes": sorted(product.name for product in products.current.values()),
            "queued": len(queue),
            "boards": [{"board": id, "done": len(run.results), "of": len(run.items.seen)} for id, run in runs.items()],
            "per_image_s": self._speed.per_image_s,
            "oldest_batch_s": running[0].age_s if running else 0.0,
            "images": metrics.images if metrics else 0,
            "switches": metrics.switches if metrics else 0,
            "peak_reserved_bytes": metrics.peak_reserved_bytes if metrics else 0,
            "budget_bytes": line.budget_bytes if line else 0,
        }
