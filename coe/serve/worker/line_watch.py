"""Watches a line and changes nothing: which experts lie in memory, which boards will be late, and what hangs.

Nothing in a process can end a thread that hangs in an expert's code, or on a disk that does not answer; so the process
ends, no thread is waited for, and whoever runs it starts it again. Whatever a board waits for on a thread is watched
here, or has its own end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coe.core import Batch
from coe.errors import CoeError, ConfigError
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.events import Command, Event, Evicted, Finished, Late, Load, Loaded, LoadFailed, Lost, Run, RunFailed

if TYPE_CHECKING:
    from coe.inspector.line import Line


FACTOR = 20.0  # a batch hangs only once it has taken so many times the time that its costs forecast


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
    since_s: float = 0.0  # when the first of its batches began: the next begins when the one before ends
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
        """Note what came, went, began and ended, on the deciding thread; `now` is of the line's own clock."""
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
        """Return a part of the line, open or being opened, that hangs; None if none does."""
        found = None
        if line is not None:
            # The largest picture is read and prepared in seconds, and none waits for its turn there. Batches come last:
            # a batch may wait for a picture that is read again.
            decoding = picture_hang(line.longest_decoding_s(), self.hangs_after_s)
            found = decoding or self._hanging_load(line) or self._hanging_batch(line)
        return found or next(filter(None, (watch() for watch in self.further)), None)

    def _hanging_load(self, line: Line) -> Hang | None:
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
