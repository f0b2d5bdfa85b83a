"""Stages that wait, grouped by expert. A backlog keeps their order; policies decide which of them run."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from sortedcontainers import SortedDict

from coe.core import Stage
from coe.helpers.arithmetic import added


class Place(NamedTuple):
    """A stage in a group, its predicted share of time, and the time when it came."""

    stage: Stage
    charge_s: float
    since_s: float


_STAGE, _CHARGE_S = attrgetter("stage"), attrgetter("charge_s")


class Taken(NamedTuple):
    """Stages that were taken out of a group, and the seconds that were charged for them."""

    stages: tuple[Stage, ...]
    charged_s: float


class Group:
    """Stages of one expert that stand together: first those in a hurry, by due time, then the others, by arrival.

    `started_s` is when the group's first batch was taken, None before. A group that is not `open` takes no more stages.
    """

    __slots__ = ("_hurried", "_others", "expert", "key", "open", "started_s")

    def __init__(self, key: int, expert: str) -> None:
        self.key = key
        self.expert = expert
        self.open = True
        self.started_s: float | None = None
        # By request, because a request has at most one stage of each expert.
        self._others: OrderedDict[int, Place] = OrderedDict()
        self._hurried: SortedDict[tuple[float, int], Place] | None = None

    def __len__(self) -> int:
        return len(self._others) + len(self._hurried or ())

    def __repr__(self) -> str:
        return f"<Group {self.expert} x{len(self)}>"

    def __iter__(self) -> Iterator[Stage]:
        """Yield the stages in the order in which they run."""
        return (place.stage for places in (self._hurried or {}, self._others) for place in places.values())

    @property
    def since_s(self) -> float:
        """When the first stage came that is in no hurry; if all are in a hurry, when the most urgent stage came."""
        return next(iter((self._others or self._hurried or {}).values())).since_s

    @property
    def due_s(self) -> float:
        """When the first stage in a hurry is due; infinity if none is in a hurry."""
        return float(self._hurried.keys()[0][0]) if self._hurried else math.inf

    def add(self, place: Place, due_s: float = math.inf) -> None:
        """Put a stage at the end or, in a hurry, where its due time belongs."""
        if due_s == math.inf:
            self._others[place.stage.request_id] = place
        else:
            # Made when it is needed: most groups never have a stage in a hurry.
            self._hurried = SortedDict() if self._hurried is None else self._hurried
            self._hurried[due_s, place.stage.request_id] = place

    def hurry(self, request_id: int, due_s: float, was_s: float) -> bool:
        """Change the due time of a stage from `was_s` to `due_s`; return whether the stage waits here."""
        places = self._others if was_s == math.inf else self._hurried
        key: Any = request_id if was_s == math.inf else (was_s, request_id)
        if not places or key not in places:
            return False
        self.add(places.pop(key), due_s)
        if due_s == math.inf:
            # A stage that was in a hurry has waited longer than most others.
            self._others.move_to_end(request_id, last=False)
        return True

    def take(self, count: int) -> Taken:
        """Take `count` stages from the front."""
        taken = [
            self._hurried.popitem(0)[1] if self._hurried else self._others.popitem(last=False)[1] for _ in range(count)
        ]
        return Taken(tuple(map(_STAGE, taken)), added(map(_CHARGE_S, taken)))

    def withdraw(self, request_id: int, due_s: float) -> float | None:
        """Take out the stage of a request that is due at `due_s`; return its charge, None if it does not wait here."""
        if due_s == math.inf:
            place = self._others.pop(request_id, None)
        else:
            place = self._hurried.pop((due_s, request_id), None) if self._hurried else None
        return None if place is None else place.charge_s


class Backlog:
    """Groups in the order in which they are to run. `changed` is called with an expert whose waiting stages change."""

    def __init__(self, changed: Callable[[str], None] = lambda expert: None) -> None:
        self._changed = changed
        self._groups: OrderedDict[int, Group] = OrderedDict()
        self._by_expert: dict[str, deque[Group]] = {}
        self._latest: dict[str, Group] = {}
        self._waiting: defaultdict[str, int] = defaultdict(int)
        self._keys = 0
        self.size = 0
        """How many stages wait, as `len` says: read for every event, so it is no call."""
        self.pending_s = 0.0
        """The predicted time of everything that waits, in seconds."""
        self.has_hurried = False
        """Whether a stage in a hurry has waited here since the backlog was last empty."""

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<Backlog {len(self)} stages in {len(self._groups)} groups, {self.pending_s:.3f} s>"

    def __contains__(self, group: object) -> bool:
        """Whether a group waits here; one that is empty by now may be anybody's."""
        return isinstance(group, Group) and (self._groups.get(group.key) is group or not len(group))

    def waiting(self, expert: str) -> int:
        """Return how many stages wait for an expert."""
        return self._waiting.get(expert, 0)

    def groups(self) -> Iterator[Group]:
        """Yield the groups in order."""
        return iter(self._groups.values())

    def first(self, expert: str) -> Group | None:
        """Return the first group of an expert."""
        groups = self._by_expert.get(expert)
        return groups[0] if groups else None

    def latest(self, expert: str) -> Group | None:
        """Return the last open group of an expert."""
        return self._latest.get(expert)

    def add(self, stage: Stage, charge_s: float, *, join: bool, now: float = 0.0, due_s: float = math.inf) -> None:
        """Put a stage behind the last stage of its expert with `join`, else at the end; in a hurry it goes by `due_s`.

        A stage at the end joins the last group if that has the same expert, because it overtakes no other stage there.
        """
        group = self._latest.get(stage.expert) if join else next(reversed(self._groups.values()), None)
        if group is None or group.expert != stage.expert or not group.open:
            group = self._latest[stage.expert] = self._new(stage.expert)
        self._put(group, stage, charge_s, now, due_s)

    def hurry(self, request_id: int, expert: str, due_s: float, was_s: float) -> None:
        """Change the due time of a request's stage from `was_s` to `due_s`; infinity means no hurry.

        Nothing happens if the request does not wait for the expert here.
        """
        if any(group.hurry(request_id, due_s, was_s) for group in self._by_expert.get(expert, ())):
            self.has_hurried = self.has_hurried or due_s < math.inf
            self._changed(expert)

    def put_back(self, stages: tuple[Stage, ...], charge_s: float, now: float = 0.0) -> None:
        """Put stages in front of all others, each in a separate group, so that each runs alone."""
        for stage in reversed(stages):
            group = self._new(stage.expert)
            group.open = False
            self._groups.move_to_end(group.key, last=False)
            self._by_expert[stage.expert].rotate()
            self._put(group, stage, charge_s, now)

    def take(self, group: Group, count: int, now: float) -> tuple[Stage, ...]:
        """Take the first `count` stages of a group out of the backlog."""
        stages, charged_s = group.take(count)
        if group.started_s is None:
            group.started_s = now
        self._taken(group, count, charged_s)
        return stages

    def withdraw(self, request_id: int, expert: str, due_s: float) -> bool:
        """Take the stage of a request, which is due at `due_s`, out of the backlog; return whether it waited here."""
        for group in self._by_expert.get(expert, ()):
            charged_s = group.withdraw(request_id, due_s)
            if charged_s is not None:
                self._taken(group, 1, charged_s)
                return True
        return False

    def drop(self, expert: str) -> tuple[Stage, ...]:
        """Take all stages that wait for an expert out of the backlog, and return them."""
        dropped: list[Stage] = []
        for group in list(self._by_expert.get(expert, ())):
            dropped += self.take(group, len(group), 0.0)
        return tuple(dropped)

    def check(self) -> None:
        """Prove the books; raises AssertionError."""
        assert sum(len(group) for group in self._groups.values()) == len(self), f"{self!r} miscounts"
        assert sum(self._waiting.values()) == len(self), f"{self!r} miscounts by expert"
        assert self.has_hurried or all(group.due_s == math.inf for group in self.groups()), (
            f"{self!r}: who is in a hurry"
        )
        assert all(self._groups.values()), f"{self!r} holds an empty group"
        assert all(group.open and group.key in self._groups for group in self._latest.values()), f"{self!r}: latest"
        kept = {expert: [group.key for group in groups] for expert, groups in self._by_expert.items()}
        counted: dict[str, list[int]] = {}
        for group in self._groups.values():
            counted.setdefault(group.expert, []).append(group.key)
        assert kept == counted, f"{self!r}: groups by expert"
        assert set(self._waiting) == {group.expert for group in self._groups.values()}, f"{self!r}: waiting"

    def _new(self, expert: str) -> Group:
        self._keys += 1
        group = self._groups[self._keys] = Group(self._keys, expert)
        self._by_expert.setdefault(expert, deque()).append(group)
        return group

    def _taken(self, group: Group, count: int, charged_s: float) -> None:
        """Note that `count` stages have left a group."""
        # Rounding must not pile up over weeks of stages.
        self.pending_s = self.pending_s - charged_s if self.size > count else 0.0
        self.size -= count
        self.has_hurried = self.has_hurried and self.size > 0
        self._waiting[group.expert] -= count
        if not self._waiting[group.expert]:
            del self._waiting[group.expert]
        if not group:
            del self._groups[group.key]
            self._by_expert[group.expert].remove(group)
            if not self._by_expert[group.expert]:
                del self._by_expert[group.expert]
            if self._latest.get(group.expert) is group:
                del self._latest[group.expert]
        self._changed(group.expert)

    def _put(self, group: Group, stage: Stage, charge_s: float, now: float, due_s: float = math.inf) -> None:
        group.add(Place(stage, charge_s, now), due_s)
        self.has_hurried = self.has_hurried or due_s < math.inf
        self.size += 1
        self.pending_s += charge_s
        self._waiting[stage.expert] += 1
        self._changed(stage.expert)
