"""The base classes of policies. A policy is one class with one ranking; it looks at the line and changes nothing.

Policies get the real executors, backlogs and pools, not copies; a test proves for every policy that it only looks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from coe import config
from coe.board.graph import ExpertGraph
from coe.board.router import Router
from coe.scheduler.backlog import Backlog, Group
from coe.scheduler.costs import CostTable, Tier
from coe.scheduler.demand import Demand
from coe.scheduler.events import Why
from coe.scheduler.executor import Executor
from coe.scheduler.foresight import LineForesight
from coe.scheduler.history import History
from coe.scheduler.host_cache import HostCache
from coe.scheduler.pool import ModelPool, PoolWatcher


class Need(StrEnum):
    """What a policy may need from the other policies of its strategy; the values are words for messages."""

    SHARED_BACKLOG = "one backlog that all executors share"
    RESIDENT_FIRST = "stages of resident experts to run before an executor waits for a load"
    DUE_FIRST = "stages that have waited long to run before others"
    LOADS = "experts to be loaded before an executor takes their stages, in order of due time"
    FORESIGHT = "experts to be loaded before their images arrive"


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a policy may look at."""

    graph: ExpertGraph
    costs: CostTable
    executors: Mapping[str, Executor]
    demand: Demand
    evictions: Mapping[str, Eviction]
    """By pool."""
    cache: HostCache | None = None
    history: History = field(default_factory=History)
    """The images under way with their components, serials and findings."""
    foresight: LineForesight = field(default_factory=lambda: LineForesight(Router({})))
    """Which expert is needed at which place ahead; it foresees nothing if no policy of the strategy looks ahead."""
    router: Router = field(default_factory=lambda: Router({}))
    """The rules: which experts an image of a component will need."""

    def source(self, device: str, expert: str) -> Tier:
        """Return the tier in which the weights of an expert lie that a device does not hold."""
        return Tier.HOST if self.cache is not None and self.cache.serves(device) and expert in self.cache else Tier.DISK

    def tiers(self, device: str) -> tuple[Tier, ...]:
        """Return the tiers from which experts come to a device; both bring them at the same time."""
        return tuple(Tier) if self.cache is not None and self.cache.serves(device) else (Tier.DISK,)

    def switch_s(self, pool: ModelPool, expert: str) -> float:
        """Return the time in which an expert comes into a pool from the tier where its weights lie now.

        The expert must not be in the pool, or must be leaving it.
        """
        cost = self.costs.stated(pool.device, expert)
        if self.cache is None or self.source(pool.device, expert) is Tier.DISK:
            return cost.load_s
        return cost.copy_s

    def comes_in_s(self, pool: ModelPool, expert: str, now: float) -> float:
        """Return in how many seconds an expert on its way is in the pool, if its load takes as long as stated."""
        cost = self.costs.stated(pool.device, expert)
        whole_s = cost.load_s if pool.source(expert) is Tier.DISK else cost.copy_s
        return max(0.0, whole_s - pool.moves_for_s(expert, now))

    def images_until(self, expert: str) -> float:
        """Return at which image from now an expert is expected to be needed; stages on their way count as images."""
        until = self.foresight.images_until(expert)
        use = self.demand.usage(expert) if until is None else 1 / until
        expected = self.demand.coming(expert) + config.OUTLOOK_IMAGES * use
        return config.OUTLOOK_IMAGES / expected if expected > 0 else math.inf

    def backlogs(self, pool: str | None = None) -> tuple[Backlog, ...]:
        """Return the backlogs of all executors, or of those with a pool; a shared backlog is returned once."""
        executors = [executor for executor in self.executors.values() if pool is None or executor.pool.id == pool]
        return tuple(dict.fromkeys(executor.backlog for executor in executors))

    def loads_ahead(self, device: str) -> int:
        """Return for how many loads after the present one to make room: as many as begin during the longest batch.

        The function looks at all experts, so call it once.
        """
        costs = [self.costs(device, expert) for expert in self.graph.experts]
        longest = max(cost.batch_s(cost.max_batch) / max(cost.load_s, 1e-9) for cost in costs)
        return math.ceil(min(max(longest, 1), config.LOADS_AHEAD))


class Policy:
    """The base class of a strategy's policies. Together they must give everything that each of them needs.

    A policy that watches is made again when the boards on the line change; policies that select or prefetch also when a
    device is lost. So no policy need know that either can happen. Then an eviction policy is told of the experts in its
    pool as if they entered, and a policy that watches the history is told of the images under way.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()
    gives: ClassVar[frozenset[Need]] = frozenset()


class Assign(Policy, ABC):
    """Which executor's backlog takes a stage?"""

    @abstractmethod
    def choose(self, expert: str, world: World, now: float) -> str:
        """Return the id of an executor."""


class Arrange(Policy, ABC):
    """Where in the backlog does a stage go?"""

    @abstractmethod
    def joins(self, expert: str, backlog: Backlog, now: float) -> bool:
        """Return whether the stage goes behind the last stage of its expert, rather than to the end."""


class Select(Policy, ABC):
    """Which group does an idle executor take?"""

    def watch(self, world: World) -> None:
        """Take the world; called once, before anything else."""

    @abstractmethod
    def rank(self, executor: Executor, world: World, now: float) -> Iterator[Group]:
        """Yield groups in order of preference; the first that can run or be loaded is taken."""


class Eviction(Policy, PoolWatcher, ABC):
    """Which expert leaves first? Each pool has its own object, which may keep its ranking as experts come and go.

    The pool tells it of them by `entered` and `left`. A policy that ranks by demand takes `subscribe()` of
    `world.demand` in `watch`, which names the experts whose numbers have changed, and those that come and go.
    """

    def watch(self, pool: ModelPool, world: World) -> None:
        """Take the pool; called once, before the policy is told of any expert."""

    @abstractmethod
    def rank(self, pool: ModelPool, world: World, now: float) -> Iterator[str]:
        """Yield experts of the pool, the first to leave first; the caller skips experts that may not leave yet.

        This is called often, not only for switches, and the caller takes only as many experts as must leave: do not
        look at all of them.
        """

    def stays(self, expert: str, newcomer: str, why: Why) -> bool:
        """Return whether an expert, and all experts ranked after it, stay rather than make room for `newcomer`.

        `why` says why the newcomer is loaded.
        """
        return False


class Prefetch(Policy, ABC):
    """Which expert is loaded while the executor runs and the lane idles?"""

    def watch(self, world: World) -> None:
        """Take the world; called once, before anything else."""

    @abstractmethod
    def rank(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        """Yield experts in order of preference; the first absent expert on disk, and in host memory, is tried."""

    def ahead(self, executor: Executor, world: World, now: float) -> Iterator[str]:
        """Yield absent experts for which no stage waits, the first to be needed first.

        This is called only while nothing is loaded. The first for which experts leave that are needed later is loaded.
        """
        yield from ()

    @classmethod
    def looks_ahead(cls) -> bool:
        """Return whether the policy has an `ahead` of its own."""
        return cls.ahead is not Prefetch.ahead
