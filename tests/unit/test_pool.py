"""The books of the scheduler: what a pool and host memory hold, and what an executor has."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coe.core import Batch, Stage
from coe.scheduler.backlog import Backlog
from coe.scheduler.costs import Cost, Tier
from coe.scheduler.events import Why
from coe.scheduler.executor import Executor, Flight
from coe.scheduler.host_cache import HostCache, Passage
from coe.scheduler.plan import CacheSpec, ExecutorSpec, PoolSpec
from coe.scheduler.pool import NEXT, ModelPool, State

CAPACITY, WORKSPACE = 100, 15


def pool_of(capacity=CAPACITY, workspace=WORKSPACE, **ready):
    pool = ModelPool(PoolSpec("gpu0", "gpu", capacity, workspace))
    for expert, size in ready.items():
        pool.plan(expert, size, Why.DEMAND)
        assert pool.reserve(expert)
        pool.commit(expert)
    return pool


def test_bytes_count_from_the_load_until_the_expert_is_gone():
    pool, seen = pool_of(), []
    for step in ("plan", "reserve", "commit", "leave", "release"):
        pool.plan("a", 60, Why.DEMAND) if step == "plan" else getattr(pool, step)("a")
        seen.append((pool.state("a"), pool.reserved_bytes, "a" in pool, len(pool)))
    assert seen == [
        (State.PLANNED, 0, True, 0),
        (State.LOADING, 60, True, 0),
        (State.READY, 60, True, 1),
        (State.LEAVING, 60, False, 0),
        (None, 0, False, 0),
    ]
    pool.check(idle=True)


def test_room_is_kept_for_activations_and_for_experts_that_are_planned_or_to_come():
    pool = pool_of(a=50)
    assert (pool.missing_bytes(35), pool.missing_bytes(36)) == (0, 1)
    pool.pin("a", 40)
    assert pool.missing_bytes(10) == 0
    assert pool.missing_bytes(11) == 1
    with pytest.raises(ValueError, match="'b' was planned without room"):
        pool.plan("b", 11, Why.DEMAND)
    pool = pool_of(a=20, b=20)
    pool.leave("b")
    pool.plan("c", 60, Why.DEMAND)
    assert pool.batch_room_bytes() == 20
    with pytest.raises(ValueError, match=r"gpu0: a batch of 'a' needs 21 bytes that are not free"):
        pool.pin("a", 21)
    pool.pin("a", 20)
    pool.release("b")
    assert pool.reserve("c")
    assert pool.reserved_bytes == CAPACITY == pool.peak_bytes
    pool = pool_of(a=30, b=20)
    assert [beside(pool, *coming) for coming in ([], [25], [25, 55], [56], [25, 56])] == [50, 45, 15, 50, 45]
    pool.pin("b", 10)
    assert [beside(pool, *coming) for coming in ([], [25], [55], [56])] == [40, 15, 5, 40]


def beside(pool, *coming):
    return pool.room_beside("a", [Cost(0.0, 0.0, 1.0, size, 0) for size in coming])


def test_what_is_pinned_never_leaves_and_each_step_is_refused_out_of_turn():
    pool = pool_of(a=20)
    pool.pin("a", 5)
    pool.pin("a", 5)
    pool.unpin("a", 5)
    assert not pool.evictable("a")
    with pytest.raises(ValueError, match=r"'a' .* 1 batch"):
        pool.leave("a")
    pool.unpin("a", 5)
    assert pool.evictable("a")
    pool.leave("a")
    pool = pool_of(a=20)
    with pytest.raises(ValueError, match="'a' is here already"):
        pool.plan("a", 1, Why.DEMAND)
    with pytest.raises(ValueError, match="'a' was not pinned"):
        pool.unpin("a", 0)
    for step in (pool.reserve, pool.cancel, pool.commit, pool.abandon, pool.release):
        with pytest.raises(ValueError, match="gpu0: 'a' is ready, not"):
            step("a")
    for step in (pool.reserve, pool.commit, pool.leave, pool.release):
        with pytest.raises(ValueError, match="gpu0: 'z' is not here, not"):
            step("z")


def test_recency_is_that_of_use_and_arrival_that_of_loading():
    pool = pool_of(a=10, b=10, c=10)
    for expert in "ba":
        pool.pin(expert, 0)
        pool.unpin(expert, 0)
    assert list(pool.by_arrival()) == ["a", "b", "c"]
    assert list(pool.by_recency()) == ["c", "b", "a"]
    pool.plan("d", 10, Why.INITIAL)
    assert [pool.unused(expert) for expert in "abcd"] == [False, False, True, False]


def test_a_pool_that_got_smaller_takes_nothing_in_until_enough_experts_have_left():
    pool = pool_of(a=40, b=40)
    pool.resize(PoolSpec("gpu0", "gpu", 70, WORKSPACE))
    pool.check()
    assert (pool.missing_bytes(0), pool.missing_bytes(10), pool.batch_room_bytes()) == (25, 35, -10)
    with pytest.raises(AssertionError, match="over its budget at idle"):
        pool.check(idle=True)
    pool.leave("a")
    pool.plan("c", 10, Why.DEMAND)
    assert not pool.reserve("c")
    pool.release("a")
    assert pool.reserve("c")
    pool.commit("c")
    pool.check(idle=True)


# What is done with an expert.
WAYS = (("plan", "reserve", "commit", "leave", "release"), ("plan", "cancel"), ("plan", "reserve", "abandon"))


def test_the_steps_of_the_table_of_states_are_those_that_are_taken():
    taken = set()
    for way in WAYS:
        pool = pool_of()
        for step in way:
            before = pool.state("b")
            pool.plan("b", 20, Why.DEMAND) if step == "plan" else getattr(pool, step)("b")
            taken |= {(before, pool.state("b"))}
    assert taken == {(before, after) for before, following in NEXT.items() for after in following}


EXPERTS = st.sampled_from("abcdef")


class PoolMachine(RuleBasedStateMachine):
    """Random legal operations; a naive book is kept beside the pool's own."""

    def __init__(self):
        super().__init__()
        self.pool = pool_of()
        self.pins = []
        self.sources = {}
        self.states = dict.fromkeys("abcdef")

    def in_state(self, state):
        return [expert for expert in "abcdef" if self.pool.state(expert) is state]

    @rule(expert=EXPERTS, size=st.integers(0, 40), why=st.sampled_from(Why), source=st.sampled_from(Tier))
    def plan(self, expert, size, why, source):
        if self.pool.state(expert) is None and not self.pool.missing_bytes(size):
            self.pool.plan(expert, size, why, source)
            self.sources[expert] = source

    @rule(expert=EXPERTS, tier=st.sampled_from(Tier))
    def lies_in(self, expert, tier):
        if self.pool.state(expert) in (State.PLANNED, State.LOADING):
            self.pool.moves(expert, tier, 0.0)
            self.sources[expert] = tier

    @rule()
    def reserve_in_turn(self):
        for expert in self.pool.planned():
            if not self.pool.reserve(expert):
                break

    @precondition(lambda self: self.in_state(State.LOADING))
    @rule(data=st.data(), good=st.sampled_from((True, True, False)))
    def end_load(self, data, good):
        expert = data.draw(st.sampled_from(self.in_state(State.LOADING)))
        (self.pool.commit if good else self.pool.abandon)(expert)

    @precondition(lambda self: self.in_state(State.PLANNED))
    @rule(data=st.data())
    def cancel(self, data):
        self.pool.cancel(data.draw(st.sampled_from(self.in_state(State.PLANNED))))

    @precondition(lambda self: self.in_state(State.READY))
    @rule(data=st.data())
    def leave(self, data):
        expert = data.draw(st.sampled_from(self.in_state(State.READY)))
        pinned = expert in [pinned for pinned, _ in self.pins]
        assert self.pool.evictable(expert) is not pinned
        if pinned:
            with pytest.raises(ValueError, match=f"'{expert}' is pinned"):
                self.pool.leave(expert)
        else:
            self.pool.leave(expert)

    @precondition(lambda self: self.in_state(State.LEAVING))
    @rule(data=st.data())
    def release(self, data):
        self.pool.release(data.draw(st.sampled_from(self.in_state(State.LEAVING))))

    @precondition(lambda self: self.in_state(State.READY))
    @rule(data=st.data(), size=st.integers(0, 60))
    def pin(self, data, size):
        expert = data.draw(st.sampled_from(self.in_state(State.READY)))
        if size <= self.pool.batch_room_bytes():
            self.pool.pin(expert, size)
            self.pins.append((expert, size))
        else:
            with pytest.raises(ValueError, match="not free"):
                self.pool.pin(expert, size)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data):
        self.pool.unpin(*self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1))))

    @invariant()
    def states_follow_each_other_as_the_table_says(self):
        for expert, before in self.states.items():
            self.states[expert] = after = self.pool.state(expert)
            assert after is before or after in NEXT[before]

    @invariant()
    def the_books_balance(self):
        self.pool.check()
        assert self.pool.is_pinned() is bool(self.pins)
        moving = self.in_state(State.PLANNED) + self.in_state(State.LOADING)
        assert self.pool.is_moving() is bool(moving)
        for tier in Tier:
            assert self.pool.is_moving_from(tier) is any(self.sources[expert] is tier for expert in moving)
        held = {
            expert: self.pool.size(expert)
            for state in (State.LOADING, State.READY, State.LEAVING)
            for expert in self.in_state(state)
        }
        pinned = sum(size for _, size in self.pins)
        assert self.pool.reserved_bytes == sum(held.values()) + pinned <= CAPACITY
        leaving, planned = (sum(map(self.pool.size, self.in_state(s))) for s in (State.LEAVING, State.PLANNED))
        kept = sum(held.values()) - leaving + planned
        assert self.pool.missing_bytes(CAPACITY) == kept + max(WORKSPACE, pinned)
        assert self.pool.batch_room_bytes() == CAPACITY - self.pool.reserved_bytes - max(0, planned - leaving)
        assert list(self.pool.by_arrival()) == [e for e in self.pool.by_arrival() if e in self.in_state(State.READY)]
        assert sorted(self.pool.by_recency()) == sorted(self.in_state(State.READY))

    @invariant()
    def one_batch_has_its_workspace_whenever_nothing_runs(self):
        assert self.pins or self.pool.batch_room_bytes() >= WORKSPACE

    @invariant()
    def what_is_planned_fits_once_everything_that_leaves_is_gone(self):
        if self.in_state(State.PLANNED) and not self.in_state(State.LEAVING) and not self.pins:
            sizes = [self.pool.size(expert) for expert in self.in_state(State.PLANNED)]
            everything = sum(self.pool.size(expert) for expert in "abcdef" if self.pool.state(expert) is not None)
            assert everything + WORKSPACE <= CAPACITY
            assert self.pool.weights_bytes + sum(sizes) + WORKSPACE <= CAPACITY


TestPoolMachine = PoolMachine.TestCase


def fetched(cache, expert, size):
    passage = cache.fetch(expert, size)
    cache.landed(expert)
    return passage


def test_a_copy_stays_until_room_is_needed_and_what_is_larger_or_filled_drives_nothing_out():
    cache = HostCache(CacheSpec(capacity_bytes=10))
    assert [fetched(cache, expert, 4).source for expert in "abab"] == [Tier.DISK, Tier.DISK, Tier.HOST, Tier.HOST]
    assert fetched(cache, "a", 4) == Passage(Tier.HOST)
    # b was read longer ago than a.
    assert fetched(cache, "c", 4) == Passage(Tier.DISK, keep_copy=True, drops=("b",))
    assert [expert in cache for expert in "abc"] == [True, False, True]
    assert repr(cache) == "<HostCache 2 copies, 8 B of 10 B>"
    cache.check()
    cache = HostCache(CacheSpec(10))
    cache.fetch("a", 10)
    assert [cache.fetch("huge", 11), cache.fetch("huge", 11)] == [Passage(Tier.DISK)] * 2
    assert cache.fetch("a", 10).source is Tier.HOST
    cache.check()
    cache = HostCache(CacheSpec(10))
    held = [cache.hold(expert, size) for expert, size in (("a", 6), ("b", 6), ("c", 4), ("a", 6))]
    assert held == [True, False, True, False]
    cache.forget("a")
    cache.forget("a")
    assert len(cache) == 1
    cache.check()
    cache = HostCache(CacheSpec(10))
    cache.fetch("a", 4)
    assert [cache.leave("a", 4), cache.leave("b", 4)] == [Passage(Tier.DISK)] * 2
    assert len(cache) == 1


def test_a_cache_that_demotes_holds_what_the_devices_do_not():
    cache = HostCache(CacheSpec(10, frozenset({"cuda"}), demotes=True))
    assert [cache.serves(device) for device in ("cuda", "cpu")] == [True, False]
    # On its way up a copy stays as long as nobody needs the room.
    assert fetched(cache, "a", 4) == Passage(Tier.DISK, keep_copy=True)
    assert fetched(cache, "b", 4) == Passage(Tier.DISK, keep_copy=True)
    assert fetched(cache, "c", 4) == Passage(Tier.DISK)
    # Who leaves is kept; a copy of who is still up goes for it, and one that is there is not made again.
    assert cache.leave("a", 4) == Passage(Tier.HOST)
    assert cache.leave("c", 4) == Passage(Tier.HOST, keep_copy=True, drops=("b",))
    assert fetched(cache, "c", 4) == Passage(Tier.HOST)
    assert cache.leave("d", 4) == Passage(Tier.HOST, keep_copy=True, drops=("c",))
    assert [expert in cache for expert in "abcd"] == [True, False, False, True]
    cache.check(idle=True)


@pytest.mark.parametrize("source", Tier)
def test_a_copy_that_a_load_counts_on_is_not_dropped_before_that_has_ended(source):
    cache = HostCache(CacheSpec(8, frozenset({"cuda"}), demotes=True))
    if source is Tier.HOST:
        cache.leave("a", 4)
    assert cache.fetch("a", 4).source is source
    assert cache.leave("b", 4) == Passage(Tier.HOST, keep_copy=True)
    # Else the lane would find no copy of a, and read the disk while other copies wait for the lane.
    assert cache.leave("c", 4) == Passage(Tier.HOST, keep_copy=True, drops=("b",))
    assert cache.leave("d", 5) == Passage(Tier.HOST)
    cache.check()
    with pytest.raises(AssertionError, match="loads of a"):
        cache.check(idle=True)
    cache.landed("a")
    assert cache.leave("d", 4) == Passage(Tier.HOST, keep_copy=True, drops=("a",))
    cache.check(idle=True)


def test_among_filled_copies_the_least_likely_leaves_first_but_never_one_that_is_being_read():
    cache = HostCache(CacheSpec(12, frozenset({"cuda"}), demotes=True))
    cache.leave("left", 4)
    for expert in ("likely", "unlikely"):
        assert cache.begin_fill(expert, 4)
        assert cache.is_filling()
        cache.end_fill()
    assert not cache.begin_fill("third", 4)
    assert not cache.is_filling()
    assert [cache.leave(expert, 4).drops for expert in "abc"] == [("unlikely",), ("likely",), ("left",)]
    cache.check()
    cache = HostCache(CacheSpec(10, frozenset({"cuda"}), demotes=True))
    assert cache.begin_fill("coming", 6)
    assert cache.leave("a", 4) == Passage(Tier.HOST, keep_copy=True)
    # Neither a larger expert nor an equal one takes the place of the copy that is not there yet.
    assert cache.leave("b", 5) == Passage(Tier.HOST)
    assert cache.leave("b", 4) == Passage(Tier.HOST, keep_copy=True, drops=("a",))
    cache.end_fill()
    assert cache.leave("c", 6) == Passage(Tier.HOST, keep_copy=True, drops=("coming",))
    cache.check()


def test_an_executor_begins_what_its_depth_lets_it_and_ends_it_in_order():
    pool = ModelPool(PoolSpec("cpu0", "cpu", 100, 10))
    executor = Executor(ExecutorSpec("cpu0", "cpu", "cpu0"), pool, Backlog())
    batch = Batch("a", (Stage(0, "a"), Stage(1, "a")))
    with pytest.raises(ValueError, match="cpu0 idle"):
        executor.end()
    executor.begin(batch, 7, 3.0)
    assert (executor.flights, executor.remaining_s(1.0)) == ((Flight(batch, 7, 3.0),), 2.0)
    with pytest.raises(ValueError, match="cpu0 running a x2"):
        executor.begin(batch, 7, 3.0)
    assert executor.end() == Flight(batch, 7, 3.0)
    assert (executor.batch, executor.flights, executor.remaining_s(1.0)) == (None, (), 0.0)
    pool = ModelPool(PoolSpec("gpu0", "gpu", 100, 10))
    executor = Executor(ExecutorSpec("gpu0", "gpu", "gpu0", depth=2), pool, Backlog())
    first, second = Batch("a", (Stage(0, "a"),)), Batch("b", (Stage(1, "b"),))
    executor.begin(first, 1, 3.0)
    assert (executor.is_free, executor.idle_from_s(1.0)) == (True, 3.0)
    executor.begin(second, 2, 5.0)
    assert (executor.is_free, executor.batch, executor.remaining_s(1.0)) == (False, first, 4.0)
    with pytest.raises(ValueError, match="running a x1 and b x1"):
        executor.begin(first, 1, 6.0)
    assert [executor.end().batch, executor.end().batch] == [first, second]
