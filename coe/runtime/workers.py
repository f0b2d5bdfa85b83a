"""Threads that do work in the order in which it is submitted. Law: whatever the work raises goes to its future."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from coe.errors import LineClosed

T = TypeVar("T")


class Workers:
    """`count` daemon threads. Unlike the threads of `concurrent.futures`, they do not delay the interpreter's exit."""

    def __init__(self, count: int, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock, self._closed = threading.Lock(), False
        self.threads = [
            threading.Thread(target=_work_through, args=(self._work,), name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue `work`; the future gives what it returns or raises. Raises LineClosed after `close`."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                raise LineClosed("its threads have ended")
            self._work.put((future, work))
        return future

    def close(self) -> None:
        """End the threads after the work that is queued already."""
        with self._lock:
            self._closed = True
            for _ in self.threads:
                self._work.put(None)


def _work_through(given: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while _do(given.get()):
        pass


def _do(item: tuple[Future[Any], Callable[[], Any]] | None) -> bool:
    """Do one piece of work, and keep no reference to it; return False at the end."""
    if item is None:
        return False
    future, work = item
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
    return True
