"""The pool's books: they balance after any operation, stay in the budget, and refuse what would break them."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coe.scheduler.costs import Cost, Tier
from coe.scheduler.events import Why
from coe.scheduler.plan import PoolSpec
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
    with pytest.raises(ValueError, match=r"'a' is pinned by 1 batch\(es\) and cannot leave"):
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
            self.pool.lies_in(expert, tier)
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
            with pytest.raises(ValueError, match="cannot leave"):
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
