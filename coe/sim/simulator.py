"""Carries out the controller's commands in virtual time. The simulator makes no scheduling decision.

One disk serves all devices; each device has a lane on which weights are copied from host memory, and a processor that
its executors share. Events wait on a heap until their time comes. The controller answers an event with commands, and
each command starts work that ends in another event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coe.core import Request
from coe.results.metrics import Watcher
from coe.scheduler.controller import Controller
from coe.scheduler.costs import CostTable, Tier
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
    GiveUp,
    Load,
    Loaded,
    LoadFailed,
    Reply,
    Run,
    RunFailed,
)
from coe.scheduler.load_queue import READER, LoadQueue
from coe.sim.agenda import Agenda, Arrival
from coe.sim.oracle import Oracle
from coe.sim.resources import Processor

Span = Callable[[str | None, str, float, float], None]
"""Called when a device's copy lane (None: the disk) begins work, with (device, the work, begin, end) in seconds."""


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

    With `preloaded` the initial experts of the pools are resident at time 0 (the paper's initialization phase). The
    clock of the `agenda` measures the time of decisions. Several boxes share an agenda.
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
        agenda: Agenda | None = None,
    ) -> None:
        self.controller, self.oracle = controller, oracle
        self._agenda = agenda or Agenda()
        self.is_lost = False
        """Whether the box is dark: see `lose`."""
        self._watchers, self._span, self._faults = watchers, span, faults or Faults()
        self._evict_s, self._preloaded = speeds.evict_s, preloaded
        devices = {pool.device for pool in controller.pools.values()}
        copying = {device for device in devices if self._copies(device)}
        self._lanes = LoadQueue({id: pool.device for id, pool in controller.pools.items()}, copying)
        self._processors = {device: Processor(speeds.scaling.get(device, ())) for device in devices}
        self._pools = {executor.id: executor.pool.id for executor in controller.executors.values()}
        self._devices = {executor.id: executor.device for executor in controller.executors.values()}
        self._preloads: deque[Load | Fill] = deque()
        self._warming = self._is_preloading = False
        cache = controller.cache
        self._fills_first = preloaded and cache is not None and not cache.spec.demotes
        self._requests: dict[int, Request] = {}
        self._runs: dict[str, deque[Run]] = {id: deque() for id in controller.executors}
        self._run_began: dict[str, float] = {}
        self._began: dict[tuple[str, str], float] = {}

    def __repr__(self) -> str:
        return f"<Simulator at {self.now:.3f} s, {self.controller!r}>"

    @property
    def now(self) -> float:
        """The time in seconds."""
        return self._agenda.now

    @property
    def _costs(self) -> CostTable:
        """The box is as the table states it, whatever the controller has come to expect."""
        return self.controller.costs.stated

    def at(self, when_s: float, event: Event) -> None:
        """Let an event happen at a time."""
        self._when(when_s, lambda: self._step(event))

    def take(self, event: Event) -> None:
        """Let an event happen now."""
        self._step(event)

    def lose(self) -> None:
        """Let the box go dark: it answers nothing from now on, and whatever is under way there has no end."""
        self.is_lost = True

    def start(self, *, warm: bool = False) -> None:
        """Let the controller fill the pools; if `warm`, host memory is filled at once, too.

        Preloading fills a cache that reads through in any case (the paper's initialization phase).
        """
        self._warming = warm or self._fills_first
        self._is_preloading = self._preloaded
        self._step(None)
        while self._preloads:
            command = self._preloads.popleft()
            if isinstance(command, Fill):
                self._step(Filled(command.device, command.expert))
            else:
                self._step(Loaded(command.pool, command.expert))
        self._warming = self._is_preloading = False

    def run(self, arrivals: Iterable[Arrival] = ()) -> None:
        """Go on until no event is left. Arrivals are taken one by one, in the order of their times."""
        self._agenda.run(arrivals, lambda request: self._step(Arrived(request)))

    def _when(self, when_s: float, happen: Callable[[], None]) -> None:
        self._agenda.at(when_s, happen)

    def _step(self, event: Event | None) -> None:
        if self.is_lost:
            return
        if isinstance(event, Arrived):
            self._requests[event.request.id] = event.request
        began = self._agenda.clock()
        commands = self.controller.start(self.now) if event is None else self.controller.handle(event, self.now)
        spent = self._agenda.clock() - began
        for watcher in self._watchers:
            watcher.observe(event, commands, self.now, spent)
        for command in commands:
            self._carry_out(command)
        self._serve()

    def _carry_out(self, command: Command) -> None:
        match command:
            case Load() | Fill():
                self._bring(command)
            case Evict():
                self.at(self.now + self._evict_s, Evicted(command.pool, command.expert))
            case Run():
                self._run(command)
            case Reply():
                self._requests.pop(command.result.request.id, None)
            case GiveUp():
                raise command.error

    # Loads and fills

    def _bring(self, command: Load | Fill) -> None:
        if self._warming if isinstance(command, Fill) else self._is_preloading:
            self._preloads.append(command)
        else:
            self._lanes.put(command)

    def _serve(self) -> None:
        for place in self._lanes.places:
            command = self._lanes.begin(place)
            if isinstance(command, Fill):
                self._serve_fill(command)
            elif command is not None:
                self._serve_one(command, place)

    def _serve_fill(self, fill: Fill) -> None:
        took_s = self._disk_s(fill.device, fill.expert)
        if self._span is not None:
            self._span(READER, f"{fill.device} fill {fill.expert}", self.now, self.now + took_s)
        self._when(self.now + took_s, lambda: self._end_fill(fill, took_s))

    def _end_fill(self, fill: Fill, took_s: float) -> None:
        reason = self._faults.of_fill(fill)
        self._lanes.end(READER, failed=reason is not None)
        if reason is None:
            self._step(Filled(fill.device, fill.expert, took_s))
        else:
            self._step(FillFailed(fill.device, fill.expert, reason))

    def _serve_one(self, load: Load, place: str | None) -> None:
        device = self._device(load.pool)
        reads = place is READER and load.source is Tier.DISK
        cost = self._costs(device, load.expert)
        took_s = cost.load_s - cost.copy_s if reads else cost.copy_s
        what = f"{load.pool} load {load.expert}"
        self._began.setdefault((load.pool, load.expert), self.now)
        if self._span is not None:
            self._span(place, what, self.now, self.now + took_s)
        self._when(self.now + took_s, lambda: self._end_leg(load, place))

    def _end_leg(self, load: Load, place: str | None) -> None:
        if place is READER and self._lanes.passes_lane(load):
            self._lanes.end(place)
            self._step(Fetched(load.pool, load.expert))
            return
        began = self._began.pop((load.pool, load.expert))
        reason = self._faults.of_load(load)
        self._lanes.end(place, failed=reason is not None)
        if reason is None:
            self._step(Loaded(load.pool, load.expert, self.now - began))
        else:
            self._step(LoadFailed(load.pool, load.expert, reason))

    def _device(self, pool: str) -> str:
        return self.controller.pools[pool].device

    def _copies(self, device: str) -> bool:
        """Return whether a device has a copy lane: its memory is not the host's."""
        return any(self._costs(device, expert).copy_s > 0 for expert in self.controller.graph.experts)

    def _disk_s(self, device: str, expert: str) -> float:
        cost = self._costs(device, expert)
        return cost.load_s - cost.copy_s

    # Batches

    def _run(self, run: Run) -> None:
        self._runs[run.executor].append(run)
        if len(self._runs[run.executor]) == 1:
            self._begin_run(run)

    def _begin_run(self, run: Run) -> None:
        """Begin the oldest batch of an executor; the batch behind it waits for its end."""
        device = self._devices[run.executor]
        work_s = self._costs(device, run.batch.expert).batch_s(len(run.batch))
        self._run_began[run.executor] = self.now
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
        run, began = self._runs[executor].popleft(), self._run_began[executor]
        if self._runs[executor]:
            self._begin_run(self._runs[executor][0])
        reason = self._faults.of_run(run)
        if reason is not None:
            self._step(RunFailed(executor, reason))
            return
        findings = tuple(self.oracle.find(self._requests[stage.request_id], stage.expert) for stage in run.batch.stages)
        self._step(Finished(executor, findings, self.now - began))
