"""Stages that wait for one executor, grouped by expert. It keeps the order; who runs is decided elsewhere."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator

from coe.core import Stage


class Group:
    """Stages of one expert that stand together.

    `started_s` is when its first batch was taken, None before; one that is not `open` takes no more stages.
    """

    __slots__ = ("_charges", "expert", "key", "open", "stages", "started_s")

    def __init__(self, key: int, expert: str) -> None:
        self.key = key
        self.expert = expert
        self.open = True
        self.stages: deque[Stage] = deque()
        self._charges: deque[float] = deque()
        self.started_s: float | None = None

    def __len__(self) -> int:
        return len(self.stages)

    def __repr__(self) -> str:
        return f"<Group {self.expert} x{len(self)}>"

    def add(self, stage: Stage, charge_s: float) -> None:
        """Put a stage at the end; `charge_s` is its predicted share of time."""
        self.stages.append(stage)
        self._charges.append(charge_s)

    def take(self, count: int) -> tuple[tuple[Stage, ...], float]:
        """Take stages from the front, with the seconds that were charged for them."""
        taken = tuple(self.stages.popleft() for _ in range(count))
        return taken, sum(self._charges.popleft() for _ in range(count))


class Backlog:
    """Groups in the order in which they are to run."""

    def __init__(self) -> None:
        self._groups: OrderedDict[int, Group] = OrderedDict()
        self._latest: dict[str, Group] = {}
        self._waiting: Counter[str] = Counter()
        self._keys = 0
        self._size = 0
        self._pending_s = 0.0

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<Backlog {len(self)} stages in {len(self._groups)} groups, {self.pending_s:.3f} s>"

    @property
    def pending_s(self) -> float:
        """The predicted time of everything that waits, in seconds."""
        return self._pending_s

    def waiting(self, expert: str) -> int:
        """Return how many stages wait for an expert."""
        return self._waiting.get(expert, 0)

    def groups(self) -> Iterator[Group]:
        """Yield the groups in order."""
        return iter(self._groups.values())

    def latest(self, expert: str) -> Group | None:
        """Return the last open group of an expert."""
        return self._latest.get(expert)

    def add(self, stage: Stage, charge_s: float, *, join: bool) -> None:
        """Put a stage behind the last one of its expert with `join`, else at the end.

        A stage at the end still joins the last group if that is of the same expert: nobody is overtaken.
        """
        last = next(reversed(self._groups.values()), None)
        group = self._latest.get(stage.expert) if join else last
        if group is None or group.expert != stage.expert or not group.open:
            group = self._latest[stage.expert] = self._new(stage.expert)
        self._put(group, stage, charge_s)

    def put_back(self, stages: tuple[Stage, ...], charge_s: float) -> None:
        """Put stages in front of all others, each a group of its own, so that each runs alone."""
        for stage in reversed(stages):
            group = self._new(stage.expert)
            group.open = False
            self._groups.move_to_end(group.key, last=False)
            self._put(group, stage, charge_s)

    def take(self, group: Group, count: int, now: float) -> tuple[Stage, ...]:
        """Take the first `count` stages of a group out of the backlog."""
        stages, charged_s = group.take(count)
        # Rounding must not pile up over weeks of stages.
        self._pending_s = self._pending_s - charged_s if self._size > count else 0.0
        self._size -= count
        self._waiting[group.expert] -= count
        if not self._waiting[group.expert]:
            del self._waiting[group.expert]
        if group.started_s is None:
            group.started_s = now
        if not group:
            del self._groups[group.key]
            if self._latest.get(group.expert) is group:
                del self._latest[group.expert]
        return stages

    def drop(self, expert: str) -> tuple[Stage, ...]:
        """Take out everything that waits for an expert."""
        dropped: list[Stage] = []
        for group in [group for group in self._groups.values() if group.expert == expert]:
            dropped += self.take(group, len(group), 0.0)
        return tuple(dropped)

    def check(self) -> None:
        """Prove the books; raises AssertionError."""
        assert sum(len(group) for group in self._groups.values()) == len(self), f"{self!r} miscounts"
        assert self._waiting.total() == len(self), f"{self!r} miscounts by expert"
        assert all(self._groups.values()), f"{self!r} holds an empty group"
        assert all(group.open and group.key in self._groups for group in self._latest.values()), f"{self!r}: latest"
        assert set(self._waiting) == {group.expert for group in self._groups.values()}, f"{self!r}: waiting"

    def _new(self, expert: str) -> Group:
        self._keys += 1
        group = self._groups[self._keys] = Group(self._keys, expert)
        return group

    def _put(self, group: Group, stage: Stage, charge_s: float) -> None:
        group.add(stage, charge_s)
        self._size += 1
        self._pending_s += charge_s
        self._waiting[stage.expert] += 1
