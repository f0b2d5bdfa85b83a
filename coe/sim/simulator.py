"""Carries out the controller's commands in virtual time. The simulator makes no scheduling decision.

One disk serves all devices; each device has a lane on which weights are copied from host memory, and a processor that
its executors share. Events wait on a heap until their time comes. The controller answers an event with commands, and
each command starts work that ends in another event.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from coe.core import Request
from coe.results.metrics import Watcher
from coe.scheduler.controller import Controller
from coe.scheduler.costs import Tier
from coe.scheduler.events import (
    Arrived,
    Command,
    Event,
    Evict,
    Evicted,
    Fill,
    Filled,
    FillFailed,
    Finished,
    Load,
    Loaded,
    LoadFailed,
    Reply,
    Run,
    RunFailed,
    Why,
)
from coe.sim.oracle import Oracle
from coe.sim.resources import Processor, SimulatedLane

Span = Callable[[str | None, str, float, float], None]
"""Called when a device's copy lane (None: the disk) begins work, with (device, the work, begin, end) in seconds."""


class ArrivalView(Protocol):
    """See `coe.sim.workload.Arrival`."""

    @property
    def at_s(self) -> float: ...  # noqa: D102
    @property
    def request(self) -> Request: ...  # noqa: D102


class Faults:
    """The faults of a simulation; this base class has none."""

    def of_load(self, load: Load) -> str | None:
        """Return why a load fails; None if it succeeds."""
        return None

    def of_fill(self, fill: Fill) -> str | None:
        """Return why a fill of host memory fails; None if it succeeds."""
        return None

    def of_run(self, run: Run) -> str | None:
        """Return why a batch fails; None if it succeeds."""
        return None


@dataclass(frozen=True, slots=True)
class Speeds:
    """Figures that costs lack: the speed of each device by busy executors (see `Processor`), and an eviction's time."""

    scaling: Mapping[str, Sequence[float]] = field(default_factory=dict)
    evict_s: float = 0.0


class Simulator:
    """A box in virtual time; `now` is in seconds. Loads and batches take exactly what the cost table states.

    With `preloaded` the initial experts of the pools are resident at time 0 (the paper's initialization phase). `clock`
    measures the time of decisions; without it the watchers get 0.
    """

    def __init__(
        self,
        controller: Controller,
        oracle: Oracle,
        *,
        speeds: Speeds = Speeds(),
        watchers: Sequence[Watcher] = (),
        span: Span | None = None,
        faults: Faults | None = None,
        preloaded: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.controller, self.oracle = controller, oracle
        # The box is as the table states it, whatever the controller has come to expect.
        self._costs = controller.costs.stated
        self.now = 0.0
        self._watchers, self._span, self._faults = watchers, span, faults or Faults()
        self._evict_s, self._preloaded, self._clock = speeds.evict_s, preloaded, clock or (lambda: 0.0)
        devices = {pool.device for pool in controller.pools.values()}
        self._disk = SimulatedLane()
        self._lanes = {device: SimulatedLane() for device in devices}
        self._processors = {device: Processor(speeds.scaling.get(device, ())) for device in devices}
        self._preloads: list[Load] = []
        self._fill: Fill | None = None
        self._warming = False
        self._reading: dict[str, list[Load]] = {}
        self._requests: dict[int, Request] = {}
        self._runs: dict[str, tuple[Run, float]] = {}
        self._began: dict[tuple[str, str], float] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = count()

    def __repr__(self) -> str:
        return f"<Simulator at {self.now:.3f} s, {self.controller!r}>"

    def at(self, when_s: float, event: Event) -> None:
        """Let an event happen at a time."""
        self._when(when_s, lambda: self._step(event))

    def start(self, *, warm: bool = False) -> None:
        """Let the controller fill the pools; if `warm`, host memory is filled at once, too."""
        self._warming = warm
        self._step(None)
        for load in self._preloads:
            self._step(Loaded(load.pool, load.expert))
        while self._fill is not None:
            fill, self._fill = self._fill, None
            self._reading.pop(fill.expert)
            self._step(Filled(fill.device, fill.expert))
        self._warming = False

    def run(self, arrivals: Iterable[ArrivalView] = ()) -> None:
        """Go on until no event is left. Arrivals are taken one by one, in the order of their times."""
        coming = iter(arrivals)
        arrival = next(coming, None)
        while self._heap or arrival is not None:
            if arrival is not None and (not self._heap or arrival.at_s <= self._heap[0][0]):
                self.now = arrival.at_s
                self._step(Arrived(arrival.request))
                arrival = next(coming, None)
            else:
                self.now, _, happen = heapq.heappop(self._heap)
                happen()

    def _when(self, when_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when_s, next(self._ties), happen))

    def _step(self, event: Event | None) -> None:
        if isinstance(event, Arrived):
            self._requests[event.request.id] = event.request
        began = self._clock()
        commands = self.controller.start(self.now) if event is None else self.controller.handle(event, self.now)
        spent = self._clock() - began
        for watcher in self._watchers:
            watcher.observe(event, commands, self.now, spent)
        for command in commands:
            self._carry_out(command)
        self._serve()

    def _carry_out(self, command: Command) -> None:
        match command:
            case Load():
                self._load(command)
            case Fill():
                self._reading.setdefault(command.expert, [])
                self._fill = command
            case Evict():
                self.at(self.now + self._evict_s, Evicted(command.pool, command.expert))
            case Run():
                self._run(command)
            case Reply():
                self._requests.pop(command.result.request.id, None)

    # Loads: the disk, unless the host has a copy, then the lane of the device, unless its memory is the host's

    def _load(self, load: Load) -> None:
        if self._preloaded and load.why is Why.INITIAL:
            self._preloads.append(load)
        elif load.source is Tier.DISK:
            self._reading.setdefault(load.expert, [])
            self._disk.put(load)
        elif load.expert in self._reading:
            # The host's copy does not exist yet: the expert is still being read for another pool.
            self._reading[load.expert].append(load)
        else:
            self._lanes[self._device(load)].put(load)

    def _serve(self) -> None:
        while (load := self._disk.next()) is not None:
            self._serve_one(load, None, self._disk, self._disk_s(load), self._was_read)
        if self._fill is not None and not self._disk.busy and not self._warming:
            fill, self._fill = self._fill, None
            self._serve_fill(fill)
        for device, lane in self._lanes.items():
            while (load := lane.next()) is not None:
                self._serve_one(load, device, lane, self._copy_s(load), self._end_load)

    def _serve_one(
        self, load: Load, device: str | None, lane: SimulatedLane, took_s: float, then: Callable[[Load], None]
    ) -> None:
        self._began.setdefault((load.pool, load.expert), self.now)
        if self._span is not None:
            self._span(device, f"{load.pool} load {load.expert}", self.now, self.now + took_s)

        def end() -> None:
            lane.busy = False
            then(load)

        self._when(self.now + took_s, end)

    def _serve_fill(self, fill: Fill) -> None:
        self._disk.busy = True
        cost = self._costs(fill.device, fill.expert)
        took_s = cost.load_s - cost.copy_s
        if self._span is not None:
            self._span(None, f"{fill.device} fill {fill.expert}", self.now, self.now + took_s)

        def end() -> None:
            self._disk.busy = False
            reason, waiting = self._faults.of_fill(fill), self._reading.pop(fill.expert)
            for load in waiting:
                self._lanes[self._device(load)].put(load)
            if reason is None:
                self._step(Filled(fill.device, fill.expert, took_s))
            else:
                self._step(FillFailed(fill.device, fill.expert, reason))

        self._when(self.now + took_s, end)

    def _was_read(self, load: Load) -> None:
        to_copy = [load] if self._copy_s(load) > 0 else []
        for waiting in [*to_copy, *self._reading.pop(load.expert, [])]:
            self._lanes[self._device(waiting)].put(waiting)
        if to_copy:
            self._serve()
        else:
            self._end_load(load)

    def _end_load(self, load: Load) -> None:
        began = self._began.pop((load.pool, load.expert))
        reason = self._faults.of_load(load)
        if reason is None:
            self._step(Loaded(load.pool, load.expert, self.now - began))
        else:
            self._step(LoadFailed(load.pool, load.expert, reason))

    def _device(self, load: Load) -> str:
        return self.controller.pools[load.pool].device

    def _disk_s(self, load: Load) -> float:
        cost = self._costs(self._device(load), load.expert)
        return cost.load_s - cost.copy_s

    def _copy_s(self, load: Load) -> float:
        return self._costs(self._device(load), load.expert).copy_s

    # Batches

    def _run(self, run: Run) -> None:
        device = self.controller.executors[run.executor].device
        work_s = self._costs(device, run.batch.expert).batch_s(len(run.batch))
        self._runs[run.executor] = (run, self.now)
        self._processors[device].begin(run.executor, work_s, self.now)
        self._expect_end(device)

    def _expect_end(self, device: str) -> None:
        """Put the next end of a batch on the heap; it is void if a batch begins or ends on the processor before."""
        processor = self._processors[device]
        version, coming = processor.version, processor.next_end()
        if coming is not None:
            when_s, executor = coming
            self._when(when_s, lambda: self._end_run(device, executor, version))

    def _end_run(self, device: str, executor: str, version: int) -> None:
        processor = self._processors[device]
        if processor.version != version:
            return
        processor.end(executor, self.now)
        self._expect_end(device)
        run, began = self._runs.pop(executor)
        reason = self._faults.of_run(run)
        if reason is not None:
            self._step(RunFailed(executor, reason))
            return
        stages = run.batch.stages
        findings = tuple(self.oracle.find(self._requests[stage.request_id], stage.expert) for stage in stages)
        self._step(Finished(executor, findings, self.now - began))
