"""Which boards will be late, named before they are. Law: estimates name boards, and never change a decision."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coe.scheduler.events import Command, Event, Late

MEMORY = 200.0
"""After about so many images the estimate of the line's speed has forgotten what was before."""


class LateBoards:
    """A watcher: it collects the boards that the scheduler is certain to miss, by their serials, which are our ids."""

    def __init__(self) -> None:
        self._serials: queue.SimpleQueue[str] = queue.SimpleQueue()

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Note the boards that the commands name; runs on the thread that decides, and waits for nothing."""
        for command in commands:
            if isinstance(command, Late):
                self._serials.put(command.board)

    def fetch(self) -> set[int]:
        """Return the boards since the last call, by their ids."""
        ids = set()
        while not self._serials.empty():
            ids.add(int(self._serials.get()))
        return ids


@dataclass(slots=True)
class Speed:
    """How long the line takes for an image, by the images that it finished while it was busy."""

    per_image_s: float = 0.0
    _weight: float = 0.0

    def took(self, seconds: float, images: int) -> None:
        """Take in that the line was busy for so long and finished so many images."""
        if images > 0 and seconds >= 0:
            self._weight = min(self._weight + images, MEMORY)
            share = min(1.0, images / self._weight)
            self.per_image_s += share * (seconds / images - self.per_image_s)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A board that waits for its turn: how many images it has, and in how many seconds it is due."""

    board_id: int
    images: int
    left_s: float


def endangered(under_way: int, queue_ahead: Sequence[Waiting], speed: Speed) -> Mapping[int, float]:
    """Return the waiting boards that will be late at this speed, with the seconds that they will need.

    Boards are done in their order, after the `under_way` images of boards that were begun.
    """
    late = {}
    images = under_way
    for board in queue_ahead:
        images += board.images
        needs_s = images * speed.per_image_s
        if needs_s > board.left_s:
            late[board.board_id] = needs_s
    return late
