"""Admits images while there is room. First come, first served, and every admitted ticket leaves exactly once.

Each image takes a ticket. While the first waiting ticket has no room, all tickets behind it wait too: small images
cannot pass a large image for ever.

An exception may strike at any bytecode of a caller, as Ctrl-C does. So a caller makes its ticket before it enters, and
calls `Ticket.recover` for whatever exception comes: that gives back the place, and the lock if it was left taken.
Tickets share nothing that waits: each has a lock for its answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from coe.errors import LineClosed, LineFull

T = TypeVar("T")

CLOSED = "this line is closed; open a new Inspector"


def give_back(lock: threading.RLock | threading.Condition) -> None:
    """Release a lock as often as the calling thread holds it: an exception may have left it taken."""
    with suppress(RuntimeError):
        while True:
            lock.release()


class Ticket:
    """A place in the queue, and then inside, for `size` bytes.

    Whoever entered with a ticket calls `leave`, whether or not it was let in. `then` is called with the ticket once it
    is let in or refused, on the thread that does this; it must neither wait nor raise.
    """

    __slots__ = ("_admission", "_answer", "_then", "abandoned", "refused", "size")

    def __init__(self, admission: Admission, size: int, then: Callable[[Ticket], None] | None = None) -> None:
        self._admission, self.size = admission, size
        # Emptied when it is called, so that it keeps neither pixels nor ticket.
        self._then = [then] if then is not None else []
        self.abandoned = self.refused = False
        self._answer = threading.Lock()
        self._answer.acquire()

    @property
    def answered(self) -> bool:
        """Whether the ticket was let in or refused."""
        return not self._answer.locked()

    def enter(self, *, wait: bool = True) -> bool:
        """Enter at once if there is room and no ticket waits, else the queue; return whether the ticket is let in.

        Raises LineClosed after `Admission.close`; without `wait`, LineFull if the ticket would have to queue.
        """
        return self._admission._enter(self, wait=wait)

    def wait(self) -> None:
        """Wait until there is room; raises LineClosed if the line closes first."""
        with self._answer:
            pass
        self.check()

    def check(self) -> None:
        """Raise LineClosed if the ticket was refused."""
        if self.refused:
            raise LineClosed(CLOSED)

    def leave(self) -> None:
        """Give back the place, inside or in the queue. A second call does nothing."""
        self._admission._leave(self)

    def give_up(self) -> None:
        """Give back the place in the queue; a ticket that is inside stays there."""
        self._admission._leave(self, row_only=True)

    def recover(self) -> None:
        """Leave after an exception that may have struck anywhere, on the thread that called `enter`."""
        self._admission._recover(self)

    def abandon(self) -> None:
        """Give back the place in the queue the next time that a ticket leaves.

        Takes no lock: garbage collection may call this in the middle of any other call, on its thread.
        """
        self.abandoned = True

    def _tell(self) -> None:
        """Wake whoever waits for the answer; a second call does nothing."""
        with suppress(RuntimeError):
            self._answer.release()

    def _go_on(self) -> None:
        """Do what follows the answer, once."""
        while self._then:
            try:
                then = self._then.pop()
            except IndexError:  # another thread does it
                return
            then(self)


class Admission:
    """Bounds how many tickets are inside, and their bytes. A ticket larger than `limit_bytes` is let in alone.

    Safe to call from many threads. A signal handler may call `close`, too.
    """

    def __init__(self, places: int, limit_bytes: int) -> None:
        self.places, self.limit_bytes = places, limit_bytes
        self._inside: set[Ticket] = set()
        self._waiting: dict[Ticket, None] = {}
        self._bytes = 0
        self.closed = False
        """Whether no more tickets are admitted."""
        # Reentrant, because only such a lock can be given back by whoever does not know whether it is taken.
        self._lock = threading.RLock()
        self._is_changing = False
        self._to_wake: list[threading.Lock] = []
        """What waits for the last ticket to leave."""

    def __repr__(self) -> str:
        return (
            f"<Admission {len(self._inside)}/{self.places} inside, {self._bytes} bytes, {len(self._waiting)} waiting>"
        )

    def within(self, size: int, work: Callable[[], T]) -> T:
        """Wait for room for `size` bytes, and hold it during `work`; raises LineClosed, or what `work` raises."""
        ticket = Ticket(self, size)
        try:
            if not ticket.enter():
                ticket.wait()
            result = work()
            ticket.leave()
            return result
        except BaseException:
            ticket.recover()
            raise

    def close(self) -> None:
        """Admit no more tickets; waiting tickets fail with LineClosed. A ticket inside stays until it leaves."""
        self.closed = True
        # Never waits: a signal may have interrupted the very thread that holds the lock. Then the next ticket that
        # leaves answers the waiting tickets; a ticket is inside as long as any ticket waits.
        if self._lock._is_owned():  # type: ignore[attr-defined]  # which typeshed lacks; Condition calls it, too
            return
        answered: list[Ticket] = []
        try:
            if self._lock.acquire(blocking=False):
                if not self._is_changing:
                    answered = self._go_through()
                self._lock.release()
        except BaseException:
            give_back(self._lock)
            raise
        _go_on(answered)

    def wait_empty(self, timeout_s: float | None = None) -> bool:
        """Wait until no ticket is inside; return False if `timeout_s` passes first."""
        empty = threading.Lock()
        try:
            with self._lock:
                if not self._inside:
                    return True
                empty.acquire()
                self._to_wake.append(empty)
            if empty.acquire(timeout=-1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)):
                return True
            with self._lock, suppress(ValueError):
                self._to_wake.remove(empty)
            return False
        except BaseException:
            give_back(self._lock)
            raise

    def _enter(self, ticket: Ticket, *, wait: bool) -> bool:
        answered: list[Ticket] = []
        with self._lock:
            if self.closed:
                raise LineClosed(CLOSED)
            self._is_changing = True
            if not self._waiting and self._has_room(ticket.size):
                self._let_in(ticket)
                answered.append(ticket)
            elif wait or (self._has_room(ticket.size) and all(other.abandoned for other in self._waiting)):
                self._waiting[ticket] = None
                answered = self._go_through()
            self._is_changing = False
            is_in = ticket in self._inside
            is_full = not is_in and ticket not in self._waiting
        if is_full:
            raise LineFull(
                f"{len(self._inside)} images are under way; wait for results, or submit with on_full='block'"
            )
        _go_on(answered)
        return is_in

    def _leave(self, ticket: Ticket, *, row_only: bool = False) -> None:
        with self._lock:
            self._is_changing = True
            self._waiting.pop(ticket, None)
            if ticket in self._inside and not row_only:
                self._inside.remove(ticket)
                self._bytes -= ticket.size
            answered = self._go_through()
            self._is_changing = False
        _go_on(answered)

    def _recover(self, ticket: Ticket) -> None:
        give_back(self._lock)
        with self._lock:
            self._is_changing = True
            self._waiting.pop(ticket, None)
            self._inside.discard(ticket)
            self._bytes = sum(other.size for other in self._inside)
            # Whom the call that was interrupted let in, perhaps without a word.
            answered = [*self._inside, *self._go_through()]
            for other in answered:
                other._tell()
            self._is_changing = False
        _go_on(answered)

    def _go_through(self) -> list[Ticket]:
        """Let in or refuse the tickets of the queue that have an answer now, and return them."""
        answered: list[Ticket] = []
        for first in list(self._waiting) if self.closed else ():
            first.refused = True
            first._tell()
            del self._waiting[first]
            answered.append(first)
        while self._waiting and ((first := next(iter(self._waiting))).abandoned or self._has_room(first.size)):
            if not first.abandoned:
                self._let_in(first)
                answered.append(first)
            del self._waiting[first]
        if self._to_wake and not self._inside:
            for empty in self._to_wake:
                empty.release()
            self._to_wake.clear()
        return answered

    def _let_in(self, ticket: Ticket) -> None:
        self._inside.add(ticket)
        self._bytes += ticket.size
        ticket._tell()

    def _has_room(self, size: int) -> bool:
        if not self._inside:
            return True
        return len(self._inside) < self.places and self._bytes + size <= self.limit_bytes


def _go_on(answered: list[Ticket]) -> None:
    """Do what follows the answers. Not under the lock: it may call the admission again."""
    for ticket in answered:
        ticket._go_on()
