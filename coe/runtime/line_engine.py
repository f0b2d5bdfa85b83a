"""What a line runs on: the engine of this machine, or the head of several boxes."""

from __future__ import annotations

from typing import Protocol

from coe.core import Failure, Request
from coe.pictures.image_source import ImageSource
from coe.results.metrics import Metrics
from coe.runtime.line_threads import LineThreads
from coe.runtime.pending import Pending
from coe.runtime.reference_source import ReferenceSource


class LineEngine(Protocol):
    """Takes in images and gives each its one reply, on threads of its own. Its `repr` says how far it is."""

    @property
    def line_threads(self) -> LineThreads:
        """The threads of the line."""
        ...

    def submit(
        self,
        request: Request,
        source: ImageSource,
        reference: ReferenceSource | None = None,
        *,
        refused: Failure | None = None,
    ) -> Pending:
        """Take in an image, and its reference if experts compare it; the future's result is its one reply.

        With `refused` that reply is this failure, and the image is not looked at.
        """
        ...

    def now(self) -> float:
        """Return the time on the clock of the line, in seconds; due times are on this clock."""
        ...

    def next_id(self) -> int:
        """Return a fresh request id."""
        ...

    def metrics(self) -> Metrics:
        """Return the counts so far."""
        ...

    def longest_decoding_s(self) -> float:
        """Return for how many seconds a thread of this engine has been at a picture; the longest of all."""
        ...

    def ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the first experts are loaded; return False on a timeout, or if the line ended first."""
        ...

    def stop(self) -> None:
        """Finish running batches and answer all other images with an error. Waits for nothing, takes no lock."""
        ...

    def close(self) -> None:
        """End all threads once every reply is out. Any number of calls is safe."""
        ...

    def abandon(self) -> None:
        """Stop, and tell all threads to end; waits for nothing. For a line that its owner dropped."""
        ...
