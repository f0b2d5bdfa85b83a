"""The future of one image. Law: it is answered once, and no callback keeps the answer from the others.

`Future.set_result` calls what hangs on it one by one and stops at a SystemExit: those behind it would never hear.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from coe.core import Result
from coe.errors import CoeError
from coe.runtime.place import Place


class Pending(Future[Result]):
    """A result that is to come. It cannot be called off: `cancel` says no.

    `result` and `exception` raise WouldWaitForItself where they would wait on a thread of the line, and LineClosed in
    a forked child, where no answer comes any more.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self._answered = False
        self.set_running_or_notify_cancel()

    def answer(self, result: Result) -> None:
        """Give the result and call what waits for it, on the thread of replies; raises nothing."""
        with suppress(BaseException):  # callbacks are guarded already, this is the last guard of that thread
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
        """Wait as `result` does; return None, because what is wrong with an image is said in its result."""
        self._expect_waitable("exception()")
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Result]], Any]) -> None:
        """Have `fn` called with this future once the result is there: on the thread of replies, or here if it is.

        Whatever `fn` raises on the thread of replies is logged and goes no further.
        """

        def call(future: Future[Result]) -> None:
            try:
                fn(future)
            except Exception:
                raise
            except BaseException as error:
                if not self._place.is_own_thread:
                    raise
                raise CoeError(f"a callback of an image raised {type(error).__name__} on the reply thread") from error

        super().add_done_callback(call)

    def _expect_waitable(self, call: str) -> None:
        # In a forked child a lock may have been left behind by a thread that is not there: nothing is asked of it.
        if not self._answered and (self._place.is_forked or not self.done()):
            self._place.expect_waitable(call)


def answered(reply: tuple[Pending, Result] | None) -> bool:
    """Answer an image, and keep nothing of it; return False where there is none."""
    if reply is None:
        return False
    future, result = reply
    future.answer(result)
    return True
