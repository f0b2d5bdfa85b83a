"""An executor as the controller sees it. Only `begin` and `end` change its batches.

The engine decides which thread runs its batches.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from coe.core import Batch
from coe.scheduler.backlog import Backlog
from coe.scheduler.plan import ExecutorSpec
from coe.scheduler.pool import ModelPool


class Flight(NamedTuple):
    """A batch under way. It holds `held_bytes` of the pool in addition to the weights; it should end at `until_s`."""

    batch: Batch
    held_bytes: int
    until_s: float


class Executor:
    """One worker of a device: its backlog, its pool, and its batches under way, at most `depth`, the oldest first.

    Batches run one after another and end in their order: with a depth of 2 the next batch is on the device already when
    a batch ends.
    """

    def __init__(self, spec: ExecutorSpec, pool: ModelPool, backlog: Backlog) -> None:
        self.id, self.device, self.depth = spec.id, spec.device, spec.depth
        self.pool = pool
        self.backlog = backlog
        self.is_free = True
        """Whether the executor takes another batch."""
        self.batch: Batch | None = None
        """The batch that runs now, the oldest under way; None if the executor is idle."""
        self._flights: deque[Flight] = deque()

    def __repr__(self) -> str:
        batches = " and ".join(f"{flight.batch.expert} x{len(flight.batch)}" for flight in self._flights)
        return f"<Executor {self.id} {f'running {batches}' if batches else 'idle'}, {len(self.backlog)} waiting>"

    @property
    def flights(self) -> tuple[Flight, ...]:
        """The batches under way, the oldest first."""
        return tuple(self._flights)

    def idle_from_s(self, now: float) -> float:
        """Return the predicted time at which all batches under way have ended; `now` if there is none."""
        return max(now, self._flights[-1].until_s) if self._flights else now

    def begin(self, batch: Batch, held_bytes: int, until_s: float) -> None:
        """Take a batch; raises ValueError if as many as `depth` are under way."""
        if not self.is_free:
            raise ValueError(f"{self!r} cannot begin another batch")
        self._flights.append(Flight(batch, held_bytes, until_s))
        self._note()

    def end(self) -> Flight:
        """Let go of the oldest batch and return it; raises ValueError if there is none."""
        if not self._flights:
            raise ValueError(f"{self!r} has no batch to end")
        flight = self._flights.popleft()
        self._note()
        return flight

    def remaining_s(self, now: float) -> float:
        """Return the predicted time until everything assigned here is done, in seconds."""
        return self.backlog.pending_s + (self.idle_from_s(now) - now)

    def _note(self) -> None:
        self.is_free = len(self._flights) < self.depth
        self.batch = self._flights[0].batch if self._flights else None
