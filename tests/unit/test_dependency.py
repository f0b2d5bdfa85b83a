"""The kept ranking of CoServe's eviction is at every moment the one that sorting anew would give."""

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from coe.board.graph import ExpertGraph
from coe.core import Expert
from coe.lab.bound import belady_switches
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.demand import Demand
from coe.scheduler.events import Why
from coe.scheduler.plan import PoolSpec
from coe.scheduler.policies.base import World
from coe.scheduler.policies.coserve import Dependency
from coe.scheduler.pool import ModelPool, State

NAMES = [f"e{index}" for index in range(8)]


def sorted_anew(pool, graph, first):
    """The paper's two stages, written as plainly as can be."""
    ready = list(pool.by_arrival())
    waiting = [expert for expert in ready if graph.waits_for_others(expert)]
    orphans = [expert for expert in waiting if not any(before in pool for before in graph.predecessors(expert))]
    assert not first & set(orphans)
    others = [expert for expert in ready if expert not in orphans]
    return sorted(orphans, key=lambda e: (-pool.size(e), graph.probability(e), e)) + sorted(
        others, key=lambda e: (graph.probability(e), e)
    )


edges = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda edge: edge[0] < edge[1]), max_size=14)


@given(
    edges=edges,
    shares=st.lists(st.sampled_from([0.0, 0.1, 0.1, 0.5]), min_size=8, max_size=8),
    sizes=st.lists(st.integers(1, 4), min_size=8, max_size=8),
    first=st.sets(st.sampled_from(NAMES)),
    steps=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from((True, True, False))), min_size=40, max_size=60),
)
def test_the_kept_ranking_is_the_sorted_one(edges, shares, sizes, first, steps):
    graph = ExpertGraph(
        [Expert(name, "k", ("ok",), 8, name) for name in NAMES],
        [(NAMES[a], NAMES[b]) for a, b in edges],
        dict(zip(NAMES, shares, strict=True)),
        first,
    )
    size = dict(zip(NAMES, sizes, strict=True))
    costs = CostTable({("cpu", name): Cost(1, 1, 1, size[name], 1) for name in NAMES})
    world = World(graph, costs, {}, Demand({}, {}), {})
    pool, policy = ModelPool(PoolSpec("cpu0", "cpu", 20, 0)), Dependency()
    policy.watch(pool, world)
    pool.tell(policy)
    for name, forth in steps:
        match pool.state(name), forth:
            case None, _ if not pool.missing_bytes(size[name]):
                pool.plan(name, size[name], Why.DEMAND)
            case State.PLANNED, True:
                pool.reserve(name)
            case State.PLANNED, False:
                pool.cancel(name)
            case State.LOADING, True:
                pool.commit(name)
            case State.LOADING, False:
                pool.abandon(name)
            case State.READY, _:
                pool.leave(name)
            case State.LEAVING, _:
                pool.release(name)
        ranked = [name for name in policy.rank(pool, world, 0.0) if pool.state(name) is State.READY]
        assert ranked == sorted_anew(pool, graph, first)
        pool.check()


# Belady's choice for stages in the order of their images


def switches(stages, room, resident="", sizes=None):
    return belady_switches(list(stages), sizes or dict.fromkeys("abcd", 1), room, list(resident))


def test_the_expert_whose_next_stage_is_furthest_off_leaves():
    assert switches("abcab", 2) == 4
    assert switches("abcabc", 3) == 3
    assert switches("abab", 2, resident="ab") == 0
    assert switches("abca", 2, resident="bc") == 2
    assert switches("abcbc", 2) == 3, "who is needed no more leaves first"
    assert switches("abcab", 3, sizes={"a": 1, "b": 1, "c": 2}) == 4, "a large one takes the room of two"


@given(st.text("abcd", max_size=9), st.integers(1, 3), st.text("abcd", max_size=3))
def test_no_choice_of_who_leaves_switches_less(stages, room, first):
    resident = frozenset(list(dict.fromkeys(first))[:room])

    @cache
    def least(at, here):
        if at == len(stages):
            return 0
        if stages[at] in here:
            return least(at + 1, here)
        if len(here) < room:
            return 1 + least(at + 1, here | {stages[at]})
        return 1 + min(least(at + 1, here - {leaving} | {stages[at]}) for leaving in here)

    assert switches(stages, room, "".join(sorted(resident))) == least(0, resident)
