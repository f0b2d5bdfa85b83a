"""Policies: what they rank, what they must not change, who brings them, and the order of dependencies."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lines import board

from coe.board.graph import ExpertGraph
from coe.core import Expert, Request, Stage
from coe.errors import ConfigError
from coe.lab.bound import belady_switches
from coe.scheduler import policies
from coe.scheduler.backlog import Backlog
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.demand import Demand
from coe.scheduler.events import Why
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec
from coe.scheduler.policies.base import Assign, Eviction, Need, Prefetch, Select, World
from coe.scheduler.policies.coserve import COSERVE, Dependency
from coe.scheduler.pool import ModelPool, State
from coe.scheduler.strategies import LATE_BINDING, Strategy, names, strategy
from coe.testing import VirtualLine, pools_of

ALL = [(family, name) for family in policies.FAMILIES for name in policies.names(family)]
CASES = pytest.mark.parametrize(("family", "name"), ALL)


@pytest.fixture(scope="module")
def rules():
    return board({"A": 5, "B": 3, "C": 2}, {"a": "[x, y]", "b": "x"})


def bundle(family, name):
    """Return a strategy with this policy: the first of ours whose other policies give what it needs."""
    for known in (COSERVE, LATE_BINDING):
        try:
            return replace(known, name="tested", **{family: name})
        except ConfigError:
            continue
    raise AssertionError(
        f"no strategy can have {family} policy '{name}'; add one that can to coe/scheduler/strategies.py"
    )


DEVICES = ("cpu", "gpu")
TWO_POOLS = Plan(
    tuple(PoolSpec(f"{device}0", device, 70, 9) for device in DEVICES),
    tuple(ExecutorSpec(f"{device}0", device, f"{device}0") for device in DEVICES),
)


@pytest.fixture
def controller(rules, family, name):
    """Two executors with a pool each: the first holds x (an orphan), c and a, the second b; stages wait for both."""
    costs = {name: Cost(0.1, 0.2, 1.0, 10 + index, 2, 4, 1) for index, name in enumerate(rules.experts)}
    made = VirtualLine(rules, costs, TWO_POOLS, strategy=bundle(family, name)).controller
    for expert, executor in zip("xcab", ["cpu0", "cpu0", "cpu0", "gpu0"], strict=True):
        pool = made.executors[executor].pool
        pool.plan(expert, costs[expert].weights_bytes, Why.DEMAND)
        assert pool.reserve(expert)
        pool.commit(expert)
    for number, (executor, expert) in enumerate([("cpu0", e) for e in "caycbac"] + [("gpu0", e) for e in "bx"]):
        made.history.arrived(Request(number, "A"), 0.0)
        made.executors[executor].backlog.add(Stage(number, expert), 0.3, join=number % 2 == 0)
    made.executors["cpu0"].pool.pin("c", 3)
    made.executors["cpu0"].pool.unpin("c", 3)
    return made


def picture(controller):
    return [
        [
            executor.backlog.pending_s,
            [(group.expert, tuple(group), group.open, group.started_s) for group in executor.backlog.groups()],
            [(one, executor.pool.state(one), executor.pool.size(one)) for one in executor.pool.by_arrival()],
            list(executor.pool.by_recency()),
            executor.pool.reserved_bytes,
            executor.batch,
        ]
        for executor in controller.executors.values()
    ]


def made_for(family, name, world):
    policy = policies.make(family, name)
    if family in ("select", "prefetch"):
        policy.watch(world)
    return policy


def introduced(policy, pool, world):
    """Tell an eviction policy of a pool what the controller would have told it."""
    policy.watch(pool, world)
    for expert in pool.by_arrival():
        policy.entered(expert)
    return policy


def lazy(ranking):
    assert isinstance(ranking, Iterator)
    return ranking


def answers(policy, family, controller):
    """Ask a policy everything that its family can be asked about the controller's state."""
    world = controller.world
    executors = list(controller.executors.values())
    experts = list(controller.graph.experts)
    match family:
        case "assign":
            return [policy.choose(expert, world, 5.0) for expert in experts * 2]
        case "arrange":
            return [policy.joins(expert, executor.backlog, 5.0) for expert in experts for executor in executors]
        case "select":
            return [[group.expert for group in lazy(policy.rank(executor, world, 5.0))] for executor in executors]
        case "eviction":
            return [[*lazy(introduced(policy, e.pool, world).rank(e.pool, world, 5.0))] for e in executors]
        case "prefetch":
            return [[*lazy(policy.rank(executor, world, 5.0))] for executor in executors]
    raise AssertionError(f"say here what a policy of the family '{family}' is asked")


@CASES
def test_it_only_looks_says_the_same_twice_and_ranks_only_what_it_was_given(family, name, controller):
    before = picture(controller)
    said, again = (answers(made_for(family, name, controller.world), family, controller) for _ in range(2))
    assert said == again
    assert picture(controller) == before
    controller.check()
    executors = list(controller.executors.values())
    match family:
        case "assign":
            assert set(said) <= set(controller.executors)
        case "arrange":
            assert {type(one) for one in said} == {bool}
        case "select":
            policy = made_for(family, name, controller.world)
            for executor in executors:
                ranked, groups = list(policy.rank(executor, controller.world, 5.0)), list(executor.backlog.groups())
                assert all(any(one is group for group in groups) for one in ranked)
                assert len({id(one) for one in ranked}) == len(ranked) > 0
        case "eviction":
            for executor, ranked in zip(executors, said, strict=True):
                # All of them: the pool stops when there is room, and must find it if there is any.
                assert sorted(ranked) == sorted(executor.pool.by_arrival())
        case "prefetch":
            for ranked in said:
                # Where a backlog is shared, it is the same for all.
                assert set(ranked) <= {group.expert for one in executors for group in one.backlog.groups()}


@pytest.mark.parametrize(("family", "name"), [pair for pair in ALL if pair[0] == "prefetch"])
def test_what_is_loaded_ahead_is_absent_and_named_once(family, name, controller):
    policy = made_for(family, name, controller.world)
    for component in "ABCAB":
        controller.history.arrived(Request(100 + controller.history.images, component), 0.0)
    for executor in controller.executors.values():
        ahead = list(policy.ahead(executor, controller.world, 5.0))
        assert len(ahead) == len(set(ahead))
        assert not any(expert in executor.pool for expert in ahead)


@CASES
def test_it_answers_for_an_idle_line_with_empty_pools(family, name, rules):
    costs = {expert: Cost(0.1, 0.2, 1.0, 10, 2) for expert in rules.experts}
    controller = VirtualLine(rules, costs, pools_of(1, 70, 9), strategy=bundle(family, name)).controller
    said = answers(made_for(family, name, controller.world), family, controller)
    assert all(not one for one in said) or family in ("assign", "arrange")


def test_whatever_a_policy_of_a_user_raises_where_it_is_made_is_one_sentence():
    class Broken(policies.class_of("prefetch", "none")):
        def __init__(self):
            raise ValueError("no model of demand")

    with pytest.raises(ConfigError, match=r"Broken.*no model of demand"):
        policies.make("prefetch", Broken)


@pytest.mark.parametrize("family", policies.FAMILIES)
def test_an_unknown_name_lists_what_there_is(family):
    with pytest.raises(ConfigError) as caught:
        policies.make(family, "zzz")
    assert all(name in str(caught.value) for name in ("zzz", *policies.names(family)))
    with pytest.raises(ConfigError, match="did you mean"):
        policies.make(family, policies.names(family)[0][:-1] + "?")


class NewestFirst(Eviction):
    """A user's policy: it lies in no folder of ours."""

    def rank(self, pool, world, now):
        return reversed(list(pool.by_arrival()))


def of_user(name, base, **methods):
    """Make a class of a user's policy: what its methods answer, whatever they are asked."""
    return type(name, (base,), methods)


Unfinished = of_user("Unfinished", Eviction)
Tuned = of_user("Tuned", NewestFirst, __init__=lambda self, factor: None)
Needy = of_user("Needy", NewestFirst, needs=frozenset({Need.SHARED_BACKLOG}))


def elsewhere(*_):
    (other := Backlog()).add(Stage(0, "c"), 0.1, join=False)
    yield from other.groups()


def test_a_policy_may_be_a_class_of_the_users_found_by_its_path(rules):
    costs = {expert: Cost(0.1, 0.2, 1.0, 10, 2) for expert in rules.experts}
    chosen = replace(strategy("samba"), name="newest", eviction=NewestFirst)
    line = VirtualLine(rules, costs, pools_of(1, 25), strategy=chosen)
    line.arrive(10.0, "C")
    line.run()
    moves = [what.removeprefix("cpu0 ") for _, what in line.log if "evict" in what or "load" in what]
    assert moves == ["load x", "load a", "evict a", "load c"]
    assert line.switches == 1
    assert policies.class_of("eviction", "test_policies:NewestFirst").__name__ == "NewestFirst"


@pytest.mark.parametrize(
    ("base", "family", "policy", "words"),
    [
        ("samba", "assign", of_user("Elsewhere", Assign, choose=lambda *_: "gpu7"), ["gpu7", "cpu0"]),
        ("samba", "assign", of_user("Listed", Assign, choose=lambda *_: ["cpu0"]), ["['cpu0']"]),
        ("samba", "prefetch", of_user("Beyond", Prefetch, rank=lambda *_: iter(["another"])), ["another"]),
        (
            *("samba", "prefetch"),
            of_user("Ahead", Prefetch, rank=lambda *_: iter(()), ahead=lambda *_: iter(["another"])),
            ["another"],
        ),
        ("samba", "eviction", of_user("Stranger", Eviction, rank=lambda *_: iter(["another"])), ["another"]),
        ("late-binding", "eviction", of_user("Stranger", Eviction, rank=lambda *_: iter(["another"])), ["another"]),
        ("samba", "select", of_user("Foreign", Select, rank=elsewhere), ["group"]),
    ],
)
def test_a_policy_that_names_what_there_is_not_is_named(rules, base, family, policy, words):
    costs = {expert: Cost(0.1, 0.2, 1.0, 10, 2) for expert in rules.experts}
    mine = replace(strategy(base), name="mine", **{family: policy})
    line = VirtualLine(rules, costs, pools_of(1, 25), strategy=mine)
    for when, component in enumerate("CABC"):
        line.arrive(10.0 * when, component)
    with pytest.raises(ConfigError) as caught:
        line.run()
    assert [word for word in (policy.__name__, *words) if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("family", "base", "names"),
    [
        ("eviction", Eviction, lambda self, pool, *_: (expert for expert in pool.by_arrival() for _ in range(20))),
        (
            *("prefetch", Prefetch),
            lambda self, executor, *_: (each.expert for each in executor.backlog.groups() for _ in range(len(each))),
        ),
    ],
)
def test_a_policy_may_name_an_expert_for_several_reasons(rules, family, base, names):
    costs = {expert: Cost(0.1, 0.2, 1.0, 10, 2) for expert in rules.experts} | {"c": Cost(0.1, 0.2, 1.0, 22, 2)}
    mine = replace(COSERVE, name="mine", **{family: of_user("Often", base, rank=names)})
    line = VirtualLine(rules, costs, pools_of(1, 25), strategy=mine)
    for component in "CACBC" + 100 * "A":
        line.arrive(0.0, component)
    line.run()
    assert {result.error for result in line.results.values()} == {None}


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Unfinished, ["'Unfinished'", "rank"]),
        (Tuned, ["'Tuned'", "argument"]),
        (policies.class_of("select", "head"), ["FirstGroup", "lru", "coe.scheduler.policies.base.Eviction"]),
        (None, ["eviction=None", "lru", "coe.scheduler.policies.base.Eviction"]),
        (NewestFirst(), ["NewestFirst", "give the name of a policy"]),
        (Needy, ["'mine'", "'Needy'", Need.SHARED_BACKLOG, "assign policy 'shared'"]),
        ("test_policies:Nobody", ["test_policies:Nobody", "Nobody"]),
        ("test_policies:ALL", ["eviction", "lru"]),
    ],
)
def test_what_is_no_such_policy_is_refused(policy, words):
    with pytest.raises(ConfigError) as caught:
        Strategy("mine", eviction=policy)
    assert [word for word in words if word not in str(caught.value)] == []


HASTY = replace(COSERVE, name="hasty")
"""A user's strategy, which lies in no package of ours."""
RUN = """
import sys
from coe.cli.start import bench
ended = []
for name in ("coserve", "theirs"):
    sys.argv[1:] = ["sim", "--task", "A1", "--images", "3", "--strategy", name]
    try:
        bench()
    except SystemExit as end:
        ended.append(f"{name} {end.code or 0}")
print(*ended, "torch" in sys.modules, sep=", ")
"""
PATH = f"{__name__}:HASTY"


@pytest.mark.parametrize("name", ["late-binding", "coe.scheduler.strategies:LATE_BINDING"])
def test_ours_is_found_by_each_of_its_names(name):
    found = strategy(name)
    assert replace(found, name="late-binding") == LATE_BINDING
    assert strategy(found.name) == found


def test_one_of_a_user_or_of_a_package_is_found_and_named():
    assert strategy(PATH) == replace(HASTY, name=PATH)
    assert strategy(HASTY) is HASTY
    assert {"late-binding", "coserve", "samba", "narrow-minded"} <= set(names())
    assert strategy("narrow-minded").name == "narrow-minded"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("coserv", ["'coserv'", "did you mean", "'coserve'"]),
        ("", ["''", "package.module:NAME"]),
        ("no_such_package:FAST", ["no_such_package:FAST", "No module named", "PYTHONPATH"]),
        (f"{__name__}:NOBODY", ["NOBODY"]),
        (f"{__name__}:PATH", [PATH, "coe.scheduler.strategies.Strategy"]),
        ("a-b:C", ["'a-b:C'", "package.module:NAME"]),
        (3, ["strategy=3"]),
        (None, ["strategy=None"]),
    ],
)
def test_what_is_no_strategy_is_refused_in_one_sentence(name, words):
    with pytest.raises(ConfigError) as refused:
        strategy(name)
    assert [word for word in words if word not in str(refused.value)] == []


def test_a_package_that_cannot_be_imported_ends_no_run_without_its_strategy(tmp_path):
    (tmp_path / "theirs-1.dist-info").mkdir()
    (tmp_path / "theirs-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (tmp_path / "theirs-1.dist-info" / "entry_points.txt").write_text("[coe.strategies]\ntheirs = theirs:NONE\n")
    (tmp_path / "theirs.py").write_text("raise RuntimeError('no licence')\n")
    said = subprocess.run(
        [sys.executable, "-c", RUN], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert said.stdout.splitlines()[-1] == "coserve 0, theirs 2, False", "a simulation starts without torch"
    assert said.stderr.count("no licence") == 1


NAMES = [f"e{index}" for index in range(8)]


def sorted_anew(pool, graph, first):
    ready = list(pool.by_arrival())
    waiting = [expert for expert in ready if graph.waits_for_others(expert)]
    loaded = {expert for expert in ready if pool.state(expert) is State.READY}
    orphans = [expert for expert in waiting if not loaded & graph.predecessors(expert)]
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
