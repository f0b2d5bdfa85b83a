"""The experts resident in one tier of one device, as a book of bytes. Only the residency writes in it.

The pool never chooses: it counts, refuses, and keeps the facts (recency, arrival, use) by which eviction policies rank.
`NEXT` has the states of an expert. The bytes of all experts in one state are P (planned), L (loading), R (ready) and V
(leaving); A are the activations of the batches that run, W the workspace that is set aside for them, C the capacity.

(1) Taken now is L + R + V + A, at most C. Bytes count from the beginning of a load (`reserve`) until the expert is gone
    (`release`), so a slow copy cannot overcommit.
(2) To come is P + L + R + max(W, A), at most C. A load is planned (`plan`) only if this holds with it: V is on its way
    out, so its bytes are promised already. What lacks for a further load is `missing_bytes`.
(3) A planned load begins once L + R + V + max(W, A) leaves its bytes free. Loads begin in the order of their plans: one
    that waits holds up those behind it, or large experts would never come.
(4) A batch takes at most C - (L + R + V) - max(0, P - V) - A (`batch_room_bytes`): it may have more than W, but no
    bytes that a planned load waits for.
(5) An expert that a batch runs on is pinned and cannot leave. One that came on demand is untried until it has run: the
    residency lets it run first, or two experts would replace each other for ever.
(6) With other rules C or W may change (`resize`), and an expert may be named by no rule. Then (1) holds for the largest
    capacity so far until the surplus has left; watchers do not know experts without a name.

Bodies that experts share are no part of a pool: a device keeps them for good, and the pools have the rest. `check`
proves all counts from the entries.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from coe.config import format_bytes
from coe.scheduler.costs import Cost, Tier
from coe.scheduler.events import Why
from coe.scheduler.plan import PoolSpec


class State(StrEnum):
    """The state of an expert in a pool. An expert that is not in the pool has none."""

    PLANNED = "planned"
    """It waits for its bytes, which leaving experts still hold."""
    LOADING = "loading"
    """Its bytes are reserved, and the device fills them."""
    READY = "ready"
    """It is resident: batches may pin it, an eviction may choose it."""
    LEAVING = "leaving"
    """The device gives its bytes back."""


NEXT: Mapping[State | None, Mapping[State | None, str]] = MappingProxyType(
    {
        None: {State.PLANNED: "a load is decided"},
        State.PLANNED: {State.LOADING: "its bytes are free", None: "given up"},
        State.LOADING: {State.READY: "loaded", None: "the load failed"},
        State.READY: {State.LEAVING: "evicted"},
        State.LEAVING: {None: "its bytes are free"},
    }
)
"""What may follow each state, and when; None is an expert that is not in the pool."""


_ON_THEIR_WAY = (State.PLANNED, State.LOADING)


class PoolWatcher:
    """Is told which experts come and go, so that it can keep a ranking instead of making one for every decision.

    A subclass hears of nothing unless it overrides a method.
    """

    def entered(self, expert: str) -> None:
        """Take note of an expert that is in the pool, or on its way into it, from now on."""

    def loaded(self, expert: str) -> None:
        """Take note of an expert on its way that can run from now on."""

    def left(self, expert: str) -> None:
        """Take note of an expert that is gone, or leaving."""


@dataclass(slots=True)
class _Entry:
    """`source` is the tier in which the weights of an expert on its way lie now; they move since `since_s`."""

    bytes: int
    why: Why
    source: Tier
    since_s: float = math.inf
    state: State = State.PLANNED
    pins: int = 0
    used: bool = False


class ModelPool:
    """A byte budget over experts and the activations of the batches that run on them."""

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        self.id, self.device = spec.id, spec.device
        # Ordered: a plain dict whose front is deleted over and over takes ever longer to find its first key.
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._recency: OrderedDict[str, None] = OrderedDict()
        self._planned: dict[str, None] = {}
        self._may_reserve = False
        """Whether a planned expert has come, or bytes have become free, since `to_reserve` was called."""
        self._untried: dict[str, None] = {}
        self._unnamed: dict[str, None] = {}
        self._watchers: tuple[PoolWatcher, ...] = ()
        self._bytes = dict.fromkeys(State, 0)
        self._count = dict.fromkeys(State, 0)
        self._coming = dict.fromkeys(Tier, 0)
        self._pins = self._pinned_bytes = 0
        self._activation_bytes = 0
        self.peak_bytes = 0
        self._most_bytes = spec.capacity_bytes
        """The largest capacity so far (6)."""

    def __repr__(self) -> str:
        used, capacity = format_bytes(self.reserved_bytes), format_bytes(self.spec.capacity_bytes)
        return f"<ModelPool {self.id} {len(self)} resident, {self._pins} pinned, {used} of {capacity}>"

    def tell(self, *watchers: PoolWatcher) -> None:
        """Tell these watchers, and nobody else, of every change from now on."""
        self._watchers = watchers

    # Anybody may read these

    def __len__(self) -> int:
        return self._count[State.READY]

    def __contains__(self, expert: object) -> bool:
        """Whether an expert is ready or on its way; an expert that is leaving does not count."""
        entry = self._entries.get(expert)  # type: ignore[call-overload]
        return entry is not None and entry.state is not State.LEAVING

    def state(self, expert: str) -> State | None:
        """Return the state of an expert; None if the pool does not know the expert."""
        entry = self._entries.get(expert)
        return entry.state if entry else None

    def known(self) -> Collection[str]:
        """Return the experts here, on their way, and leaving."""
        return self._entries.keys()

    def size(self, expert: str) -> int:
        """Return the bytes that an expert takes here."""
        return self._entries[expert].bytes

    def named(self) -> Iterator[str]:
        """Yield experts of the rules that are ready or on their way, the longest known first."""
        return (expert for expert in self._entries if expert not in self._unnamed and expert in self)

    def unnamed(self) -> list[str]:
        """Return experts that no rule names any more and that may leave."""
        return list(filter(self.evictable, self._unnamed))

    def by_arrival(self) -> Iterator[str]:
        """Yield ready experts, the longest resident first."""
        return (expert for expert, entry in self._entries.items() if entry.state is State.READY)

    def by_recency(self) -> Iterator[str]:
        """Yield ready experts, the least recently used first."""
        return (expert for expert in self._recency if self._entries[expert].state is State.READY)

    def evictable(self, expert: str) -> bool:
        """Return whether an expert may leave: ready, and no batch runs on it."""
        entry = self._entries[expert]
        return entry.state is State.READY and entry.pins == 0

    def is_ready(self, expert: str) -> bool:
        """Return whether an expert is in the pool, not only on its way into it."""
        return self._entries[expert].state is State.READY

    def unused(self, expert: str) -> bool:
        """Return whether an expert is here that was loaded for stages, and has not run yet."""
        entry = self._entries.get(expert)
        return entry is not None and entry.why is not Why.INITIAL and not entry.used

    def untried(self) -> tuple[str, ...]:
        """Return the experts here that came on demand and have not run yet, the first to come first."""
        return tuple(self._untried)

    def source(self, expert: str) -> Tier:
        """Return the tier in which the weights of an expert on its way lie."""
        return self._entries[expert].source

    def moves_for_s(self, expert: str, now: float) -> float:
        """Return for how many seconds the weights of an expert on its way have been moving from there."""
        return max(0.0, now - self._entries[expert].since_s)

    def is_moving(self) -> bool:
        """Return whether an expert is planned or loading."""
        return self._count[State.PLANNED] > 0 or self._count[State.LOADING] > 0

    def is_moving_from(self, tier: Tier) -> bool:
        """Return whether an expert is planned or loading whose weights still lie in a tier."""
        return self._coming[tier] > 0

    def is_moving_for(self, why: Why) -> bool:
        """Return whether an expert is planned or loading for this reason; the function looks at all experts."""
        return any(entry.why is why for entry in self._entries.values() if entry.state in _ON_THEIR_WAY)

    def is_pinned(self) -> bool:
        """Return whether a batch runs on an expert of this pool."""
        return self._pins > 0

    def is_still(self) -> bool:
        """Return whether no batch runs, and no expert is planned, loading or leaving: no event is to come from here."""
        return not (self._pins or self.is_moving() or self._count[State.LEAVING])

    # The books

    @property
    def weights_bytes(self) -> int:
        """Bytes of experts that take memory now."""
        return self._bytes[State.LOADING] + self._bytes[State.READY] + self._bytes[State.LEAVING]

    @property
    def reserved_bytes(self) -> int:
        """Bytes of experts and of the activations of running batches."""
        return self.weights_bytes + self._activation_bytes

    @property
    def _kept_bytes(self) -> int:
        return self._bytes[State.PLANNED] + self._bytes[State.LOADING] + self._bytes[State.READY]

    def missing_bytes(self, more: int) -> int:
        """Return how many bytes must still leave before `more` can be planned (2); 0 if there is room."""
        set_aside = max(self.spec.workspace_bytes, self._activation_bytes)
        return max(0, self._kept_bytes + more + set_aside - self.spec.capacity_bytes)

    def has_room(self, more: int) -> bool:
        """Return whether `more` bytes fit while no batch runs, without any expert leaving."""
        return self._kept_bytes + more + self.spec.workspace_bytes <= self.spec.capacity_bytes

    @property
    def evictable_bytes(self) -> int:
        """Bytes of experts that may leave now."""
        return self._bytes[State.READY] - self._pinned_bytes

    def batch_room_bytes(self) -> int:
        """Return the bytes that a batch may take now (4)."""
        planned = max(0, self._bytes[State.PLANNED] - self._bytes[State.LEAVING])
        return self.spec.capacity_bytes - self.weights_bytes - planned - self._activation_bytes

    @property
    def aside_bytes(self) -> int:
        """The bytes that a batch may take now of those that are set aside."""
        return self.spec.workspace_bytes - self._activation_bytes

    def room_beside(self, expert: str, coming: Iterable[Cost]) -> int:
        """Return the bytes that a batch of an expert may take while experts of the costs `coming` can still come.

        Experts for which the expert itself must leave do not count, and at least what is set aside may be taken.
        """
        own_bytes = self.size(expert)
        alone_bytes = self.spec.capacity_bytes - own_bytes - self.spec.workspace_bytes
        largest = max((more for cost in coming if (more := cost.weights_bytes) <= alone_bytes), default=None)
        if largest is None:
            return self.batch_room_bytes()
        staying_bytes = self._kept_bytes - self.evictable_bytes + (own_bytes if self.evictable(expert) else 0)
        free_bytes = max(self.spec.workspace_bytes, self.spec.capacity_bytes - staying_bytes - largest)
        return free_bytes - self._activation_bytes

    # Only the residency calls these

    def plan(self, expert: str, size: int, why: Why, source: Tier = Tier.DISK) -> None:
        """Note that an expert is to be loaded; raises ValueError if its bytes will not be free (2)."""
        if expert in self._entries:
            raise ValueError(f"{self.id}: '{expert}' is here already ({self._entries[expert].state})")
        if self.missing_bytes(size):
            raise ValueError(f"{self.id}: '{expert}' was planned without room")
        self._entries[expert] = _Entry(size, why, source)
        self._coming[source] += 1
        self._recency[expert] = None
        self._planned[expert] = None
        self._may_reserve = True
        self._bytes[State.PLANNED] += size
        self._count[State.PLANNED] += 1
        for watcher in self._watchers:
            watcher.entered(expert)

    def name(self, experts: Container[str]) -> None:
        """Note which experts the rules name from now on (6). The watchers are not told: others are to come."""
        self._unnamed = {expert: None for expert in self._entries if expert not in experts}

    def resize(self, spec: PoolSpec) -> None:
        """Take another capacity and workspace (6)."""
        self._most_bytes = max(self._most_bytes, spec.capacity_bytes)
        self.spec = spec
        self._may_reserve = True

    def has_planned(self) -> bool:
        """Return whether an expert waits for room."""
        return bool(self._planned)

    def planned(self) -> list[str]:
        """Return the planned experts, first come first."""
        return list(self._planned)

    def to_reserve(self) -> list[str]:
        """Return the planned experts to try, first come first; none if nothing has changed since the last call."""
        if not self._may_reserve:
            return []
        self._may_reserve = False
        return list(self._planned)

    def reserve(self, expert: str) -> bool:
        """Begin the load of a planned expert if its bytes are free now (3); return whether they are."""
        entry = self._expect(expert, State.PLANNED)
        taken = self.weights_bytes + max(self.spec.workspace_bytes, self._activation_bytes)
        if taken + entry.bytes > self.spec.capacity_bytes:
            return False
        del self._planned[expert]
        self._move(entry, State.LOADING)
        self._note_peak()
        return True

    def why(self, expert: str) -> Why:
        """Return why an expert was planned."""
        return self._entries[expert].why

    def moves(self, expert: str, tier: Tier, now: float) -> None:
        """Note that the weights of an expert that is planned or loading move from a tier from now on."""
        entry = self._entries[expert]
        if entry.state not in _ON_THEIR_WAY:
            raise ValueError(f"{self.id}: '{expert}' is {entry.state}, not on its way")
        self._coming[entry.source] -= 1
        entry.source, entry.since_s = tier, now
        self._coming[tier] += 1

    def cancel(self, expert: str) -> None:
        """Give up an expert that was planned and has not begun to load."""
        entry = self._expect(expert, State.PLANNED)
        del self._planned[expert]
        self._tell_left(expert)
        self._drop(expert, entry)

    def commit(self, expert: str) -> None:
        """Note that a load has ended well."""
        entry = self._expect(expert, State.LOADING)
        self._move(entry, State.READY)
        if entry.why is Why.DEMAND:
            self._untried[expert] = None
        for watcher in () if expert in self._unnamed else self._watchers:
            watcher.loaded(expert)

    def abandon(self, expert: str) -> None:
        """Note that a load has failed: its bytes are free."""
        entry = self._expect(expert, State.LOADING)
        self._tell_left(expert)
        self._drop(expert, entry)

    def leave(self, expert: str) -> None:
        """Begin an eviction. Raises ValueError for an expert that is pinned or not ready."""
        entry = self._expect(expert, State.READY)
        if entry.pins:
            raise ValueError(f"{self.id}: '{expert}' is pinned by {entry.pins} batch(es) and cannot leave")
        self._move(entry, State.LEAVING)
        self._untried.pop(expert, None)
        self._tell_left(expert)

    def release(self, expert: str) -> None:
        """Note that an evicted expert is gone."""
        self._drop(expert, self._expect(expert, State.LEAVING))

    def pin(self, expert: str, activation_bytes: int) -> None:
        """Hold an expert and `activation_bytes` for a batch. Raises ValueError if they do not fit."""
        entry = self._expect(expert, State.READY)
        if activation_bytes > self.batch_room_bytes():
            raise ValueError(f"{self.id}: a batch of '{expert}' needs {activation_bytes:,} bytes that are not free")
        self._pinned_bytes += 0 if entry.pins else entry.bytes
        entry.pins += 1
        self._pins += 1
        entry.used = True
        self._untried.pop(expert, None)
        self._recency.move_to_end(expert)
        self._activation_bytes += activation_bytes
        self._note_peak()

    def unpin(self, expert: str, activation_bytes: int) -> None:
        """Release an expert and the activations of a batch that `pin` held. Raises ValueError if it was not pinned."""
        entry = self._expect(expert, State.READY)
        if entry.pins < 1 or activation_bytes > self._activation_bytes:
            raise ValueError(f"{self.id}: '{expert}' was not pinned")
        entry.pins -= 1
        self._pins -= 1
        self._pinned_bytes -= 0 if entry.pins else entry.bytes
        self._activation_bytes -= activation_bytes
        self._may_reserve = True

    def check(self, *, idle: bool = False) -> None:
        """Prove the books; with `idle`, also that nothing runs or moves. Raises AssertionError."""
        for state in State:
            sizes = [entry.bytes for entry in self._entries.values() if entry.state is state]
            book = len(sizes), sum(sizes)
            assert book == (self._count[state], self._bytes[state]), f"{self!r}: the book of {state} is wrong"
        on_their_way = [entry for entry in self._entries.values() if entry.state in _ON_THEIR_WAY]
        coming = {tier: sum(entry.source is tier for entry in on_their_way) for tier in Tier}
        assert coming == self._coming, f"{self!r}: the book of experts on their way is wrong"
        ready = {expert: entry for expert, entry in self._entries.items() if entry.state is State.READY}
        untried = {expert for expert, entry in ready.items() if entry.why is Why.DEMAND and not entry.used}
        assert self._untried.keys() == untried, f"{self!r}: the book of untried experts is wrong"
        assert self._pins == sum(entry.pins for entry in self._entries.values()), f"{self!r} miscounts pins"
        assert self.reserved_bytes <= self._most_bytes, f"{self!r} is over its budget"
        assert self.peak_bytes <= self._most_bytes, f"{self!r} was over its budget"
        assert set(self._recency) == set(self._entries), f"{self!r}: recency and entries differ"
        planned = [expert for expert, entry in self._entries.items() if entry.state is State.PLANNED]
        assert list(self._planned) == planned, f"{self!r}: planned and entries differ"
        assert all(entry.state is State.READY for entry in self._entries.values() if entry.pins), f"{self!r}: pins"
        pinned_bytes = sum(entry.bytes for entry in self._entries.values() if entry.pins)
        assert self._pinned_bytes == pinned_bytes, f"{self!r} miscounts pinned bytes"
        if idle:
            assert self.reserved_bytes <= self.spec.capacity_bytes, f"{self!r} is over its budget at idle"
            assert not self._activation_bytes, f"{self!r}: {self._activation_bytes} bytes of activations at idle"
            assert all(entry.state is State.READY for entry in self._entries.values()), f"{self!r} moves at idle"

    def _expect(self, expert: str, state: State) -> _Entry:
        entry = self._entries.get(expert)
        if entry is None or entry.state is not state:
            raise ValueError(f"{self.id}: '{expert}' is {entry.state if entry else 'not here'}, not {state}")
        return entry

    def _move(self, entry: _Entry, state: State) -> None:
        self._bytes[entry.state] -= entry.bytes
        self._count[entry.state] -= 1
        self._coming[entry.source] -= state is State.READY
        entry.state = state
        self._bytes[state] += entry.bytes
        self._count[state] += 1

    def _drop(self, expert: str, entry: _Entry) -> None:
        self._bytes[entry.state] -= entry.bytes
        self._count[entry.state] -= 1
        self._coming[entry.source] -= entry.state in _ON_THEIR_WAY
        del self._entries[expert], self._recency[expert]
        self._may_reserve = True
        self._unnamed.pop(expert, None)

    def _tell_left(self, expert: str) -> None:
        for watcher in () if expert in self._unnamed else self._watchers:
            watcher.left(expert)

    def _note_peak(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.reserved_bytes)
