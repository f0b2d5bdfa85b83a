"""Counts of events and commands: a recorder watches them pass and changes nothing."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from coe.core import Verdict, second_looks
from coe.scheduler.costs import Tier
from coe.scheduler.events import (
    Arrived,
    Command,
    Event,
    Evict,
    Evicted,
    Fetched,
    Fill,
    Filled,
    FillFailed,
    Finished,
    Late,
    Load,
    Loaded,
    LoadFailed,
    PaceChanged,
    Rejected,
    Reply,
    RulesChanged,
    Run,
    RunFailed,
    Why,
)
from coe.scheduler.pool import ModelPool


class Watcher(Protocol):
    """Sees every step of a run, in the engine and in the simulator, and changes nothing."""

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Take in an event (None at the start), the commands that answer it, and the seconds that deciding took."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """A run so far. Times are in seconds; `switch_bytes` are the bytes that the timed switches moved, bodies included.

    A switch is a load because a stage needs an expert that is not resident, or is foreseen to; `hit_ratio` is the share
    of stages that did not cause one. `speculated` switches were for images that had not come: of these experts
    `speculated_used` have run since, and `speculated_wasted` left before they ran, or could not be loaded. `disk_loads`
    are the switches that found no copy in host memory, `fills` the experts that an idle disk read into host memory.
    `control_s` is the time of decisions, `wall_s` runs from the first image handed in to the last event other than a
    move of weights. `escalated` findings were run again in full precision, which took `escalated_s` of `run_s`;
    `changed` of them got other labels. `late` results came after they were due; `late_boards` were named as certain to
    miss (a board that comes back after all its images had results counts again). `pace` tells how many times as long as
    the cost table states batches take now, on the slowest device.
    """

    images: int
    ok: int
    ng: int
    review: int
    errors: int
    stages: int
    batches: int
    switches: int
    disk_loads: int
    initial_loads: int
    speculated: int
    speculated_used: int
    speculated_wasted: int
    fills: int
    evictions: int
    switch_s: float
    switch_bytes: int
    run_s: float
    control_s: float
    wall_s: float
    peak_reserved_bytes: int
    escalated: int
    changed: int
    escalated_s: float
    late: int
    late_boards: int
    pace: float

    @property
    def images_per_s(self) -> float:
        """Replies a second of wall time."""
        return self.images / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def hit_ratio(self) -> float:
        """1 - switches / stages; 1 before anything ran."""
        return max(0.0, 1 - self.switches / self.stages) if self.stages else 1.0


_WITHOUT_IMAGES = (Filled, FillFailed, Fetched, Loaded, Evicted)


class Recorder:
    """Counts events and commands as they pass; `now` is the driver's clock in seconds.

    `second_looks` are the ids of the experts that look again (`Router.second_looks`).
    """

    def __init__(self, pools: Mapping[str, ModelPool], second_looks: Collection[str] = ()) -> None:
        self._pools, self._second_looks = pools, second_looks
        self._verdicts: dict[Verdict | None, int] = dict.fromkeys([*Verdict, None], 0)
        self._stages = self._batches = self._evictions = self._disk_loads = 0
        self._loads = dict.fromkeys(Why, 0)
        self._switches_under_way: set[tuple[str, str]] = set()
        self._speculated: set[tuple[str, str]] = set()
        self._wasted = 0
        self._switch_s = self._run_s = self._control_s = self._escalated_s = 0.0
        self._switch_bytes = self._escalated = self._changed = 0
        self._late = self._late_boards = 0
        self._paces: dict[str, float] = {}
        self._running: defaultdict[str, deque[str]] = defaultdict(deque)
        self._began_s: float | None = None
        self._now_s = 0.0

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Count one step: the event that came in (None at the start) and the commands that answer it."""
        self._control_s += control_s
        # Filling and loading ahead go on without images, and must not make a run longer.
        if not isinstance(event, _WITHOUT_IMAGES):
            self._now_s = now
        if isinstance(event, (Arrived, Rejected)):
            # Like a latency, a run begins when its first image is handed in, not when the image has been decoded.
            self._began_s = min(event.request.since_s(now), math.inf if self._began_s is None else self._began_s)
        elif isinstance(event, (Finished, RunFailed)):
            expert = self._running[event.executor].popleft()
            took_s = event.took_s if isinstance(event, Finished) else 0.0
            self._run_s += took_s
            self._escalated_s += took_s if expert in self._second_looks else 0.0
        elif isinstance(event, Loaded):
            self._loaded(event)
        elif isinstance(event, RulesChanged):
            self._second_looks = event.router.second_looks
        elif isinstance(event, LoadFailed) and (event.pool, event.expert) in self._speculated:
            self._speculated.discard((event.pool, event.expert))
            self._wasted += 1
        for command in commands:
            self._count(command)

    def _loaded(self, event: Loaded) -> None:
        pool, load = self._pools.get(event.pool), (event.pool, event.expert)
        if pool is not None and load in self._switches_under_way:
            self._switches_under_way.discard(load)
            self._switch_s += event.took_s
            # Events that were decided on together may have taken it away again, as the loss of its device does.
            if pool.state(event.expert) is not None:
                self._switch_bytes += pool.size(event.expert)

    def _count(self, command: Command) -> None:
        match command:
            case Run():
                self._batches += 1
                self._stages += len(command.batch)
                self._running[command.executor].append(command.batch.expert)
            case Load():
                self._loads[command.why] += 1
                if command.why is not Why.INITIAL:
                    self._disk_loads += command.source is Tier.DISK
                    self._switches_under_way.add((command.pool, command.expert))
                if command.why is Why.SPECULATIVE:
                    self._speculated.add((command.pool, command.expert))
            case Evict():
                self._evictions += 1
                if (command.pool, command.expert) in self._speculated:
                    self._speculated.discard((command.pool, command.expert))
                    self._wasted += self._pools[command.pool].unused(command.expert)
            case Fill():
                self._loads[Why.FILL] += 1
            case Late():
                self._late_boards += 1
            case PaceChanged():
                self._paces[command.where] = command.pace
            case Reply():
                self._late += command.result.late
                self._verdicts[command.result.verdict] += 1
                looks = second_looks(command.result.findings)
                self._escalated += len(looks)
                self._changed += sum(look.changed for look in looks)

    def metrics(self) -> Metrics:
        """Return the counts so far."""
        # Any thread may ask while the control thread counts: a set is copied in one step.
        waiting = sum(self._pools[id].unused(expert) for id, expert in tuple(self._speculated))
        return Metrics(
            images=sum(self._verdicts.values()),
            ok=self._verdicts[Verdict.OK],
            ng=self._verdicts[Verdict.NG],
            review=self._verdicts[Verdict.REVIEW],
            errors=self._verdicts[None],
            stages=self._stages,
            batches=self._batches,
            switches=self._loads[Why.DEMAND] + self._loads[Why.PREFETCH] + self._loads[Why.SPECULATIVE],
            disk_loads=self._disk_loads,
            initial_loads=self._loads[Why.INITIAL],
            speculated=self._loads[Why.SPECULATIVE],
            speculated_used=self._loads[Why.SPECULATIVE] - self._wasted - waiting,
            speculated_wasted=self._wasted,
            fills=self._loads[Why.FILL],
            evictions=self._evictions,
            switch_s=self._switch_s,
            switch_bytes=self._switch_bytes,
            run_s=self._run_s,
            control_s=self._control_s,
            wall_s=0.0 if self._began_s is None else self._now_s - self._began_s,
            peak_reserved_bytes=sum(pool.peak_bytes for pool in self._pools.values()),
            escalated=self._escalated,
            changed=self._changed,
            escalated_s=self._escalated_s,
            late=self._late,
            late_boards=self._late_boards,
            pace=max(tuple(self._paces.values()), default=1.0),
        )
