"""The way to boxes, whatever carries it: real machines over Ray, or boxes in this process in a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from coe.cluster.box import BoxWorker, Fetch
from coe.cluster.messages import BoxFacts, BoxReport, CarriedImage, Parcel
from coe.errors import CoeError, ConfigError
from coe.inspector.precision import LineCosts


class BoxGone(CoeError):
    """A box no longer answers, or can run nothing any more; if it has `crashed`, its machine lives on."""

    def __init__(self, reason: str, *, crashed: bool = False) -> None:
        super().__init__(reason)
        self.crashed = crashed


class NotCarried(CoeError):
    """An image could not be brought to the boxes."""


def check_same(first: Link, other: Link) -> None:
    """Raise ConfigError if boxes would run an expert in different variants: findings would depend on the box."""
    ours, theirs = first.facts.costs.choice, other.facts.costs.choice
    if (ours.variants, ours.escalate_below) != (theirs.variants, theirs.escalate_below):
        raise ConfigError(
            f"{first.id} and {other.id} would run experts in different precisions, because their memories differ; "
            "give all boxes the same memory and executors, or use --precision fp32"
        )


class Link(Protocol):
    """The way to a box."""

    @property
    def id(self) -> str:
        """The name of the box; no other box of the line has had it."""

    @property
    def facts(self) -> BoxFacts:
        """What the box has."""

    def take(self, parcel: Parcel) -> None:
        """Hand messages over; waits for nothing, raises nothing. The head's thread alone calls it."""

    def next_report(self) -> BoxReport:
        """Wait for the box's next report, which may be empty, a sign of life; raises BoxGone.

        A box that can run nothing any more may still report: `BoxReport.broken` says why, and it is to be given up.
        """

    def close(self) -> BoxReport | None:
        """End the box; return its last report if it still gives it. Raises nothing."""


class Boxes(Protocol):
    """All boxes of a cluster."""

    def open(self) -> list[Link]:
        """Open a box on each machine that is there; raises ConfigError or StoreError, which name the box."""

    def open_new(self, wait_s: float) -> list[Link]:
        """Wait at most `wait_s` seconds for machines that come; return their boxes. Opening these may take longer.

        A machine whose box cannot be opened is left out, and the user is told why. Whatever this raises ends the search
        for machines, and not the line.
        """

    def share(self, image: CarriedImage) -> object:
        """Bring an image to where boxes can fetch it, and return what they fetch it by; raises NotCarried.

        It stays there as long as the returned object exists. Any thread may call.
        """

    def close(self) -> None:
        """Let go of the cluster, and end all boxes that are left."""


OpenBox = Callable[[str, LineCosts | None, Fetch], BoxWorker]
"""Makes a box on this machine, by its id; with the costs of another box nothing is measured. It can be pickled.

Raises ConfigError, RulesError or StoreError.
"""

Say = Callable[[str], None]
"""Takes a sentence for the user."""
