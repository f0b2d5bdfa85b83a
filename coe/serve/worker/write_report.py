"""What the worker tells of itself: state, faults, boards in danger, signs of life. Only `worked` and `say` write."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coe.serve.clock import SECOND_US, Clocks
from coe.serve.database import board_rows, fault_log, states
from coe.serve.database.connecting import Database, DatabaseError, DatabaseErrorKind
from coe.serve.database.tables import Board, NewFault
from coe.serve.enums import FaultKind, LineState, Process, Subject
from coe.serve.worker.line_watch import LineHangs, LineWatch
from coe.serve.worker.verdicts import BoardRun, Queue, Queued

if TYPE_CHECKING:
    from coe.serve.worker.product import Products


BEAT_S = 1.0  # how often the worker gives a sign of life
EXPERTS_S = 10.0  # how often it says which experts are in memory: for hundreds of experts that is much to write
QUIET_S = 2.0  # how long no board must be under way until the line says that it waits
JUMP_S = 2.0  # a wall clock that differs by more from the monotonic clock than before has jumped
NAMED_TOGETHER = 50  # waiting boards in danger are named in one sign of life at most: each costs a lock
SHORTEN_S = 300.0  # how often the database's log is cut
MEMORY = 200.0  # after about so many images the estimate of the line's speed has forgotten what was before


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
        """Write what is new after a round; raises DatabaseError, and LineHangs once that fault is written."""
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
            message = f"the wall clock of this machine jumped by {jump_s:+.0f} s; due times of boards are not affected"
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
