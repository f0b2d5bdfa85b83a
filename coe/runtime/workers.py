"""Threads that do work in the order in which it comes, urgent work first. Law: no work is lost.

A token is queued for each piece of work after the work itself, so a thread that holds a token finds a piece.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from coe.errors import LineClosed

T = TypeVar("T")
Work = Callable[[], object]


class Workers:
    """`count` daemon threads. Unlike the threads of `concurrent.futures`, they do not delay the interpreter's exit."""

    def __init__(self, count: int, name: str) -> None:
        self._urgent: deque[Work] = deque()
        self._ordinary: deque[Work] = deque()
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._lock, self._closed = threading.Lock(), False
        # Threads refer to the queues and not to this object: whoever drops it must be able to end them.
        next_work = _taker(self._tokens, self._urgent, self._ordinary)
        self.threads = [
            threading.Thread(target=_work_through, args=(next_work,), name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]

    def put(self, work: Work) -> None:
        """Queue `work`, which raises nothing. Raises LineClosed after `close`."""
        self._queue(self._ordinary, work)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue urgent work; the future gives what it returns or raises. Raises LineClosed after `close`."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        # The only reference to the work and its result, so that a thread keeps neither afterwards.
        todo = [(future, work)]
        self._queue(self._urgent, lambda: _fulfil(*todo.pop()))
        return future

    def close(self) -> None:
        """End the threads after the work that is queued already."""
        with self._lock:
            self._closed = True
            for _ in self.threads:
                self._tokens.put(False)

    def _queue(self, row: deque[Work], work: Work) -> None:
        with self._lock:
            if self._closed:
                raise LineClosed("its threads have ended")
            row.append(work)
            self._tokens.put(True)


def _fulfil(future: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _taker(tokens: queue.SimpleQueue[bool], urgent: deque[Work], ordinary: deque[Work]) -> Callable[[], Work | None]:
    def take() -> Work | None:
        if not tokens.get():
            return None
        try:
            return urgent.popleft()
        except IndexError:
            return ordinary.popleft()

    return take


def _work_through(take: Callable[[], Work | None]) -> None:
    while _do(take()):
        pass


def _do(work: Work | None) -> bool:
    """Do one piece of work, and keep no reference to it; return False at the end."""
    if work is None:
        return False
    work()
    return True
