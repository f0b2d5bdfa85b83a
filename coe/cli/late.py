"""Tells the user which boards will not be done in time, as soon as that is certain."""

from __future__ import annotations

import queue
from collections.abc import Iterator

from coe.scheduler.events import Command, Event, Late


class LateBoards:
    """A watcher: it collects late boards on the control thread; another thread fetches the sentences."""

    def __init__(self) -> None:
        self._sentences: queue.SimpleQueue[str] = queue.SimpleQueue()

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Note the boards that the commands report as late."""
        for command in commands:
            if isinstance(command, Late):
                left_s = command.due_s - now
                when = f"is due in {left_s:.1f} s and cannot be done by then" if left_s > 0 else "was not done in time"
                self._sentences.put(f"{command.board} {when}")

    def sentences(self) -> Iterator[str]:
        """Yield the sentences since the last call."""
        while not self._sentences.empty():
            yield self._sentences.get()
