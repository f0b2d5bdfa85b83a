"""The protocol of a device. The engine knows nothing else of a processor.

A subclass need not define the methods that `return` here: a device that uses host memory has nothing to do there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from coe.core import Expert, Finding
from coe.runtime.trial import Trial
from coe.scheduler.costs import Cost
from coe.store.runnable_kinds import ExpertInput


class Device(Protocol):
    """A processor; its pools budget its memory. Methods are called from several threads."""

    threads: int
    """How many threads each executor has."""
    memory_bytes: int | None
    """The budget of a device with its own memory; None for a device that uses host memory."""
    host_bytes: int
    """How much host memory a device with its own memory uses for copies of experts."""
    has_lane: bool
    """Whether `read` brings experts into host memory, and `load` brings them on from there; else `load` does all."""

    holds_bodies: bool
    """Whether the device keeps bodies for good, each once; else each expert is loaded whole."""
    depth: int
    """How many batches an executor may have on the device: more than 1 for a device that does its work later."""

    def measure(self, expert: Expert) -> Cost:
        """Measure what an expert costs on this device; called before anything runs."""

    def trial(self, expert: Expert) -> AbstractContextManager[Trial]:
        """Give a trial of an expert, to measure on the calling thread while nothing else runs; raises StoreError."""

    def prepare(self, experts: Iterable[Expert], executors: int = 1) -> None:
        """Do all work that can be done before the pools fill; called once, after all measuring."""

    def admit(self, experts: Iterable[Expert], executors: int) -> None:
        """Get ready for further experts while a line runs; called after `prepare`.

        Raises ConfigError for experts that need memory which only `prepare` takes.
        """
        return

    def fixed_bytes(self, experts: Iterable[Expert], executors: int) -> int:
        """Return the bytes that so many executors hold for good, beside the experts and their activations.

        Bodies are among them: those of the experts, and those that the device keeps already. The device loads a body
        with the first expert that needs it.
        """

    def enter(self, executor: str) -> None:
        """Set up the calling thread as an executor, before its first batch."""

    def read(self, pool: str, expert: Expert) -> None:
        """Read an expert from disk into host memory, for the `load` that follows.

        Raises StoreError, DeviceFull, DeviceLost. Called by the disk reader alone, if the device has a lane.
        """
        return

    def load(self, pool: str, expert: Expert, *, keep_copy: bool = False) -> None:
        """Bring an expert into a pool; with `keep_copy`, a device with its own memory leaves a copy in host memory.

        Raises StoreError, DeviceFull, DeviceLost. Called by the copy lane alone or, without one, by the disk reader.
        """

    def evict(self, pool: str, expert: Expert, *, keep_copy: bool = False) -> None:
        """Drop an expert and free its memory; with `keep_copy`, a device that has memory first copies it to the host.

        Called as `load` is, never while a batch runs on the expert.
        """

    def fill(self, expert: Expert) -> None:
        """Read an expert from disk into host memory, where its copy stays, for a device with its own memory.

        Raises StoreError, DeviceFull, DeviceLost. Called by the disk reader alone.
        """
        return

    def forget(self, expert: str) -> None:
        """Drop the copy of an expert in host memory, if there is one. Called by the disk reader and the copy lane."""
        return

    def trim(self) -> None:
        """Free memory that is kept for further loads. Called as `load` and `read` are, when no load waits."""
        return

    def leave(self) -> None:
        """Let go of what lies in the heap of the calling thread. Called by each thread that loads, as its last act."""
        return

    def close(self) -> None:
        """Wait until the device does no more work; called once no thread calls it any more. Its memory may go then."""
        return

    def run(self, executor: str, pool: str, expert: Expert, images: Sequence[ExpertInput]) -> list[Finding]:
        """Run a batch on a loaded expert and return one finding for each image; raises CoeError, DeviceLost.

        A device of `depth` 1 defines this, and any other `launch`.
        """
        return list(self.launch(executor, pool, expert, images)())

    def launch(
        self, executor: str, pool: str, expert: Expert, images: Sequence[ExpertInput]
    ) -> Callable[[], Sequence[Finding]]:
        """Begin a batch, or run it if `depth` is 1; the function that is returned waits for the findings of `run`.

        Called by the executor's thread; the function is called once, on any thread, before as many as `depth` further
        batches begin. Both raise CoeError, DeviceLost.
        """
        findings = self.run(executor, pool, expert, images)
        return lambda: findings
