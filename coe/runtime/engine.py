"""Carries out a decider's commands with threads: one that decides, lanes that load, executors that run.

All that happens comes through one inbox to the control thread, which alone touches the decider. Nothing that runs
models, reads disks or calls a user's code runs on it; only watchers, which must be quick.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from coe.core import Expert, Request, Result
from coe.errors import CoeError, DeviceLost
from coe.events import (
    Arrived,
    Command,
    Event,
    Evict,
    Finished,
    Load,
    Lost,
    Rejected,
    Reply,
    Run,
    RunFailed,
    Stopped,
)
from coe.kinds import Image, Kind, Prepared
from coe.metrics import Metrics, Recorder, Watcher
from coe.runtime.decider import Decider
from coe.runtime.device import Device
from coe.runtime.lane import Disk, Lane, reason_of

Source = Callable[[], Image]
"""Gives the decoded picture, (H, W, 3) uint8 RGB; called on a worker, again for each further expert."""
Trace = list[tuple[float, Event | None, list[Command]]]


@dataclass(slots=True)
class _Job:
    """What the engine keeps of a request until its reply."""

    request: Request
    source: Source
    future: Future[Result]
    prepared: dict[str, Prepared] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Crash:
    """A thread met what must not happen."""

    error: Exception


def _crashing(inbox: queue.SimpleQueue[Event | _Crash | None]) -> Callable[[Exception], None]:
    return lambda error: inbox.put(_Crash(error))


class Engine:
    """Runs a decider in real time on real devices, reading weights from `disk`.

    `workers` threads decode. `watchers` see every step, on the control thread.
    With `keep_trace` every event and the commands that answered it are kept, for replay.
    """

    def __init__(
        self,
        controller: Decider,
        devices: Mapping[str, Device],
        experts: Mapping[str, Expert],
        kinds: Mapping[str, Kind],
        *,
        disk: Disk | None = None,
        workers: int = 2,
        watchers: Sequence[Watcher] = (),
        keep_trace: bool = False,
    ) -> None:
        self.controller, self.devices, self.experts, self.kinds = controller, devices, experts, kinds
        self.trace: Trace | None = [] if keep_trace else None
        self._recorder = Recorder(controller.pools)
        self._watchers = (self._recorder, *watchers)
        self._jobs: dict[int, _Job] = {}
        self._ids = itertools.count()
        self._inbox: queue.SimpleQueue[Event | _Crash | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[tuple[Future[Result], Result] | None] = queue.SimpleQueue()
        self._runs: dict[str, queue.SimpleQueue[Run | None]] = {id: queue.SimpleQueue() for id in controller.executors}
        # Of the inbox alone, not of this engine: no cycle keeps weights mapped until garbage is collected.
        tell, crash = self._inbox.put, _crashing(self._inbox)
        disk = disk or Disk({}, None)
        self._lanes = {
            name: Lane(name, device, experts, disk, tell=tell, crash=crash) for name, device in devices.items()
        }
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="coe-decode")
        self._failure: str | None = None
        self._filled = False
        self._settled = threading.Event()
        self._began = time.monotonic()
        threads: list[tuple[str, Callable[..., None], tuple[str, ...]]] = [
            ("coe-control", self._control, ()),
            ("coe-reply", self._answer, ()),
            *((f"coe-lane-{name}", lane.work, ()) for name, lane in self._lanes.items()),
            *((f"coe-executor-{id}", self._execute, (id,)) for id in controller.executors),
        ]
        self._threads = [threading.Thread(target=t, args=a, name=n, daemon=True) for n, t, a in threads]
        for thread in self._threads:
            thread.start()

    def submit(self, request: Request, source: Source) -> Future[Result]:
        """Take in an image; the future's result is its one reply, errors included."""
        job = _Job(request, source, Future())
        # A reply cannot be called off: `cancel` on the future says no from here on.
        job.future.set_running_or_notify_cancel()
        self._jobs[request.id] = job
        self._workers.submit(self._receive, job)
        return job.future

    def now(self) -> float:
        """Return the time on the clock of this line, in seconds: that of all events, and of when requests are due."""
        return time.monotonic() - self._began

    def next_id(self) -> int:
        """Return a fresh request id."""
        return next(self._ids)

    def metrics(self) -> Metrics:
        """Return the counts so far."""
        return self._recorder.metrics()

    def ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the pools hold what they begin with; return False if that has not come about, or never will."""
        self._settled.wait(timeout_s)
        return self._filled

    def stop(self) -> None:
        """Finish the batches that run and answer everything else with an error."""
        self._inbox.put(Stopped())

    def close(self) -> None:
        """End all threads and let the devices go. Call it when every reply is in."""
        self._workers.shutdown()
        self._inbox.put(None)
        for runs in self._runs.values():
            runs.put(None)
        for lane in self._lanes.values():
            lane.close()
        self._replies.put(None)
        for thread in self._threads:
            thread.join()
        self._settled.set()
        # Who keeps a closed line, for what it counted, keeps none of its memory.
        self.devices = {}
        self._lanes.clear()

    # Workers

    def _receive(self, job: _Job) -> None:
        """Decode and prepare for the first expert before the request arrives: decisions never wait for pixels."""
        event: Event
        try:
            first = self.controller.router.first(job.request.component).expert
            job.prepared[first] = self._prepare(job, first)
            event = Arrived(job.request)
        except CoeError as error:
            event = Rejected(job.request, str(error))
        except Exception as error:
            event = Rejected(job.request, f"{type(error).__name__} while decoding: {error}")
        self._inbox.put(event)

    def _prepare(self, job: _Job, expert: str) -> Prepared:
        spec = self.experts[expert]
        return self.kinds[spec.kind].preprocess(job.source(), spec)

    # The control thread

    def _control(self) -> None:
        try:
            self._step(None)
            while (event := self._inbox.get()) is not None:
                if isinstance(event, _Crash):
                    raise event.error
                self._step(event)
        except Exception as error:
            # A bug of ours; still every image gets its reply, and the reply says why the line stands.
            self._failure = f"the engine failed: {type(error).__name__}: {error}"
            self._settled.set()
            self._give_up()
            while (event := self._inbox.get()) is not None:
                self._give_up()

    def _step(self, event: Event | None) -> None:
        now = self.now()
        began = time.perf_counter()
        commands = self.controller.start(now) if event is None else self.controller.handle(event, now)
        spent = time.perf_counter() - began
        # Counted first: who has a result finds it counted.
        for watcher in self._watchers:
            watcher.observe(event, commands, now, spent)
        if self.trace is not None:
            self.trace.append((now, event, commands))
        for command in commands:
            self._carry_out(command)
        if not self._filled and not any(pool.is_moving() for pool in self.controller.pools.values()):
            self._filled = True
            self._settled.set()

    def _carry_out(self, command: Command) -> None:
        match command:
            case Load() | Evict():
                self._lanes[self.controller.pools[command.pool].device].put(command)
            case Run():
                self._runs[command.executor].put(command)
            case Reply():
                job = self._jobs.pop(command.result.request.id)
                self._replies.put((job.future, command.result))

    def _give_up(self) -> None:
        for id in list(self._jobs):
            job = self._jobs.pop(id)
            self._replies.put((job.future, Result(job.request, None, (), 0.0, self._failure)))

    # Executors, replies

    def _execute(self, name: str) -> None:
        executor, runs = self.controller.executors[name], self._runs[name]
        device = self.devices[executor.device]
        device.enter(name)
        while (command := runs.get()) is not None:
            expert = self.experts[command.batch.expert]
            began = time.perf_counter()
            try:
                jobs = [self._jobs[stage.request_id] for stage in command.batch.stages]
                images = self._prepared(jobs, expert.id)
                findings = device.run(name, executor.pool.id, expert, images)
            except Exception as error:
                if isinstance(error, DeviceLost):
                    self._inbox.put(Lost(executor.device, str(error)))
                self._inbox.put(RunFailed(name, reason_of(error)))
            else:
                self._inbox.put(Finished(name, tuple(findings), time.perf_counter() - began))

    def _prepared(self, jobs: list[_Job], expert: str) -> list[Prepared]:
        """Return the batch's images; those of later stages are decoded again, in parallel, rather than kept."""
        futures: list[Any] = [
            None if expert in job.prepared else self._workers.submit(self._prepare, job, expert) for job in jobs
        ]
        return [
            job.prepared.pop(expert) if future is None else future.result()
            for job, future in zip(jobs, futures, strict=True)
        ]

    def _answer(self) -> None:
        while (reply := self._replies.get()) is not None:
            future, result = reply
            future.set_result(result)
