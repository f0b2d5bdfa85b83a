"""Techniques of DuoServe-MoE (sections 4.1, 5.2 and 5.3): two phases of arranging, and prefetch by affinity."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice

from coe.core import Finding
from coe.scheduler.backlog import Backlog
from coe.scheduler.executor import Executor
from coe.scheduler.history import HistoryWatcher, ImageView
from coe.scheduler.policies.base import World
from coe.scheduler.policies.coserve import GroupForATime, NextGroups
from coe.scheduler.policies.ranking import Ranking
from coe.scheduler.strategies import Strategy

_BURST = 8
"""From how many waiting stages on it is a burst: as many as fill a batch of the paper's boxes."""
_TOP = 2
"""How many followers of an expert are foreseen: the paper's models take two experts a layer."""


class Phased(GroupForATime):
    """In a burst a stage joins the group of its expert, as the paper's prefill; in a trickle it goes to the end."""

    def joins(self, expert: str, backlog: Backlog, now: float) -> bool:
        return len(backlog) >= _BURST and super().joins(expert, backlog, now)


class Affinity(NextGroups, HistoryWatcher):
    """First the next groups; while nothing is loaded, the likeliest followers of the last experts.

    An expert follows another if it has the next finding of the same image, or if the next image begins with it. Counts
    of followers are the paper's affinity; the number of images that an expert began is its popularity, and decides
    between equals. The paper feeds both into a network; with so few inputs the table itself is the prediction.
    """

    def watch(self, world: World) -> None:
        self._router = world.router
        self._followed: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._followers: defaultdict[str, Ranking] = defaultdict(Ranking)
        self._popularity: Counter[str] = Counter()
        self._last: str | None = None
        world.history.watch(self)

    def arrived(self, image: ImageView) -> None:
        component = self._router.components.get(image.request.rule)
        if component is None:
            return
        expert = component.root.expert
        self._popularity[expert] += 1
        self._note(self._last, expert)
        self._last = expert

    def found(self, image: ImageView, finding: Finding) -> None:
        before = [expert for expert in image.findings if expert != finding.expert]
        self._note(before[-1] if before else None, finding.expert)

    def ahead(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        present = [flight.batch.expert for flight in executor.flights]
        before = dict.fromkeys([*present, *([self._last] if self._last else [])])
        followers = (follower for expert in before for follower in islice(self._followers[expert], _TOP))
        yield from (follower for follower in dict.fromkeys(followers) if follower not in executor.pool)

    def _note(self, before: str | None, expert: str) -> None:
        if before is not None:
            self._followed[before][expert] += 1
            self._followers[before].put(expert, -self._followed[before][expert], -self._popularity[expert])


DUOSERVE = Strategy("duoserve", arrange=Phased, prefetch=Affinity)
