"""Lets in what there is room for. Law: first come, first served, and whoever was let in leaves exactly once.

Whoever comes takes a ticket. While the first who waits has no room, all behind it wait too, so that a large image is
not passed by small ones for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from coe.errors import LineClosed, LineFull

T = TypeVar("T")

CLOSED = "this line is closed; open a new Inspector"


class Ticket:
    """A place in the row, and then inside. `granted` is done once there is room, or fails with LineClosed.

    Give it back with `leave`, whatever has become of it.
    """

    __slots__ = ("_admission", "abandoned", "granted", "size")

    def __init__(self, admission: Admission, size: int) -> None:
        self._admission, self.size, self.abandoned = admission, size, False
        self.granted: Future[None] = Future()
        # Who gives up waiting says so by `leave`; cancelling the future alone is refused.
        self.granted.set_running_or_notify_cancel()

    def wait(self) -> None:
        """Wait until there is room; raises LineClosed if the line closes before."""
        self.granted.result()

    def then(self, work: Callable[[], T]) -> Future[T]:
        """Have `work` done as soon as there is room, by whoever makes it: it must not wait.

        The future gives what `work` returns or raises, or LineClosed. If it raises, the place is given back.
        """
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()
        # A future keeps its callbacks: what is emptied when it is done keeps neither pixels nor this ticket.
        todo = [(self, work, done)]

        def go(granted: Future[None]) -> None:
            ticket, work, done = todo.pop()
            try:
                granted.result()
                result = work()
            except BaseException as error:
                ticket.leave()
                done.set_exception(error)
            else:
                done.set_result(result)

        self.granted.add_done_callback(go)
        return done

    def leave(self) -> None:
        """Give the place back, inside or in the row. To do so again does nothing."""
        self._admission._leave(self)

    def give_up(self) -> None:
        """Give the place in the row back; whoever is inside already stays there."""
        self._admission._leave(self, row_only=True)

    def abandon(self) -> None:
        """Give the place in the row back the next time that somebody leaves.

        Takes no lock: a collection of garbage may call this in the middle of any other call, on its thread.
        """
        self.abandoned = True


class Admission:
    """Bounds what is inside, in places and in bytes; whoever is larger than all the bytes is let in alone.

    Safe to call from many threads. `close` may be called by a handler of signals, too.
    """

    def __init__(self, places: int, limit_bytes: int) -> None:
        self.places, self.limit_bytes = places, limit_bytes
        self._inside: set[Ticket] = set()
        self._waiting: dict[Ticket, None] = {}
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition(threading.Lock())

    def __repr__(self) -> str:
        return (
            f"<Admission {len(self._inside)}/{self.places} inside, {self._bytes} bytes, {len(self._waiting)} waiting>"
        )

    @property
    def closed(self) -> bool:
        """Whether nobody is let in any more."""
        return self._closed

    def enter(self, size: int, *, wait: bool = True) -> Ticket:
        """Take a ticket for so many bytes; it is granted at once if there is room and nobody waits.

        Raises LineClosed after `close`; without `wait`, LineFull where the ticket would not be granted at once.
        """
        ticket = Ticket(self, size)
        with self._changed:
            if self._closed:
                raise LineClosed(CLOSED)
            somebody_waits = any(not waiting.abandoned for waiting in self._waiting)
            if not wait and (somebody_waits or not self._has_room(size)):
                raise LineFull(
                    f"{len(self._inside)} images are under way; wait for results, or submit with on_full='block'"
                )
            self._waiting[ticket] = None
            granted, refused = self._go_through()
        _tell(granted, refused)
        return ticket

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Wait for room, and hold it for as long as the block runs; raises LineClosed."""
        ticket = self.enter(size)
        try:
            ticket.wait()
            yield
        finally:
            ticket.leave()

    def close(self) -> None:
        """Let nobody in any more; those who wait fail with LineClosed. Whoever is inside stays until it leaves."""
        self._closed = True
        # Never waits: a signal may have interrupted the very thread that holds the lock. Whoever leaves next then tells
        # those who wait, and somebody is inside as long as anybody waits.
        if self._changed.acquire(blocking=False):
            try:
                granted, refused = self._go_through()
            finally:
                self._changed.release()
            _tell(granted, refused)

    def wait_empty(self, timeout_s: float | None = None) -> bool:
        """Wait until nobody is inside; return False if `timeout_s` passes first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._inside, timeout_s)

    def _leave(self, ticket: Ticket, *, row_only: bool = False) -> None:
        with self._changed:
            self._waiting.pop(ticket, None)
            if ticket in self._inside and not row_only:
                self._inside.remove(ticket)
                self._bytes -= ticket.size
            granted, refused = self._go_through()
            self._changed.notify_all()
        _tell(granted, refused)

    def _go_through(self) -> tuple[list[Ticket], list[Ticket]]:
        """Take from the row whoever has an answer now: those let in, and those who never will be."""
        granted: list[Ticket] = []
        if self._closed:
            refused = list(self._waiting)
            self._waiting.clear()
            return granted, refused
        while self._waiting and ((first := next(iter(self._waiting))).abandoned or self._has_room(first.size)):
            del self._waiting[first]
            if first.abandoned:
                continue
            self._inside.add(first)
            self._bytes += first.size
            granted.append(first)
        return granted, []

    def _has_room(self, size: int) -> bool:
        if not self._inside:
            return True
        return len(self._inside) < self.places and self._bytes + size <= self.limit_bytes


def _tell(granted: list[Ticket], refused: list[Ticket]) -> None:
    """Answer tickets. Not under the lock: what hangs on them may come back here."""
    for ticket in granted:
        ticket.granted.set_result(None)
    for ticket in refused:
        ticket.granted.set_exception(LineClosed(CLOSED))
