"""When Python may collect garbage while a GPU is used: never inside a capture, always before memory is given back."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from coe.runtime.cuda.driver import Driver

_alone = threading.RLock()
"""Held while a graph is captured and while garbage is collected, whichever line it is for: they share one collector."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Let nobody collect garbage. Garbage may hold graphs and pinned memory, which nobody may free inside a capture."""
    with _alone:
        was = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was:
                gc.enable()


def give_back(driver: Driver) -> None:
    """Give back the device memory that nothing uses. What was in use when an error came may lie in cycles."""
    with _alone:
        gc.collect()
        driver.trim()
