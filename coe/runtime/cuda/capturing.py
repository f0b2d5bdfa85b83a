"""The threads on which a process captures graphs: one for captures with a search for kernels, one for those without.

cuDNN keeps what it chose for each thread, searched or not: on a second thread it would search again, and on a common
thread a capture with a search would find the choice of a capture without. The threads live on, so they keep no team of
OpenMP (`coe.runtime.processor`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import wait
from typing import TypeVar

from coe.runtime.inputs import Workers
from coe.runtime.processor import bound_threads

T = TypeVar("T")

_starting = threading.Lock()
_threads: dict[bool, Workers] = {}


def on_capture_thread(work: Callable[[], T], *, searches: bool) -> T:
    """Do `work` on one of the threads, and return what it returns, or raise what it raises.

    An interrupt is raised after the work has ended: until then the caller's locks are needed.
    """
    results: list[T] = []
    raised: list[BaseException] = []

    def noted() -> None:
        try:
            results.append(work())
        except BaseException as error:
            raised.append(error)

    future = _thread(searches).submit(noted)
    try:
        future.result()
    finally:
        wait([future])
    if raised:
        # Not by the future: a frame of the traceback would hold it, a cycle that keeps the failed work's tensors.
        raise raised.pop()
    return results.pop()


def _thread(searches: bool) -> Workers:
    with _starting:
        if searches not in _threads:
            workers = _threads[searches] = Workers(1, f"coe-capture{'-search' if searches else ''}")
            for thread in workers.threads:
                thread.start()
            workers.submit(lambda: bound_threads(1))
        return _threads[searches]
