"""Carries out a controller's commands with threads: the control thread decides, lanes load, executors run.

All events come through one queue to the control thread, which alone changes the controller. It runs no model and reads
no disk. The user's code that it calls is watchers and policies: they must be quick, and what they raise ends the line.

Law: every image that is taken in gets exactly one reply, whatever a user's code raises (SystemExit, too), whatever
fails, and however the line ends. It is a job from `submit` until `_reply`.

(1) A decode thread reads the picture, proves it, and makes the input of its first expert; then it tells `Arrived`, or
    `Rejected` with the reason. Decisions never wait for pixels.
(2) Of what a job is told, the first event counts, and marks it (`has_come`). An interrupt in `submit`, a stop and the
    decode thread may all speak of one job; what comes later is dropped (`_new`).
(3) The control thread takes what has come meanwhile, at most `_MOST_TOGETHER` events, hands it to the controller as
    one, and carries out the commands in order. Watchers see a step before its replies go out: who has a result finds
    it counted.
(4) The end:
    (4a) `close` puts None into the queue. The control thread goes on until no job is left, then lets the others end:
         decode threads, lanes, executors, and last the reply thread.
    (4b) `stop` answers pictures that are still being read at once, because a read may never come back. What runs ends,
         all else gets the failure STOPPED.
    (4c) An error on the control thread, a `GiveUp` or a `Crash` ends the line: each job gets the reason (`_give_up`).
         A step that was decided is not lost: its replies go out before the error is raised.
    (4d) Threads that do not end in time are left behind, and the devices are let go by the control thread.

Threads refer to the queue and not to the engine where they can: a cycle would keep weights in memory until garbage
collection.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from coe.board.router import Router
from coe.core import Expert, Failure, FailureKind, Request
from coe.errors import CoeError, RulesError, place_of, sentence_of
from coe.pictures.image_source import ImageSource
from coe.results.metrics import Metrics, Recorder, Watcher
from coe.runtime.copy_lane import CopyLanes, Disk
from coe.runtime.device import Device
from coe.runtime.inputs import ANY_SIZE, Decoding, ImageInputs, Inputs
from coe.runtime.line_engine import Crash, Job, LineEngine, Pending, end_at_exit
from coe.runtime.runner import Runner
from coe.scheduler.controller import Controller
from coe.scheduler.events import (
    Arrived,
    Command,
    Event,
    EventBatch,
    Evict,
    Fill,
    GiveUp,
    Load,
    Rejected,
    Reply,
    RulesChanged,
    Run,
    Stopped,
    Trace,
    single_steps,
)
from coe.scheduler.failures import STOPPED
from coe.store.runnable_kinds import ExpertInput, RunnableKind

_LAST_READ_S = 1.0
"""How long a stopped line that is closed waits for pictures that are read and prepared for nobody."""
_MOST_TOGETHER = 64
"""How many events are taken in before a decision: executors wait meanwhile."""


@dataclass(slots=True)
class ImageJob(Job):
    """What the engine keeps for a request until its reply."""

    image: ImageInputs
    has_come: bool = False
    """Whether an event of it counts (2)."""


def _threads(functions: Mapping[str, Callable[[], None]]) -> list[threading.Thread]:
    """Return a thread for each function, by the thread's name; none is started."""
    return [threading.Thread(target=function, name=name, daemon=True) for name, function in functions.items()]


class Engine(LineEngine[Event, ImageJob]):
    """Runs a controller in real time on real devices, reading weights from `disk`.

    `watchers` see each step, on the control thread. `keep_trace` keeps each event and its commands, for replay.
    """

    def __init__(
        self,
        controller: Controller,
        devices: Mapping[str, Device],
        experts: Mapping[str, Expert],
        kinds: Mapping[str, RunnableKind],
        *,
        disk: Disk | None = None,
        decoding: Decoding = ANY_SIZE,
        watchers: Sequence[Watcher] = (),
        keep_trace: bool = False,
    ) -> None:
        super().__init__()
        self.controller, self.devices, self.kinds = controller, devices, kinds
        # All threads look into it; `learn` alone adds to it.
        self.experts = dict(experts)
        self.trace: Trace | None = [] if keep_trace else None
        self._recorder = Recorder(controller.pools, controller.router.second_looks)
        self._watchers = (self._recorder, *watchers)
        tell = self._queue.put
        pools = {id: pool.device for id, pool in controller.pools.items()}
        self._copy_lanes = CopyLanes(
            devices, pools, self.experts, disk or Disk({}), tell=tell, crash=lambda error: tell(Crash(error))
        )
        self._runners = {
            id: Runner(executor, devices[executor.device], self.experts, prepared=self._prepared, tell=tell)
            for id, executor in controller.executors.items()
        }
        self._inputs = Inputs(controller.router, self.experts, kinds, decoding)
        at_devices = self._copy_lanes.thread_functions()
        for runner in self._runners.values():
            at_devices |= runner.thread_functions()
        self._at_devices = _threads(at_devices)
        others: dict[str, Callable[[], None]] = {"coe-control": self._control, "coe-reply": self._answer}
        # The control thread waits for those at devices when it ends, so they start before it.
        self._threads = [*self._at_devices, *_threads(others), *self._inputs.workers.threads]
        self.line_threads.threads = frozenset(self._threads)
        end_at_exit(self)
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # the system is out of threads
            self._queue.put(None)
            self._end_others()
            raise

    def __repr__(self) -> str:
        return repr(self.controller)

    def _new_job(self, request: Request, source: ImageSource, future: Pending) -> ImageJob:
        return ImageJob(request, future, ImageInputs(source))

    def _take_in(self, job: ImageJob, source: ImageSource, refused: Failure | None) -> None:
        self._inputs.workers.put(lambda: self._receive(job, refused))

    def _interrupted(self, job: ImageJob) -> None:
        self._queue.put(Rejected(job.request, Failure(FailureKind.STOPPED, "its submission was interrupted")))

    @property
    def tell(self) -> Callable[[RulesChanged], None]:
        """Hands rules to the control thread. It holds no reference to this engine."""
        return self._queue.put

    def learn(self, router: Router, experts: Mapping[str, Expert]) -> None:
        """Get ready for images of further boards, before their rules are told; nothing that is under way changes."""
        self.experts.update(experts)
        self._inputs.follow(router)

    def metrics(self) -> Metrics:
        """Return the counts so far."""
        return self._recorder.metrics()

    def longest_decoding_s(self) -> float:
        """Return for how many seconds a thread has been at a picture; the longest of all threads that decode."""
        return self._inputs.workers.longest_s()

    def close(self, until_s: float = math.inf) -> None:
        """End all threads once every reply is out, and let go of the devices. Any number of calls is safe.

        After `stop`, threads that are at a picture are waited for only a moment: a read may never come back.
        """
        self._queue.put(None)
        readers = self._inputs.workers.threads
        if self._join_or_abandon(until_s, [thread for thread in self._threads if thread not in readers]):
            self.line_threads.join(time.monotonic() + _LAST_READ_S if self._stopped else until_s, among=readers)
            self._let_go()

    # Workers

    def _receive(self, job: ImageJob, refused: Failure | None) -> None:
        """Decode a picture and prepare it for its first expert (1)."""
        event: Event
        if job.has_come:  # answered already: the line was stopped, or `submit` interrupted
            return
        if self._stopped or refused is not None:  # hundreds of large pictures may wait here
            self._queue.put(Rejected(job.request, refused or STOPPED))
            return
        try:
            self._inputs.begin(job.image, job.request.rule)
            event = Arrived(job.request)
        except BaseException as error:
            kind = FailureKind.RULES if isinstance(error, RulesError) else FailureKind.of(error, FailureKind.IMAGE)
            event = Rejected(job.request, Failure(kind, sentence_of(error, during="decoding")))
        self._queue.put(event)

    # The control thread

    def _control(self) -> None:
        try:
            self._decide()
        except BaseException as error:
            # A bug of ours, of a watcher or of a policy (4c).
            where = "" if isinstance(error, CoeError) else place_of(error)
            self._give_up(Failure(FailureKind.LINE, f"the engine failed: {sentence_of(error)}{where}"))
        finally:
            self._end_others()
            self.line_threads.join(among=self._at_devices)
            if self._abandoned:  # nobody waits for it in `close`
                with suppress(Exception):  # nobody is left to hear of it
                    self._let_go()

    def _decide(self) -> None:
        self._step(None)
        while not self._ending or self._jobs:
            events, last = self._came()
            if events:
                self._step(events[0] if len(events) == 1 else EventBatch(tuple(events)))
            if isinstance(last, Crash):
                raise last.error

    def _came(self) -> tuple[list[Event], Event | Crash | None]:
        """Wait for what comes next, and take what came with it (3); return the events, and what was taken last."""
        events: list[Event] = []
        while True:
            last = self._queue.get()
            self._ending = self._ending or last is None
            if last is None or isinstance(last, Crash):
                return events, last
            events += self._new(last)
            if len(events) >= _MOST_TOGETHER or self._queue.empty():
                return events, last

    def _new(self, event: Event) -> list[Event]:
        """Return what the controller has to hear of an event."""
        if isinstance(event, Stopped):  # (4b)
            unread = [job for job in list(self._jobs.values()) if not job.has_come]
            for each in unread:
                each.has_come = True
            return [event, *(Rejected(job.request, STOPPED) for job in unread)]
        if isinstance(event, Arrived | Rejected):  # (2)
            job = self._jobs.get(event.request.id)
            if job is None or job.has_come:
                return []
            job.has_come = True
        return [event]

    def _step(self, event: Event | None) -> None:
        now = self.now()
        began = time.perf_counter()
        commands = self.controller.start(now) if event is None else self.controller.handle(event, now)
        spent = time.perf_counter() - began
        if self.trace is not None:
            self.trace.append((now, event, commands))
        try:
            steps = single_steps(event, commands) if isinstance(event, EventBatch) else ((event, commands),)
            for part, answer in steps:
                for watcher in self._watchers:
                    watcher.observe(part, [*answer], now, spent)  # of its own: a user's code may change it
                spent = 0.0
            for command in commands:
                self._carry_out(command)
        except BaseException:
            for command in commands:
                if isinstance(command, Reply):
                    self._carry_out(command)
            raise
        if not self._has_initial and not self.controller.lacks_initial():
            self._has_initial = True
            self._settle()

    def _carry_out(self, command: Command) -> None:
        match command:
            case Load() | Evict() | Fill():
                self._copy_lanes.put(command)
            case Run():
                self._runners[command.executor].put(command)
            case Reply():
                if (job := self._reply(command.result)) is not None:
                    self._inputs.done(job.image)
            case GiveUp():
                raise command.error

    def _let_go(self) -> None:
        """Close the devices, when no thread uses them any more; any number of calls is safe."""
        # A caller who keeps a closed line, to read its counts, must not keep its memory, whatever a device raises.
        with ExitStack() as released:
            released.callback(self._runners.clear)
            released.callback(self._copy_lanes.release)
            devices, self.devices = self.devices, {}
            for device in devices.values():
                released.callback(device.close)

    def _end_others(self) -> None:
        """Let all other threads end."""
        self._inputs.workers.close()
        for runner in self._runners.values():
            runner.close()
        self._copy_lanes.close()
        self._replies.put(None)
        self._settle()

    def _prepared(self, command: Run) -> list[ExpertInput]:
        images = [self._jobs[stage.request_id].image for stage in command.batch.stages]
        return self._inputs.of_batch(command.batch.expert, images)
