"""eMoE's plan (section 3.3): the experts that the next images will need, made every few images and reused between."""

from __future__ import annotations

from collections import Counter

from coe.board.router import Router
from coe.scheduler.history import HistoryWatcher, ImageView
from coe.scheduler.policies.paths import predicted

PLAN_IMAGES = 40
"""For how many images a plan is used: with more, the paper's models got worse."""


class UsePlan(HistoryWatcher):
    """How many of the next images are expected to need each expert: as many as of the last `PLAN_IMAGES` images.

    `version` counts the plans; before the first plan nothing is expected.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._lately: Counter[str] = Counter()
        self._expected: Counter[str] = Counter()
        self._images = 0
        self.version = 0

    def arrived(self, image: ImageView) -> None:
        """Count what an image will need; make a new plan once enough images have come."""
        self._lately.update(predicted(self._router, image))
        self._images += 1
        if self._images == PLAN_IMAGES:
            self._expected, self._lately, self._images = self._lately, Counter(), 0
            self.version += 1

    def expected(self, expert: str) -> int:
        """Return how many of the next images are expected to need an expert."""
        return self._expected[expert]

    def in_order(self) -> list[str]:
        """Return the experts of the plan, the most needed first; ties in the order of names."""
        return sorted(self._expected, key=lambda expert: (-self._expected[expert], expert))
