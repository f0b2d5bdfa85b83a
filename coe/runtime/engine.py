"""Carries out the controller's commands with threads: one that decides, lanes that load, executors that run.

All that happens comes through one inbox to the control thread, which alone touches the controller. Nothing that runs
models, reads disks or calls a user's code runs on it.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from coe.controller import Controller
from coe.core import Expert, Request, Result
from coe.errors import CoeError
from coe.events import (
    Arrived,
    Command,
    Event,
    Evict,
    Evicted,
    Finished,
    Load,
    Loaded,
    LoadFailed,
    Rejected,
    Reply,
    Run,
    RunFailed,
    Stopped,
)
from coe.kinds import Image, Kind, Prepared
from coe.metrics import Metrics, Recorder
from coe.runtime.device import Device

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


class Engine:
    """Runs a controller in real time on real devices.

    `workers` threads decode. With `keep_trace` every event and the commands that answered it are kept, for replay.
    """

    def __init__(
        self,
        controller: Controller,
        devices: Mapping[str, Device],
        experts: Mapping[str, Expert],
        kinds: Mapping[str, Kind],
        *,
        workers: int = 2,
        keep_trace: bool = False,
    ) -> None:
        self.controller, self.devices, self.experts, self.kinds = controller, devices, experts, kinds
        self.trace: Trace | None = [] if keep_trace else None
        self._recorder = Recorder(controller.pools)
        self._jobs: dict[int, _Job] = {}
        self._ids = itertools.count()
        self._inbox: queue.SimpleQueue[Event | _Crash | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[tuple[Future[Result], Result] | None] = queue.SimpleQueue()
        self._runs: dict[str, queue.SimpleQueue[Run | None]] = {id: queue.SimpleQueue() for id in controller.executors}
        self._lanes: dict[str, queue.PriorityQueue[tuple[int, int, Load | Evict | None]]] = {
            device: queue.PriorityQueue() for device in devices
        }
        self._turn = itertools.count()
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="coe-decode")
        self._failure: str | None = None
        self._began = time.monotonic()
        threads: list[tuple[str, Callable[..., None], tuple[str, ...]]] = [
            ("coe-control", self._control, ()),
            ("coe-reply", self._answer, ()),
            *((f"coe-lane-{device}", self._copy, (device,)) for device in devices),
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

    def next_id(self) -> int:
        """Return a fresh request id."""
        return next(self._ids)

    def metrics(self) -> Metrics:
        """Return the counts so far."""
        return self._recorder.metrics()

    def stop(self) -> None:
        """Finish the batches that run and answer everything else with an error."""
        self._inbox.put(Stopped())

    def close(self) -> None:
        """End all threads. Call it when every reply is in."""
        self._workers.shutdown()
        self._inbox.put(None)
        for runs in self._runs.values():
            runs.put(None)
        for lane in self._lanes.values():
            lane.put((-2, next(self._turn), None))
        self._replies.put(None)
        for thread in self._threads:
            thread.join()

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

    def _now(self) -> float:
        return time.monotonic() - self._began

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
            self._give_up()
            while (event := self._inbox.get()) is not None:
                self._give_up()

    def _step(self, event: Event | None) -> None:
        now = self._now()
        began = time.perf_counter()
        commands = self.controller.start(now) if event is None else self.controller.handle(event, now)
        spent = time.perf_counter() - began
        self._recorder.observe(event, commands, now, spent)
        if self.trace is not None:
            self.trace.append((now, event, commands))
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Load():
                device = self.controller.pools[command.pool].device
                self._lanes[device].put((command.why.urgency, next(self._turn), command))
            case Evict():
                # Before any load: evictions are what loads wait for.
                device = self.controller.pools[command.pool].device
                self._lanes[device].put((-1, next(self._turn), command))
            case Run():
                self._runs[command.executor].put(command)
            case Reply():
                job = self._jobs.pop(command.result.request.id)
                self._replies.put((job.future, command.result))

    def _give_up(self) -> None:
        for id in list(self._jobs):
            job = self._jobs.pop(id)
            self._replies.put((job.future, Result(job.request, None, (), 0.0, self._failure)))

    # Lanes, executors, replies

    def _copy(self, name: str) -> None:
        device, lane = self.devices[name], self._lanes[name]
        while (command := lane.get()[2]) is not None:
            expert = self.experts[command.expert]
            if isinstance(command, Evict):
                try:
                    device.evict(command.pool, expert)
                except Exception as error:
                    self._inbox.put(_Crash(error))
                else:
                    self._inbox.put(Evicted(command.pool, command.expert))
                continue
            began = time.perf_counter()
            try:
                device.load(command.pool, expert)
            except Exception as error:
                self._inbox.put(LoadFailed(command.pool, command.expert, _reason(error)))
            else:
                self._inbox.put(Loaded(command.pool, command.expert, time.perf_counter() - began))

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
                self._inbox.put(RunFailed(name, _reason(error)))
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


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, CoeError) else f"{type(error).__name__}: {error}"
