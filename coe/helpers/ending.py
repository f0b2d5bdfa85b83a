"""Signals that ask a process to end, counted. Imports fast, as the start of a command needs."""

from __future__ import annotations

import time

SAME_SIGNAL_S = 0.5
"""A signal so soon after another is no second one: `timeout` sends it to a process, and to its group."""


class EndingSignals:
    """Counts the signals that ask a command to end."""

    def __init__(self) -> None:
        self._count, self._last_s = 0, 0.0

    def take(self) -> int:
        """Take a signal; return which it is, from 1, or 0 if it is the same as the one before."""
        now = time.monotonic()
        if self._count and now - self._last_s <= SAME_SIGNAL_S:
            return 0
        self._count, self._last_s = self._count + 1, now
        return self._count
