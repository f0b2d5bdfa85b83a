"""What a device must offer. The engine knows no more of a processor than this."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from coe.core import Expert, Finding
from coe.runtime.trial import Trial
from coe.scheduler.costs import Cost
from coe.store.kinds import Prepared


class Device(Protocol):
    """A processor whose memory the pools of its name budget. Methods are called from several threads."""

    threads: int
    """How many threads each executor has."""
    memory_bytes: int | None
    """The budget of a device with memory of its own; None where it is the host's."""
    host_bytes: int
    """What such a device keeps copies of experts in, in host memory."""

    def measure(self, expert: Expert) -> Cost:
        """Measure what an expert costs here; called before anything runs."""
        ...

    def trial(self, expert: Expert) -> AbstractContextManager[Trial]:
        """Give an expert to measure at length, on the calling thread, beside nothing else; raises StoreError."""
        ...

    def prepare(self, experts: Iterable[Expert], executors: int = 1) -> None:
        """Do all that can be done before the pools fill; called once, after everything was measured."""
        ...

    def fixed_bytes(self, experts: Iterable[Expert], executors: int) -> int:
        """Return what so many executors hold beside such experts and their activations, whichever they run."""
        ...

    def enter(self, executor: str) -> None:
        """Set up the calling thread as an executor, before its first batch."""
        ...

    def load(self, pool: str, expert: Expert, *, keep: bool = False) -> None:
        """Bring an expert into a pool, and with `keep` let a copy stay in host memory, if that is another.

        Raises StoreError, DeviceFull, DeviceLost. Called by the copy lane alone.
        """
        ...

    def evict(self, pool: str, expert: Expert, *, keep: bool = False) -> None:
        """Drop an expert and give its memory back; with `keep` it goes down into host memory, if that is another.

        Called by the copy lane alone, never while a batch runs on it.
        """
        ...

    def forget(self, expert: str) -> None:
        """Drop the copy of an expert in host memory, if there is one. Called by the copy lane alone."""
        ...

    def trim(self) -> None:
        """Give back memory that is kept for further loads. Called by the copy lane alone, when it has none to do."""
        ...

    def run(self, executor: str, pool: str, expert: Expert, images: Sequence[Prepared]) -> list[Finding]:
        """Run a batch on a loaded expert and return one finding an image; raises CoeError, DeviceLost.

        Called by the executor's thread.
        """
        ...
