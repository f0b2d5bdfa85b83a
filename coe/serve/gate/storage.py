"""What may stop answering, a disk or a database, and the threads that wait for it.

A call that hangs in the system cannot be ended. So a look, now and then and on a thread of its own, tells whether
there is an answer; while there is none, whoever waits is told so, and nothing new begins.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from coe.serve.database.connecting import BUSY_S, DatabaseError, DatabaseErrorKind

_T = TypeVar("_T")
THREADS = 8
"""How many requests may wait for one storage at a time; the others wait for their turn."""
ANSWERS_S = BUSY_S + 1.0
"""What takes longer for a small write does not answer; a database that is locked says so before."""
GLANCE_S = 0.5
"""How often whoever waits looks whether there will be an answer."""


class Storage:
    """A disk or a database; `silent` makes the error of those who ask while it does not answer."""

    def __init__(self, name: str, silent: Callable[[], Exception]) -> None:
        self._silent, self.answers_s = silent, ANSWERS_S
        self._threads = ThreadPoolExecutor(THREADS, f"coe-{name}")
        self._look_thread = ThreadPoolExecutor(1, f"coe-{name}-look")
        self._look: Future[Any] | None = None
        """A look that has not come back."""
        self._look_s = 0.0
        self._refusal: BaseException | None = None
        """Why the last look was refused; None if it was not, or for want of room."""
        self.is_silent = False
        """Whether the last look got no answer, or learned after a while that there is nobody to give one."""

    def expect(self) -> None:
        """Raise its error if it does not answer."""
        if self.is_silent:
            raise self._silent()

    async def do(self, work: Callable[[], _T], *, most_s: float = math.inf, surely: bool = False) -> _T:
        """Do work on a thread; raises its error as soon as it does not answer, or when the work takes longer.

        Where the last look was refused, no work may take longer than a look: one is refused where another hangs.

        Work that was begun goes on then, and ends when there is an answer; what is done `surely` begins even then.
        """
        if not surely:
            self.expect()
        begun_s, future = time.monotonic(), _awaited(self._threads.submit(work))
        while not (await asyncio.wait({future}, timeout=min(GLANCE_S, most_s)))[0]:
            waited_s = time.monotonic() - begun_s
            is_late = waited_s >= (min(most_s, self.answers_s) if self._refusal else most_s)
            if (self.is_silent or is_late) and not future.done():
                if not surely:
                    future.cancel()
                raise (None if self.is_silent else self._refusal) or self._silent()
        return future.result()

    async def look(self, work: Callable[[], _T]) -> _T | None:
        """Do a small piece of work; None if there is no answer. While there is none, no further work begins."""
        look: Future[_T] | None = self._look
        if look is None:
            look, self._look_s = self._look_thread.submit(work), time.monotonic()
            # In slices, so that the time counts that this process had: a busy box is no slow disk.
            slice_s, awaited = min(GLANCE_S, self.answers_s), _awaited(look)
            for _ in range(math.ceil(self.answers_s / slice_s)):
                if (await asyncio.wait({awaited}, timeout=slice_s))[0]:
                    break
        if not look.done():
            self._look, self.is_silent = look, True
            return None
        error, self._look = look.exception(), None
        kind = error.kind if isinstance(error, DatabaseError) else None
        self._refusal = error if kind in (DatabaseErrorKind.BUSY, DatabaseErrorKind.LOST) else None
        self.is_silent = kind is DatabaseErrorKind.LOST and time.monotonic() - self._look_s > GLANCE_S
        return look.result()

    def close(self) -> None:
        """End its threads."""
        for threads in (self._threads, self._look_thread):
            threads.shutdown()


def _awaited(work: Future[_T]) -> asyncio.Future[_T]:
    """Return a future of the loop for work on a thread; asyncio does not log an error after which nobody asks."""
    future = asyncio.wrap_future(work)
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return future
