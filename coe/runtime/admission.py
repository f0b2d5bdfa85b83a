"""Admits images while there is room. First come, first served, and every admitted ticket leaves exactly once.

Each image takes a ticket. While the first waiting ticket has no room, all tickets behind it wait too: small images
cannot pass a large image for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from coe.errors import LineClosed, LineFull

T = TypeVar("T")

CLOSED = "this line is closed; open a new Inspector"


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


_AT_ONCE = _done()
"""What all tickets share that were granted when they were taken: making a future takes longer than all the rest."""


class Ticket:
    """A place in the queue, and then inside. `granted` is done once there is room, or fails with LineClosed.

    Whoever took a ticket calls `leave`, whether or not it was granted.
    """

    __slots__ = ("_admission", "abandoned", "granted", "size")

    def __init__(self, admission: Admission, size: int) -> None:
        self._admission, self.size, self.abandoned = admission, size, False
        self.granted = _AT_ONCE

    def queue_up(self) -> None:
        """Become a ticket that waits, before any other thread knows it."""
        self.granted = Future()
        # A caller that gives up waiting calls `leave`; the future refuses to be cancelled.
        self.granted.set_running_or_notify_cancel()

    def wait(self) -> None:
        """Wait until there is room; raises LineClosed if the line closes first."""
        self.granted.result()

    def then(self, work: Callable[[], T]) -> Future[T]:
        """Call `work` as soon as there is room, on the thread that makes the room: `work` must not wait.

        The future gives what `work` returns or raises, or LineClosed. If `work` raises, the ticket leaves.
        """
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()
        # A future keeps its callbacks. This list is emptied when they run, so that it keeps neither pixels nor ticket.
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
        """Give back the place, inside or in the queue. A second call does nothing."""
        self._admission._leave(self)

    def give_up(self) -> None:
        """Give back the place in the queue; a ticket that is inside stays there."""
        self._admission._leave(self, row_only=True)

    def abandon(self) -> None:
        """Give back the place in the queue the next time that a ticket leaves.

        Takes no lock: garbage collection may call this in the middle of any other call, on its thread.
        """
        self.abandoned = True


class _Answers(NamedTuple):
    """Tickets that leave the queue together, with an answer."""

    granted: list[Ticket]
    refused: list[Ticket]


class Admission:
    """Bounds how many tickets are inside, and their bytes. A ticket larger than `limit_bytes` is let in alone.

    Safe to call from many threads. A signal handler may call `close`, too.
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
        """Whether no more tickets are admitted."""
        return self._closed

    def enter(self, size: int, *, wait: bool = True) -> Ticket:
        """Take a ticket for `size` bytes; it is granted at once if there is room and no ticket waits.

        Raises LineClosed after `close`; without `wait`, LineFull if the ticket would not be granted at once.
        """
        ticket = Ticket(self, size)
        with self._changed:
            if self._closed:
                raise LineClosed(CLOSED)
            if not self._waiting and self._has_room(size):
                self._let_in(ticket)
                return ticket
            somebody_waits = any(not waiting.abandoned for waiting in self._waiting)
            if not wait and (somebody_waits or not self._has_room(size)):
                raise LineFull(
                    f"{len(self._inside)} images are under way; wait for results, or submit with on_full='block'"
                )
            ticket.queue_up()
            self._waiting[ticket] = None
            answers = self._go_through()
        _tell(answers)
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
        """Admit no more tickets; waiting tickets fail with LineClosed. A ticket inside stays until it leaves."""
        self._closed = True
        # Never waits: a signal may have interrupted the very thread that holds the lock. Then the next ticket that
        # leaves answers the waiting tickets; a ticket is inside as long as any ticket waits.
        if self._changed.acquire(blocking=False):
            try:
                answers = self._go_through()
            finally:
                self._changed.release()
            _tell(answers)

    def wait_empty(self, timeout_s: float | None = None) -> bool:
        """Wait until no ticket is inside; return False if `timeout_s` passes first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._inside, timeout_s)

    def _leave(self, ticket: Ticket, *, row_only: bool = False) -> None:
        with self._changed:
            self._waiting.pop(ticket, None)
            if ticket in self._inside and not row_only:
                self._inside.remove(ticket)
                self._bytes -= ticket.size
            answers = self._go_through()
            if not self._inside:  # else a thread that waits for the last image would be woken for each
                self._changed.notify_all()
        _tell(answers)

    def _go_through(self) -> _Answers:
        """Take the tickets that have an answer now from the queue, and return them."""
        granted: list[Ticket] = []
        if self._closed:
            refused = list(self._waiting)
            self._waiting.clear()
            return _Answers(granted, refused)
        while self._waiting and ((first := next(iter(self._waiting))).abandoned or self._has_room(first.size)):
            del self._waiting[first]
            if first.abandoned:
                continue
            self._let_in(first)
            granted.append(first)
        return _Answers(granted, [])

    def _let_in(self, ticket: Ticket) -> None:
        self._inside.add(ticket)
        self._bytes += ticket.size

    def _has_room(self, size: int) -> bool:
        if not self._inside:
            return True
        return len(self._inside) < self.places and self._bytes + size <= self.limit_bytes


def _tell(answers: _Answers) -> None:
    """Answer tickets. Not under the lock: their callbacks may call the admission again."""
    for ticket in answers.granted:
        ticket.granted.set_result(None)
    for ticket in answers.refused:
        ticket.granted.set_exception(LineClosed(CLOSED))
