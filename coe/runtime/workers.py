"""Threads that do work in the order in which it comes, urgent work first. Work that was taken in is done."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from coe.errors import LineClosed
from coe.timely import end_helper

T = TypeVar("T")
Work = Callable[[], object]


class _Busy:
    """Since when a thread does its piece of work, on the monotonic clock; infinity while it has none."""

    def __init__(self) -> None:
        self.since_s = math.inf

    def __enter__(self) -> None:
        self.since_s = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self.since_s = math.inf


class Workers:
    """`count` daemon threads. Unlike the threads of `concurrent.futures`, they do not delay the interpreter's exit."""

    def __init__(self, count: int, name: str) -> None:
        self._urgent: deque[Work] = deque()
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._closed = False
        self._busy = [_Busy() for _ in range(count)]
        self.threads = [
            threading.Thread(
                target=_work_through, args=(self._work, self._urgent, busy), name=f"{name}-{number}", daemon=True
            )
            for number, busy in enumerate(self._busy)
        ]

    def longest_s(self) -> float:
        """Return for how many seconds the longest piece of work under way has been done; 0 if none is under way."""
        return max(0.0, time.monotonic() - min(busy.since_s for busy in self._busy))

    def put(self, work: Work) -> None:
        """Queue `work`, which raises nothing. Raises LineClosed after `close`."""
        # A single put: an interrupt of the caller leaves the work in the queue or out of it, and nothing halfway. No
        # lock: work that is in the queue before the threads are told to end is done.
        self._work.put(work)
        self._expect_open()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue urgent work; the future gives what it returns or raises. Raises LineClosed after `close`."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        self._urgent.append(lambda: _fulfil(future, work))
        self._work.put(_look_up)
        self._expect_open()
        return future

    def close(self) -> None:
        """End the threads after the work that is queued already."""
        self._closed = True
        for _ in self.threads:
            self._work.put(None)

    def _expect_open(self) -> None:
        if self._closed:
            raise LineClosed("its threads have ended")


def _look_up() -> None:
    """Do nothing: this wakes a thread for urgent work."""


def _fulfil(future: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _work_through(given: queue.SimpleQueue[Work | None], urgent: deque[Work], busy: _Busy) -> None:
    while _do(given.get(), urgent, busy):
        pass
    end_helper()


def _do(work: Work | None, urgent: deque[Work], busy: _Busy) -> bool:
    """Do all urgent work, then this piece, and keep no reference to it; return False at the end."""
    while urgent:
        _do_urgent(urgent, busy)
    if work is None:
        return False
    with busy:
        work()
    return True


def _do_urgent(urgent: deque[Work], busy: _Busy) -> None:
    try:
        work = urgent.popleft()
    except IndexError:  # another thread has taken it
        return
    with busy:
        work()
