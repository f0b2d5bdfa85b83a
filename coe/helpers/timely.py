"""Reading that is given up after a time. A share that does not answer costs its own pictures, and no other.

A read that never comes back cannot be ended, so each thread that asks has a helper that reads for it. After the time,
the helper is left behind: it ends when its read does. A slow share answers, piece by piece, and is waited for.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import Any, TypeVar

from coe import config
from coe.errors import LateImage

T = TypeVar("T")
MOST_LOST = 64
"""So many helpers may be left behind at a time; behind them no picture is waited for at all."""

_own = threading.local()


class _Read(Future[T]):
    """What a helper reads, and how many pieces of it have come."""

    pieces = 0


_lost: set[_Read[Any]] = set()


def answered() -> None:
    """Say, within what `in_time` calls, that a piece was read: its time begins anew."""
    reading = getattr(_own, "reading", None)
    if reading is not None:
        reading.pieces += 1


def in_time(read: Callable[[], T]) -> T:
    """Return what `read` returns, or raise what it raises.

    Raises LateImage if it neither returns nor calls `answered` for `config.read_timeout_s()`.
    """
    limit_s = config.read_timeout_s()
    if len(_lost) >= MOST_LOST:
        raise LateImage(
            f"was not read: {MOST_LOST} pictures before it are still waited for; check their disk or share, and "
            "submit the picture again",
            lambda: len(_lost) < MOST_LOST,
        )
    helper = getattr(_own, "helper", None)
    if helper is None or helper.process != os.getpid():  # a forked child has no thread of its parent
        helper = _own.helper = Helper()
    future: _Read[T] = helper.ask(read)
    pieces = -1
    while pieces < future.pieces:
        pieces = future.pieces
        try:
            return future.result(limit_s)
        except Late:
            if future.done():  # just now, or `read` raised it
                return future.result()
    helper.end()
    del _own.helper
    _lost.add(future)
    future.add_done_callback(_lost.discard)
    raise LateImage(
        f"was not read: no data arrived for {limit_s:g} s, so its disk or share does not answer; check it, and "
        f"submit the picture again (${config.READ_TIMEOUT_VARIABLE} allows another limit)",
        future.done,
    )


def end_helper() -> None:
    """End the helper of this thread, and wait for it; for a thread that ends, so that nothing of it is left."""
    helper = getattr(_own, "helper", None)
    if helper is not None:
        del _own.helper
        if helper.process == os.getpid():
            helper.end()
            helper.thread.join()


class Helper:
    """A thread that reads for another, and ends with it; one that never comes back keeps no process alive."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._work: queue.SimpleQueue[tuple[_Read[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=_work_through, args=(self._work,), name="picture-read", daemon=True)
        self.thread.start()

    def __del__(self) -> None:
        self.end()

    def end(self) -> None:
        """Let the thread end after what it reads."""
        self._work.put(None)

    def ask(self, read: Callable[[], T]) -> _Read[T]:
        """Let the thread read."""
        future: _Read[T] = _Read()
        self._work.put((future, read))
        return future


def _work_through(work: queue.SimpleQueue[tuple[_Read[Any], Callable[[], Any]] | None]) -> None:
    while _done(work.get()):
        pass


def _done(asked: tuple[_Read[Any], Callable[[], Any]] | None) -> bool:
    """Read, and keep no reference to the picture; return False at the end."""
    if asked is None:
        return False
    future, read = asked
    _own.reading = future
    try:
        result = read()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
    finally:
        del _own.reading
    return True
