"""How long images may take in a run that is compared."""

from __future__ import annotations

from dataclasses import dataclass

from coe.scheduler.strategies import Strategy


@dataclass(frozen=True, slots=True)
class Times:
    """The longest time before an image is due, and the time within which its result is due; None means no bound."""

    max_wait_s: float | None = None
    within_s: float | None = None

    def heeded_by(self, chosen: Strategy) -> Times:
        """Return these bounds if the strategy looks at them, else no bounds."""
        return self if chosen.hurries else Times()


ANY_TIME = Times()
