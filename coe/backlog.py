"""Stages that wait for one executor, grouped by expert. It keeps the order; who runs is decided elsewhere."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator

from coe.core import Stage


class Group:
    """Stages of one expert that stand together.

    `started_s` is when its first batch was taken, None before; one that is not `open` takes no more stages.
    """

    __slots__ = ("_charges", "_since_s", "expert", "key", "open", "stages", "started_s")

    def __init__(self, key: int, expert: str) -> None:
        self.key = key
        self.expert = expert
        self.open = True
        self.stages: deque[Stage] = deque()
        self._charges: deque[float] = deque()
        self._since_s: deque[float] = deque()
        self.started_s: float | None = None

    def __len__(self) -> int:
        return len(self.stages)

    def __repr__(self) -> str:
        return f"<Group {self.expert} x{len(self)}>"

    @property
    def since_s(self) -> float:
        """When the first stage came."""
        return self._since_s[0]

    def add(self, stage: Stage, charge_s: float, now: float) -> None:
        """Put a stage at the end; `charge_s` is its predicted share of time."""
        self.stages.append(stage)
        self._charges.append(charge_s)
        self._since_s.append(now)

    def take(self, count: int) -> tuple[tuple[Stage, ...], float]:
        """Take stages from the front, with the seconds that were charged for them."""
        taken = tuple(self.stages.popleft() for _ in range(count))
        for _ in range(count):
            self._since_s.popleft()
        return taken, sum(self._charges.popleft() for _ in range(count))


class Backlog:
    """Groups in the order in which they are to run. `changed` is told of each expert for which more or fewer wait."""

    def __init__(self, changed: Callable[[str], None] = lambda expert: None) -> None:
        self._changed = changed
        self._groups: OrderedDict[int, Group] = OrderedDict()
        self._own: dict[str, deque[Group]] = {}
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

    def first(self, expert: str) -> Group | None:
        """Return the first group of an expert."""
        own = self._own.get(expert)
        return own[0] if own else None

    def latest(self, expert: str) -> Group | None:
        """Return the last open group of an expert."""
        return self._latest.get(expert)

    def add(self, stage: Stage, charge_s: float, *, join: bool, now: float = 0.0) -> None:
        """Put a stage behind the last one of its expert with `join`, else at the end.

        A stage at the end still joins the last group if that is of the same expert: nobody is overtaken.
        """
        last = next(reversed(self._groups.values()), None)
        group = self._latest.get(stage.expert) if join else last
        if group is None or group.expert != stage.expert or not group.open:
            group = self._latest[stage.expert] = self._new(stage.expert)
        self._put(group, stage, charge_s, now)

    def put_back(self, stages: tuple[Stage, ...], charge_s: float, now: float = 0.0) -> None:
        """Put stages in front of all others, each a group of its own, so that each runs alone."""
        for stage in reversed(stages):
            group = self._new(stage.expert)
            group.open = False
            self._groups.move_to_end(group.key, last=False)
            self._own[stage.expert].rotate()
            self._put(group, stage, charge_s, now)

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
            self._own[group.expert].remove(group)
            if not self._own[group.expert]:
                del self._own[group.expert]
            if self._latest.get(group.expert) is group:
                del self._latest[group.expert]
        self._changed(group.expert)
        return stages

    def drop(self, expert: str) -> tuple[Stage, ...]:
        """Take out everything that waits for an expert."""
        dropped: list[Stage] = []
        for group in list(self._own.get(expert, ())):
            dropped += self.take(group, len(group), 0.0)
        return tuple(dropped)

    def check(self) -> None:
        """Prove the books; raises AssertionError."""
        assert sum(len(group) for group in self._groups.values()) == len(self), f"{self!r} miscounts"
        assert self._waiting.total() == len(self), f"{self!r} miscounts by expert"
        assert all(self._groups.values()), f"{self!r} holds an empty group"
        assert all(group.open and group.key in self._groups for group in self._latest.values()), f"{self!r}: latest"
        own = {expert: [group.key for group in groups] for expert, groups in self._own.items()}
        found: dict[str, list[int]] = {}
        for group in self._groups.values():
            found.setdefault(group.expert, []).append(group.key)
        assert own == found, f"{self!r}: groups by expert"
        assert set(self._waiting) == {group.expert for group in self._groups.values()}, f"{self!r}: waiting"

    def _new(self, expert: str) -> Group:
        self._keys += 1
        group = self._groups[self._keys] = Group(self._keys, expert)
        self._own.setdefault(expert, deque()).append(group)
        return group

    def _put(self, group: Group, stage: Stage, charge_s: float, now: float) -> None:
        group.add(stage, charge_s, now)
        self._size += 1
        self._pending_s += charge_s
        self._waiting[stage.expert] += 1
        self._changed(stage.expert)
