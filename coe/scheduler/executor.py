"""An executor as the controller sees it. Only `begin` and `end` change its batch.

The engine decides which thread runs its batches.
"""

from __future__ import annotations

from coe.core import Batch
from coe.scheduler.backlog import Backlog
from coe.scheduler.plan import ExecutorSpec
from coe.scheduler.pool import ModelPool


class Executor:
    """One worker of a device: its backlog, its pool, and the batch that it runs now.

    The batch holds `held_bytes` of the pool in addition to the weights; its predicted end is at `busy_until_s`.
    """

    def __init__(self, spec: ExecutorSpec, pool: ModelPool, backlog: Backlog) -> None:
        self.id, self.device = spec.id, spec.device
        self.pool = pool
        self.backlog = backlog
        self.batch: Batch | None = None
        self.held_bytes = 0
        self.busy_until_s = 0.0

    def __repr__(self) -> str:
        doing = f"running {self.batch.expert} x{len(self.batch)}" if self.batch else "idle"
        return f"<Executor {self.id} {doing}, {len(self.backlog)} waiting>"

    def begin(self, batch: Batch, held_bytes: int, until_s: float) -> None:
        """Take a batch; raises ValueError if another batch runs."""
        if self.batch is not None:
            raise ValueError(f"{self!r} cannot begin another batch")
        self.batch, self.held_bytes, self.busy_until_s = batch, held_bytes, until_s

    def end(self) -> Batch:
        """Let go of the batch and return it; raises ValueError if there is none."""
        if self.batch is None:
            raise ValueError(f"{self!r} has no batch to end")
        batch, self.batch, self.held_bytes = self.batch, None, 0
        return batch

    def remaining_s(self, now: float) -> float:
        """Return the predicted time until everything assigned here is done, in seconds."""
        return self.backlog.pending_s + (max(0.0, self.busy_until_s - now) if self.batch else 0.0)
