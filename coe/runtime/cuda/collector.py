"""Python's garbage, which may hold graphs or pinned memory: a capture forbids freeing them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from coe.runtime.cuda.torch_driver import TorchDriver

_alone = threading.RLock()
"""Held while a graph is captured and while garbage is collected, for all lines: they share one collector."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage inside the block."""
    with _alone:
        was = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was:
                gc.enable()


def give_back(driver: TorchDriver) -> None:
    """Free the device memory that nothing uses. Objects in use when an error came may be in reference cycles."""
    with _alone:
        gc.collect()
        driver.trim()
