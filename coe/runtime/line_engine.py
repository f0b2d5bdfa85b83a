"""What a line runs on, whether on this machine or on several boxes: its jobs, their futures, its threads and its clock.

A thread of the line never waits for the line: it would wait for ever, because the line would wait for it. A forked
child has a line's memory but none of its threads.
"""

from __future__ import annotations

import atexit
import itertools
import math
import os
import queue
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from coe.core import Failure, Request, Result
from coe.errors import CoeError, LineClosed, WouldWaitForItself
from coe.pictures.image_source import ImageSource
from coe.results.metrics import Metrics
from coe.runtime.admission import give_back
from coe.scheduler.events import Stopped

T = TypeVar("T")

LONGEST_END_S = 10.0
"""How long batches and reads have to end, at the interpreter's exit and after the time of `close`: some never do."""


class LineThreads:
    """The process that a line was opened in, and the threads of the line."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.threads: Collection[threading.Thread] = ()

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the line's process."""
        return os.getpid() != self._process

    @property
    def is_own_thread(self) -> bool:
        """Whether the calling thread is one of the line's."""
        return threading.current_thread() in self.threads

    def join(self, until_s: float = math.inf, *, among: Collection[threading.Thread] | None = None) -> bool:
        """Wait until all threads, or those `among`, have ended, at most until `until_s` on the monotonic clock.

        Return whether all have.
        """
        threads = () if self.is_forked else self.threads if among is None else among
        for thread in threads:
            if thread.ident is None:  # it never started: the system was out of threads
                continue
            left_s = until_s - time.monotonic()
            thread.join(max(0.0, left_s) if math.isfinite(left_s) else None)
        return not any(thread.is_alive() for thread in threads)

    def expect_process(self) -> None:
        """Raise LineClosed in a forked child."""
        if self.is_forked:
            raise LineClosed(
                f"this line works only in process {self._process}, not in its fork {os.getpid()}; open "
                "another Inspector here, or submit there"
            )

    def expect_waitable(self, call: str) -> None:
        """Raise LineClosed in a forked child, WouldWaitForItself on a thread of the line."""
        self.expect_process()
        if self.is_own_thread:
            raise WouldWaitForItself(
                f"{call} would wait for this line on a thread of the line itself "
                f"({threading.current_thread().name}: a callback, a watcher or a kind) and never end; "
                "call it on a thread of your own"
            )


class Pending(Future[Result]):
    """A result that is to come; the line alone answers it, once. It cannot be cancelled: `cancel` returns False.

    `result` and `exception` raise WouldWaitForItself if they would wait on a thread of the line, and LineClosed in a
    forked child, where no answer can come. `exception` returns None: the result itself says what is wrong.

    `first` is called with the future, before all callbacks that are added later.
    """

    # An exception that strikes a caller anywhere, as Ctrl-C does, must not leave the future's lock taken: the reply
    # thread would wait for it for ever.

    def __init__(self, line_threads: LineThreads, first: Callable[[Future[Result]], object] | None = None) -> None:
        super().__init__()
        self._line_threads = line_threads
        self._answered = False
        self.set_running_or_notify_cancel()
        if first is not None:
            super().add_done_callback(first)

    def answer(self, result: Result) -> None:
        """Set the result and call the callbacks, on the reply thread; raises nothing."""
        with suppress(BaseException):  # callbacks are guarded already; this is the last guard of the reply thread
            super().set_result(result)
        self._answered = True

    def set_result(self, result: Result) -> None:
        """Refuse: the line alone answers."""
        raise InvalidStateError("only the line may set the result of this future")

    def set_exception(self, exception: BaseException | None) -> None:
        """Refuse: the line alone answers."""
        raise InvalidStateError("only the line may set the result of this future")

    def cancel(self) -> bool:
        """Return False: an image that was taken in gets its reply."""
        return False

    def done(self) -> bool:
        """Return whether the result is there."""
        return self._answered or self._guarded(super().done)

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result, `timeout` seconds at most; raises TimeoutError."""
        self._expect_waitable("result()")
        return self._guarded(partial(super().result, timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `result` does; return None."""
        self._expect_waitable("exception()")
        return self._guarded(partial(super().exception, timeout))

    def add_done_callback(self, fn: Callable[[Future[Result]], Any]) -> None:
        """Call `fn` with this future once the result is there: on the reply thread, or at once if it is there already.

        Whatever `fn` raises on the reply thread is logged and goes no further.
        """

        def call(future: Future[Result]) -> None:
            try:
                fn(future)
            except Exception:
                raise
            except BaseException as error:
                if not self._line_threads.is_own_thread:
                    raise
                # `Future.set_result` stops at a SystemExit: the callbacks behind this one would never run.
                raise CoeError(f"a callback of an image raised {type(error).__name__} on the reply thread") from error

        self._guarded(partial(super().add_done_callback, call))

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except BaseException:
            give_back(self._condition)
            raise

    def _expect_waitable(self, call: str) -> None:
        # In a forked child, a thread that does not exist there may still hold the future's lock: do not touch it.
        if not self._answered and (self._line_threads.is_forked or not self.done()):
            self._line_threads.expect_waitable(call)


@dataclass(frozen=True, slots=True)
class Crash:
    """The line cannot go on: a thread met an error that must not happen, or what `close` waited for does not end."""

    error: BaseException


@dataclass(slots=True)
class Job:
    """What is kept for a request until its reply."""

    request: Request
    future: Pending


E = TypeVar("E")
J = TypeVar("J", bound=Job)


class LineEngine(ABC, Generic[E, J]):
    """Takes in images and gives each its one reply, on threads of its own. Its `repr` says how far it is.

    What happens comes through one queue of `E` to one thread; None means: end once every image has its reply.
    """

    def __init__(self) -> None:
        self.line_threads = LineThreads()
        self._jobs: dict[int, J] = {}
        self._ids = itertools.count()
        self._queue: queue.SimpleQueue[E | Crash | Stopped | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[tuple[Pending, Result] | None] = queue.SimpleQueue()
        self._settled = threading.Condition()
        self._is_settled = self._has_initial = self._stopped = self._ending = self._abandoned = False
        self._began = time.monotonic()

    def submit(
        self,
        request: Request,
        source: ImageSource,
        *,
        refused: Failure | None = None,
        first: Callable[[Future[Result]], object] | None = None,
    ) -> Pending:
        """Take in an image; the future's result is its one reply, and `first` its first callback.

        With `refused` that reply is this failure, and the image is not looked at. If an exception strikes, as Ctrl-C
        does, the image is not taken in, or is answered all the same.
        """
        job = self._new_job(request, source, Pending(self.line_threads, first))
        try:
            self._jobs[request.id] = job
            self._take_in(job, source, refused)
            return job.future
        except LineClosed:
            self._jobs.pop(request.id, None)
            raise
        except BaseException:  # an image that nothing answers would keep the line from ending
            self._interrupted(job)
            raise

    def is_under_way(self, request_id: int) -> bool:
        """Return whether an image was taken in and has no reply yet."""
        return request_id in self._jobs

    @abstractmethod
    def _new_job(self, request: Request, source: ImageSource, future: Pending) -> J: ...

    def _interrupted(self, job: J) -> None:
        """See that the line waits for no image whose `_take_in` was interrupted."""
        self._jobs.pop(job.request.id, None)

    @abstractmethod
    def _take_in(self, job: J, source: ImageSource, refused: Failure | None) -> None:
        """Let what happens to an image come through the queue, on the caller's thread."""

    @abstractmethod
    def metrics(self) -> Metrics:
        """Return the counts so far."""

    @abstractmethod
    def longest_decoding_s(self) -> float:
        """Return for how many seconds a thread of this engine has been at a picture; the longest of all."""

    def close(self, until_s: float = math.inf) -> None:
        """End all threads once every reply is out. Any number of calls is safe.

        Images that have no reply at the time `until_s` on the monotonic clock get an error, and threads that do not end
        are left behind: later calls do not wait for them either.
        """
        self._queue.put(None)
        self._join_or_abandon(until_s, self.line_threads.threads)

    def _join_or_abandon(self, until_s: float, threads: Collection[threading.Thread]) -> bool:
        """Wait until threads have ended; if they do not, answer all images that wait for them, and return False."""
        if self.line_threads.join(0.0 if self._abandoned else until_s, among=threads):
            return True
        self._abandoned = True
        self._queue.put(Crash(LineClosed(f"it was closed, and a batch did not end within {LONGEST_END_S:g} s")))
        return False

    def now(self) -> float:
        """Return the time on the clock of this line, in seconds; events and due times are on this clock."""
        return time.monotonic() - self._began

    def next_id(self) -> int:
        """Return a fresh request id."""
        return next(self._ids)

    def ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the first experts are loaded; return False on a timeout, or if the line ended first."""
        try:
            with self._settled:
                self._settled.wait_for(lambda: self._is_settled, timeout_s)
        except BaseException:  # the control thread must never wait for a caller who was interrupted
            give_back(self._settled)
            raise
        return self._has_initial

    def _settle(self) -> None:
        """Wake those who wait for the line to be ready: it is, or it ends."""
        with self._settled:
            self._is_settled = True
            self._settled.notify_all()

    def stop(self) -> None:
        """Finish running batches and answer all other images with an error. Waits for nothing, takes no lock."""
        self._stopped = True
        self._queue.put(Stopped())

    def abandon(self) -> None:
        """Stop, and tell all threads to end; waits for nothing. For a line that its owner dropped."""
        # Garbage collection may call this on any thread, under any lock: only puts are safe here.
        if not self.line_threads.is_forked:
            self._abandoned = True
            self.stop()
            self._queue.put(None)

    def join(self, until_s: float = math.inf) -> None:
        """Wait until all threads have ended, at most until the time `until_s` on the monotonic clock."""
        self.line_threads.join(until_s)

    def _reply(self, result: Result) -> J | None:
        """Let the reply thread answer an image; return its job, which ends. None: `submit` was interrupted."""
        job = self._jobs.pop(result.request.id, None)
        if job is not None:
            self._replies.put((job.future, result))
        return job

    def _answer(self) -> None:
        """Answer images, on the reply thread, until it is given None."""
        # An idle thread must keep no reference to the last image: its callbacks may be all that still holds the line.
        while _answered(self._replies.get()):
            pass

    def _give_up(self, failure: Failure) -> None:
        """Answer every image with the reason why the line stopped, until the line ends."""
        self._settle()
        while not self._ending or self._jobs:
            for job in list(self._jobs.values()):
                self._reply(Result.refused(job.request, failure, self.now()))
            self._ending = self._ending or self._queue.get() is None


def _answered(reply: tuple[Pending, Result] | None) -> bool:
    if reply is None:
        return False
    future, result = reply
    future.answer(result)
    return True


_OPEN: weakref.WeakSet[LineEngine[Any, Any]] = weakref.WeakSet()


def end_at_exit(line: LineEngine[Any, Any]) -> None:
    """End a line when the interpreter exits, if it still exists: a thread killed in a batch may abort the process."""
    _OPEN.add(line)


@atexit.register
def end_open_lines() -> None:
    """Wait for running batches, but not for ever."""
    lines, until_s = list(_OPEN), time.monotonic() + LONGEST_END_S
    for line in lines:
        line.abandon()
    for line in lines:
        line.join(until_s)
