"""Tells the user during a run which boards will not be done in time, and when the machine gets slower, or is lost."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass

from coe.scheduler.events import Command, Event, Late, Lost, PaceChanged


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence for the user, and a word that says what it is about."""

    about: str
    sentence: str


class Notices:
    """A watcher: it collects notices on the control thread; another thread fetches them."""

    def __init__(self) -> None:
        self._notices: queue.SimpleQueue[Notice] = queue.SimpleQueue()

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Note what the commands report, and devices or boxes that are lost."""
        if isinstance(event, Lost):
            sentence = f"{event.box or event.device} no longer answers ({event.reason}); whatever else can, goes on"
            self._notices.put(Notice("lost", sentence))
        for command in commands:
            match command:
                case Late():
                    left_s = command.due_s - now
                    late = (
                        f"is due in {left_s:.1f} s and cannot be done by then" if left_s > 0 else "was not done in time"
                    )
                    self._notices.put(Notice("late", f"{command.board} {late}"))
                case PaceChanged():
                    times = f"batches on {command.where} take {command.pace:.2g} times as long as measured"
                    self._notices.put(Notice("pace", f"{times}; decisions expect that now"))

    def fetch(self) -> Iterator[Notice]:
        """Yield the notices since the last call."""
        while not self._notices.empty():
            yield self._notices.get()
