"""What a policy is: one file, one class, a ranking. Policies see read-only views and change nothing."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from coe import config
from coe.board.graph import ExpertGraph
from coe.scheduler.costs import Cost, CostTable


class GroupView(Protocol):
    """Stages of one expert that stand together in a backlog."""

    @property
    def expert(self) -> str: ...  # noqa: D102
    @property
    def started_s(self) -> float | None: ...  # noqa: D102
    @property
    def since_s(self) -> float: ...  # noqa: D102
    @property
    def due_s(self) -> float: ...  # noqa: D102
    def __len__(self) -> int: ...


class BacklogView(Protocol):
    """See `coe.scheduler.backlog.Backlog`."""

    @property
    def pending_s(self) -> float: ...  # noqa: D102
    def __len__(self) -> int: ...
    def waiting(self, expert: str) -> int: ...  # noqa: D102
    def first(self, expert: str) -> GroupView | None: ...  # noqa: D102
    def groups(self) -> Iterator[GroupView]: ...  # noqa: D102
    def latest(self, expert: str) -> GroupView | None: ...  # noqa: D102


class PoolView(Protocol):
    """See `coe.scheduler.pool.ModelPool`."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def device(self) -> str: ...  # noqa: D102
    def __len__(self) -> int: ...
    def __contains__(self, expert: object) -> bool: ...
    def size(self, expert: str) -> int: ...  # noqa: D102
    def missing_bytes(self, more: int) -> int: ...  # noqa: D102
    def unused(self, expert: str) -> bool: ...  # noqa: D102
    def is_moving(self) -> bool: ...  # noqa: D102
    def is_ready(self, expert: str) -> bool: ...  # noqa: D102
    def by_arrival(self) -> Iterator[str]: ...  # noqa: D102
    def by_recency(self) -> Iterator[str]: ...  # noqa: D102


class ExecutorView(Protocol):
    """One executor with its backlog and its pool."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def device(self) -> str: ...  # noqa: D102
    @property
    def backlog(self) -> BacklogView: ...  # noqa: D102
    @property
    def pool(self) -> PoolView: ...  # noqa: D102
    def remaining_s(self, now: float) -> float:
        """Return the predicted time until everything that was assigned here is done, in seconds."""
        ...


class DemandView(Protocol):
    """See `coe.scheduler.demand.Demand`."""

    def entered(self, expert: str) -> None: ...  # noqa: D102
    def left(self, expert: str) -> None: ...  # noqa: D102
    def subscribe(self) -> dict[str, None]: ...  # noqa: D102
    def open(self, expert: str) -> int: ...  # noqa: D102
    def coming(self, expert: str) -> float: ...  # noqa: D102
    def usage(self, expert: str) -> float: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a policy may look at."""

    graph: ExpertGraph
    costs: CostTable
    executors: Mapping[str, ExecutorView]
    demand: DemandView
    evictions: Mapping[str, Eviction]
    """By pool."""

    def loads_ahead(self, device: str) -> int:
        """Return for how many loads beyond the one under way room is made: as many as begin during the longest batch.

        It looks at all experts; ask once.
        """
        costs = [self.costs(device, expert) for expert in self.graph.experts]
        longest = max(cost.batch_s(cost.max_batch) / max(cost.load_s, 1e-9) for cost in costs)
        return math.ceil(min(max(longest, 1), config.LOADS_AHEAD))


class Assign(ABC):
    """Which executor's backlog takes a stage?"""

    @abstractmethod
    def choose(self, expert: str, world: World, now: float) -> str:
        """Return the id of an executor."""


class Arrange(ABC):
    """Where in the backlog does a stage go?"""

    @abstractmethod
    def joins(self, expert: str, backlog: BacklogView, now: float) -> bool:
        """Return whether it goes behind the last stage of its expert (else to the end)."""


class Select(ABC):
    """Which group does an idle executor take?"""

    def watch(self, world: World) -> None:
        """Get to know the world, before anything happens; called once."""

    @abstractmethod
    def rank(self, executor: ExecutorView, world: World, now: float) -> Iterator[GroupView]:
        """Yield groups in order of preference; the first that can run or be loaded is taken."""


class Split(ABC):
    """How many stages of a group run now?"""

    @abstractmethod
    def size(self, group: GroupView, cost: Cost, room_bytes: int) -> int:
        """Return the size of the batch, 0 if none fits; never more than memory or the group allow."""


class Eviction(ABC):
    """Who leaves first? One object serves one pool, and may keep its ranking as experts come and go."""

    def watch(self, pool: PoolView, world: World) -> None:
        """Get to know the pool, before anything is in it; called once."""

    def entered(self, expert: str) -> None:
        """Take note of an expert that is in the pool, or on its way, from now on."""

    def left(self, expert: str) -> None:
        """Take note of an expert that is gone, or leaving."""

    @abstractmethod
    def rank(self, pool: PoolView, world: World, now: float) -> Iterator[str]:
        """Yield experts of the pool, the first to leave first; what may not leave yet is passed over later.

        It is called for every switch: only as much is drawn from it as has to leave, so it should not look at all.
        """

    def spares(self, expert: str, newcomer: str) -> bool:
        """Return whether an expert, and all that rank behind it, stay rather than make room for another."""
        return False


class Prefetch(ABC):
    """What is loaded while the executor runs and the lane idles?"""

    def watch(self, world: World) -> None:
        """Get to know the world, before anything happens; called once."""

    @abstractmethod
    def rank(self, executor: ExecutorView, world: World, now: float) -> Iterator[str]:
        """Yield experts in order of preference; only the first that is absent is tried."""
