"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0


def eventually(condition: Callable[[], Any], what: str = "it") -> None:
    """Wait until a condition holds; fail after a minute, which a busy machine does not need."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"{what} did not come true in {PATIENCE_S:g} s"
        time.sleep(0.005)
