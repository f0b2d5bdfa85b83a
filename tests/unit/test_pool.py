"""The pool's books: they balance after any operation, stay in the budget, and refuse what would break them."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coe.scheduler.costs import Body, Cost, Tier
from coe.scheduler.events import Why
from coe.scheduler.expert_state import NEXT, State
from coe.scheduler.plan import PoolSpec
from coe.scheduler.pool import ModelPool

CAPACITY, WORKSPACE = 100, 15


def pool_of(capacity: int = CAPACITY, workspace: int = WORKSPACE, **ready: int) -> ModelPool:
    pool = ModelPool(PoolSpec("gpu0", "gpu", capacity, workspace))
    for expert, size in ready.items():
        pool.plan(expert, size, Why.DEMAND)
        assert pool.reserve(expert)
        pool.commit(expert)
    return pool


def test_bytes_count_from_the_load_until_the_expert_is_gone() -> None:
    pool, seen = pool_of(), []
    pool.plan("a", 60, Why.DEMAND)
    seen.append((pool.state("a"), pool.reserved_bytes, "a" in pool, len(pool)))
    assert pool.reserve("a")
    seen.append((pool.state("a"), pool.reserved_bytes, "a" in pool, len(pool)))
    pool.commit("a")
    seen.append((pool.state("a"), pool.reserved_bytes, "a" in pool, len(pool)))
    pool.leave("a")
    seen.append((pool.state("a"), pool.reserved_bytes, "a" in pool, len(pool)))
    pool.release("a")
    seen.append((pool.state("a"), pool.reserved_bytes, "a" in pool, len(pool)))
    assert seen == [
        (State.PLANNED, 0, True, 0),
        (State.LOADING, 60, True, 0),
        (State.READY, 60, True, 1),
        (State.LEAVING, 60, False, 0),
        (None, 0, False, 0),
    ]
    pool.check(idle=True)


def test_experts_leave_room_for_activations_at_all_times() -> None:
    pool = pool_of(a=50)
    assert (pool.missing_bytes(35), pool.missing_bytes(36)) == (0, 1)
    pool.pin("a", 40)
    assert pool.missing_bytes(10) == 0
    assert pool.missing_bytes(11) == 1
    with pytest.raises(ValueError, match="'b' was planned without room"):
        pool.plan("b", 11, Why.DEMAND)


def test_a_batch_never_takes_the_room_of_an_expert_that_is_planned() -> None:
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


def beside(pool: ModelPool, *coming: int, body: Body | None = None) -> int:
    return pool.room_beside("a", [Cost(0.0, 0.0, 1.0, size, 0, body=body) for size in coming])


def test_a_batch_takes_what_leaves_room_for_an_expert_that_is_to_come_unless_its_own_expert_must_leave() -> None:
    pool = pool_of(a=30, b=20)
    assert [beside(pool, *coming) for coming in ([], [25], [25, 55], [56], [25, 56])] == [50, 45, 15, 50, 45]
    pool.pin("b", 10)
    assert [beside(pool, *coming) for coming in ([], [25], [55], [56])] == [40, 15, 5, 40]


def test_what_is_pinned_never_leaves() -> None:
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


def test_each_step_is_refused_out_of_turn() -> None:
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


def test_recency_is_that_of_use_and_arrival_that_of_loading() -> None:
    pool = pool_of(a=10, b=10, c=10)
    for expert in "ba":
        pool.pin(expert, 0)
        pool.unpin(expert, 0)
    assert list(pool.by_arrival()) == ["a", "b", "c"]
    assert list(pool.by_recency()) == ["c", "b", "a"]
    assert [pool.unused(expert) for expert in "abc"] == [False, False, True]


def test_what_was_loaded_at_the_start_does_not_count_as_unused() -> None:
    pool = pool_of()
    pool.plan("a", 10, Why.INITIAL)
    assert not pool.unused("a")


def test_its_repr_is_a_status_line() -> None:
    pool = pool_of(capacity=8 << 30, a=5 << 30, b=1 << 30)
    pool.pin("a", 1 << 28)
    assert repr(pool) == "<ModelPool gpu0 2 resident, 1 pinned, 6.25 GiB of 8.00 GiB>"


# Bodies: a, b and c share P of 50 bytes

P = Body("P", 50, 1.0)


def load(pool: ModelPool, expert: str, size: int, body: Body = P) -> None:
    pool.plan(expert, size, Why.DEMAND, body=body)
    assert pool.reserve(expert)
    pool.commit(expert)


def test_a_body_counts_once_from_its_first_expert_to_its_last() -> None:
    pool, seen = pool_of(), []
    for expert in "abc":
        load(pool, expert, 10)
        seen.append(pool.reserved_bytes)
    for expert in "abc":
        seen.append(pool.frees(expert))
        assert pool.leave(expert) == ("P" if expert == "c" else None)
        pool.check()
        pool.release(expert)
        seen.append(pool.reserved_bytes)
    assert seen == [60, 70, 80, 10, 70, 10, 60, 60, 0]
    pool.check(idle=True)


def test_what_an_expert_needs_and_frees_depends_on_who_else_holds_its_body() -> None:
    pool = pool_of()
    price = Cost(0.0, 0.0, 1.0, weights_bytes=10, activation_bytes=0, body=P)
    assert (price.whole_bytes, pool.needs(price), pool.holds(P, "a")) == (60, 60, False)
    load(pool, "a", 10)
    assert (pool.needs(price), pool.holds(P, "a"), pool.holds(P, "b")) == (10, False, True)
    load(pool, "b", 15)
    assert (pool.frees("a"), pool.frees("b"), pool.holds(P, "a")) == (10, 15, True)
    assert pool.frees("b", after=["a"]) == 65
    assert pool.frees("b", after=["a"], kept=P) == 15


def test_a_body_that_no_load_brought_goes_with_the_last_load_that_fails() -> None:
    pool = pool_of()
    for expert in "ab":
        pool.plan(expert, 10, Why.DEMAND, body=P)
    assert pool.reserve("a")
    assert not pool.abandon("a")
    pool.check()
    assert (pool.reserved_bytes, pool.missing_bytes(30)) == (0, 5)  # b still waits for room, with the body
    assert not pool.cancel("b")
    assert not pool.missing_bytes(85)
    pool.check(idle=True)


def test_a_body_in_place_whose_last_expert_fails_to_come_must_be_evicted() -> None:
    pool = pool_of()
    load(pool, "a", 10)
    pool.plan("b", 20, Why.DEMAND, body=P)
    assert pool.reserve("b")
    assert not pool.leave("a")
    pool.release("a")
    assert pool.abandon("b") == "P"
    assert (pool.state("b"), pool.size("b"), pool.reserved_bytes, "b" in pool) == (State.LEAVING, 50, 50, False)
    assert pool.needs(Cost(0.0, 0.0, 1.0, 10, 0, body=P)) == 60
    pool.check()
    pool.release("b")
    assert not pool.reserved_bytes
    pool.check(idle=True)


def test_a_body_that_leaves_is_another_than_the_one_that_comes() -> None:
    pool = pool_of(capacity=120)
    load(pool, "a", 10)
    assert pool.leave("a") == "P"
    pool.plan("b", 10, Why.DEMAND, body=P)
    assert (pool.reserve("b"), pool.missing_body("b")) == (False, "P")  # 60 of 105 bytes are still to leave
    pool.release("a")
    assert pool.reserve("b")
    pool.check()


def test_the_expert_that_leaves_for_another_leaves_it_the_body() -> None:
    pool = pool_of()
    load(pool, "a", 30)
    assert not pool.leave("a", kept=P)
    pool.plan("b", 30, Why.DEMAND, body=P)
    assert (pool.missing_body("b"), pool.reserve("b")) == (None, False)
    pool.release("a")
    assert (pool.reserve("b"), pool.reserved_bytes) == (True, 80)
    pool.check()


# What is done with an expert b, which shares its body with a: at the star, a leaves.
WAYS = (
    ("plan", "reserve", "commit", "leave", "release"),
    ("plan", "cancel"),
    ("plan", "reserve", "abandon"),
    ("plan", "*", "cancel"),
    ("plan", "reserve", "*", "abandon"),
)


def test_the_steps_of_the_table_of_states_are_those_that_are_taken() -> None:
    taken = set()
    for way in WAYS:
        pool = pool_of()
        if "*" in way:
            load(pool, "a", 10)
        for step in way:
            before = pool.state("b")
            if step == "*":
                pool.leave("a")
                pool.release("a")
            elif step == "plan":
                pool.plan("b", 20, Why.DEMAND, body=P)
            else:
                getattr(pool, step)("b")
            taken |= {(before, pool.state("b"))} if pool.state("b") is not before else set()
    assert taken == {(before, after) for before, following in NEXT.items() for after in following}


class Notes:
    """A watcher that notes whose bytes changed."""

    def __init__(self) -> None:
        self.changes: list[str] = []

    def entered(self, expert: str) -> None:
        pass

    def left(self, expert: str) -> None:
        pass

    def changed(self, expert: str) -> None:
        self.changes.append(expert)

    def taken(self) -> str:
        changes, self.changes = self.changes, []
        return "".join(changes)


def test_watchers_hear_of_all_whose_bytes_another_expert_changes() -> None:
    """All that share a body when it comes or goes; the one that holds it alone, and that no longer does."""
    pool, notes = pool_of(), Notes()
    pool.tell(notes, sharers={"P": "abcz"})
    heard = []
    for step in (
        lambda: load(pool, "a", 10),
        lambda: load(pool, "b", 10),
        lambda: load(pool, "c", 10),
        lambda: pool.leave("a"),
        lambda: pool.leave("b"),
        lambda: pool.leave("c"),
    ):
        step()
        heard.append(notes.taken())
    assert heard == ["abcz", "ab", "", "", "c", "abcz"]


def test_the_body_of_an_expert_that_runs_stays_and_any_other_may_be_gone_when_an_expert_comes_for_it() -> None:
    pool = pool_of()
    load(pool, "a", 10)
    seen = [beside(pool, 20), beside(pool, 10, body=P)]
    pool.pin("a", 5)
    assert [*seen, beside(pool, 20), beside(pool, 10, body=P)] == [20, 30, 15, 25]
    pool = pool_of(a=20)
    load(pool, "b", 10)
    assert beside(pool, 10, body=P) == 20


EXPERTS = st.sampled_from("abcdef")
BODIES = {"a": P, "b": P, "c": P, "d": Body("Q", 35, 1.0), "e": Body("Q", 35, 1.0), "f": None}


class PoolMachine(RuleBasedStateMachine):
    """Random legal operations; a naive book is kept beside the pool's own."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = pool_of()
        self.pins: list[tuple[str, int]] = []
        self.sources: dict[str, Tier] = {}
        self.bodies: dict[str, Body | None] = {}
        self.in_place: set[str] = set()
        """The bodies on the device, by what it was told."""
        self.brings: dict[str, bool] = {}
        self.states: dict[str, State | None] = dict.fromkeys("abcdef")

    def in_state(self, state: State) -> list[str]:
        return [expert for expert in "abcdef" if self.pool.state(expert) is state]

    def body_bytes(self, *states: State) -> int:
        """Bytes of the bodies that experts in these states hold, each once."""
        holders = [expert for state in states for expert in self.in_state(state)]
        return sum({body.id: body.bytes for expert in holders if (body := self.bodies[expert]) is not None}.values())

    @rule(
        expert=EXPERTS,
        size=st.integers(0, 40),
        why=st.sampled_from(Why),
        source=st.sampled_from(Tier),
        shares=st.booleans(),
    )
    def plan(self, expert: str, size: int, why: Why, source: Tier, shares: bool) -> None:
        body = BODIES[expert] if shares else None
        needed = self.pool.needs(Cost(0.0, 0.0, 0.0, size, 0, body=body))
        held = body is not None and self.pool.holds(body, "")
        assert needed == size + (body.bytes if body is not None and not held else 0)
        if self.pool.state(expert) is None and not self.pool.missing_bytes(needed):
            self.pool.plan(expert, size, why, source, body=body)
            self.sources[expert], self.bodies[expert] = source, body

    @rule(expert=EXPERTS, tier=st.sampled_from(Tier))
    def lies_in(self, expert: str, tier: Tier) -> None:
        if self.pool.state(expert) in (State.PLANNED, State.LOADING):
            self.pool.lies_in(expert, tier)
            self.sources[expert] = tier

    @rule()
    def reserve_in_turn(self) -> None:
        for expert in self.pool.planned():
            if not self.pool.reserve(expert):
                break
            self.brings[expert] = self.pool.missing_body(expert) is not None

    @precondition(lambda self: self.in_state(State.LOADING))
    @rule(data=st.data(), good=st.sampled_from((True, True, False)))
    def end_load(self, data: st.DataObject, good: bool) -> None:
        """A load that failed drops the body that it brought itself; a body that is not in place was to be brought."""
        expert = data.draw(st.sampled_from(self.in_state(State.LOADING)))
        body = self.bodies[expert]
        assert body is None or self.brings[expert] or body.id in self.in_place
        if good:
            self.in_place |= {body.id} if body is not None else set()
            self.pool.commit(expert)
        else:
            self.give_up(expert, self.pool.abandon(expert))

    @precondition(lambda self: self.in_state(State.PLANNED))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        expert = data.draw(st.sampled_from(self.in_state(State.PLANNED)))
        self.give_up(expert, self.pool.cancel(expert))

    def give_up(self, expert: str, leaving: str | None) -> None:
        assert (leaving is not None) is (self.pool.state(expert) is State.LEAVING)
        if leaving is not None:
            self.evict_body(expert, leaving)

    def evict_body(self, expert: str, leaving: str) -> None:
        body = self.bodies[expert]
        assert body.id == leaving
        assert not self.pool.holds(body, "")
        self.in_place.remove(body.id)

    @precondition(lambda self: self.in_state(State.READY))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        expert = data.draw(st.sampled_from(self.in_state(State.READY)))
        pinned = expert in [pinned for pinned, _ in self.pins]
        assert self.pool.evictable(expert) is not pinned
        if pinned:
            with pytest.raises(ValueError, match="cannot leave"):
                self.pool.leave(expert)
        else:
            freed = self.pool.frees(expert) - self.pool.size(expert)
            leaving = self.pool.leave(expert)
            body = self.bodies[expert]
            assert freed == (body.bytes if leaving is not None and body is not None else 0)
            if leaving is not None:
                self.evict_body(expert, leaving)

    @precondition(lambda self: self.in_state(State.LEAVING))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(data.draw(st.sampled_from(self.in_state(State.LEAVING))))

    @precondition(lambda self: self.in_state(State.READY))
    @rule(data=st.data(), size=st.integers(0, 60))
    def pin(self, data: st.DataObject, size: int) -> None:
        expert = data.draw(st.sampled_from(self.in_state(State.READY)))
        if size <= self.pool.batch_room_bytes():
            self.pool.pin(expert, size)
            self.pins.append((expert, size))
        else:
            with pytest.raises(ValueError, match="not free"):
                self.pool.pin(expert, size)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        self.pool.unpin(*self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1))))

    @invariant()
    def states_follow_each_other_as_the_table_says(self) -> None:
        for expert, before in self.states.items():
            self.states[expert] = after = self.pool.state(expert)
            assert after is before or after in NEXT[before]

    @invariant()
    def the_books_balance(self) -> None:
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
        bodies = self.body_bytes(State.LOADING, State.READY)
        # A body whose ready experts have all left is still in place for an expert that waits for room.
        bodies += sum(
            body.bytes
            for body in {self.bodies[expert] for expert in self.in_state(State.PLANNED)}
            if body is not None
            and body.id in self.in_place
            and not any(
                self.bodies[expert] == body for state in (State.LOADING, State.READY) for expert in self.in_state(state)
            )
        )
        pinned = sum(size for _, size in self.pins)
        assert self.pool.reserved_bytes == sum(held.values()) + bodies + pinned <= CAPACITY
        leaving, planned = (sum(map(self.pool.size, self.in_state(s))) for s in (State.LEAVING, State.PLANNED))
        kept = sum(held.values()) - leaving + planned + self.body_bytes(State.PLANNED, State.LOADING, State.READY)
        assert self.pool.missing_bytes(CAPACITY) == kept + max(WORKSPACE, pinned)
        to_come = kept - (sum(held.values()) - leaving) - bodies
        assert self.pool.batch_room_bytes() == CAPACITY - self.pool.reserved_bytes - max(0, to_come - leaving)
        assert list(self.pool.by_arrival()) == [e for e in self.pool.by_arrival() if e in self.in_state(State.READY)]
        assert sorted(self.pool.by_recency()) == sorted(self.in_state(State.READY))

    @invariant()
    def a_ready_expert_has_its_body_in_place_and_no_body_stays_without_an_expert(self) -> None:
        needed = {body.id for expert in self.in_state(State.READY) if (body := self.bodies[expert]) is not None}
        assert needed <= self.in_place
        assert all(
            self.pool.holds(body, "") for body in BODIES.values() if body is not None and body.id in self.in_place
        )

    @invariant()
    def one_batch_has_its_workspace_whenever_nothing_runs(self) -> None:
        assert self.pins or self.pool.batch_room_bytes() >= WORKSPACE

    @invariant()
    def what_is_planned_fits_once_everything_that_leaves_is_gone(self) -> None:
        if self.in_state(State.PLANNED) and not self.in_state(State.LEAVING) and not self.pins:
            sizes = [self.pool.size(expert) for expert in self.in_state(State.PLANNED)]
            everything = sum(self.pool.size(expert) for expert in "abcdef" if self.pool.state(expert) is not None)
            bodies = self.body_bytes(State.PLANNED, State.LOADING, State.READY)
            assert everything + bodies + WORKSPACE <= CAPACITY
            assert self.pool.weights_bytes + sum(sizes) + WORKSPACE <= CAPACITY


TestPoolMachine = PoolMachine.TestCase
