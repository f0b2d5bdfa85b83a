"""The future of one image. Law: it is answered once, and no callback keeps the answer from the other callbacks.

`Future.set_result` calls its callbacks one by one and stops at a SystemExit: the callbacks behind it would never run.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from coe.core import Result
from coe.errors import CoeError
from coe.runtime.line_threads import LineThreads


class Pending(Future[Result]):
    """A result that is to come. It cannot be cancelled: `cancel` returns False.

    `result` and `exception` raise WouldWaitForItself if they would wait on a thread of the line, and LineClosed in a
    forked child, where no answer can come.
    """

    def __init__(self, line_threads: LineThreads) -> None:
        super().__init__()
        self._line_threads = line_threads
        self._answered = False
        self.set_running_or_notify_cancel()

    def answer(self, result: Result) -> None:
        """Set the result and call the callbacks, on the reply thread; raises nothing."""
        with suppress(BaseException):  # callbacks are guarded already; this is the last guard of the reply thread
            super().set_result(result)
        self._answered = True

    def set_result(self, result: Result) -> None:
        """Refuse: the line alone answers."""
        raise InvalidStateError("the line answers this future; nobody else can")

    def set_exception(self, exception: BaseException | None) -> None:
        """Refuse: the line alone answers."""
        raise InvalidStateError("the line answers this future; nobody else can")

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result, `timeout` seconds at most; raises TimeoutError."""
        self._expect_waitable("result()")
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as `result` does; return None, because the result itself says what is wrong with an image."""
        self._expect_waitable("exception()")
        return super().exception(timeout)

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
                raise CoeError(f"a callback of an image raised {type(error).__name__} on the reply thread") from error

        super().add_done_callback(call)

    def _expect_waitable(self, call: str) -> None:
        # In a forked child, a thread that does not exist there may still hold the future's lock: do not touch it.
        if not self._answered and (self._line_threads.is_forked or not self.done()):
            self._line_threads.expect_waitable(call)


def answered(reply: tuple[Pending, Result] | None) -> bool:
    """Answer an image, and keep no reference to it; return False if `reply` is None."""
    if reply is None:
        return False
    future, result = reply
    future.answer(result)
    return True
