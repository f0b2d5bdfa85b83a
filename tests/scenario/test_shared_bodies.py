"""Experts that share a body: the first brings it, the last takes it along, and in between only the rest is moved.

An expert takes 10 bytes and 1 s of its own, its body 30 bytes and 3 s. Unless stated, `a`, `b` and `c` share body P.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from lines import ENGINE, arrive, board, cost, inspect, line_of, log_of
from variants import Upgraded

from coe.core import Verdict
from coe.scheduler.costs import Body, Cost
from coe.scheduler.plan import CacheSpec, ExecutorSpec, Plan, PoolSpec
from coe.scheduler.policies.coserve import COSERVE
from coe.testing import Troubles, VirtualLine, pools_of

P, Q = Body("P", 30, 3.0), Body("Q", 30, 3.0)
ABC = board({"A": 3, "B": 2, "C": 1})


def of(body: Body, **changes: Any) -> Cost:
    return cost(body=body, **changes)


def bodies(**by_expert: Body) -> dict[str, Cost]:
    return {expert: of(body) for expert, body in by_expert.items()}


def in_one_pool(line: VirtualLine, **options: Any) -> list[tuple[float, str]]:
    """The log without the names of the pool and its executor, which depend on the strategy."""
    names = tuple(f"{name} " for name in (*line.controller.pools, *line.controller.executors))
    log = [(when, what.removeprefix(next(filter(what.startswith, names), ""))) for when, what in log_of(line)]
    without, after = options.get("without", "-"), options.get("after", 0.0)
    return [(when, what) for when, what in log if when >= after and not what.startswith(without)]


def test_the_first_expert_brings_the_body_and_the_others_do_not() -> None:
    line = line_of(ABC, 64, costs=bodies(a=P, b=P, c=P))
    line.run()
    assert in_one_pool(line) == [(0.0, "load a and body"), (4.0, "load b"), (5.0, "load c")]
    assert [load.body for load in line.loads] == ["P", None, None]
    assert line.controller.pools["cpu0"].reserved_bytes == 60


@pytest.mark.parametrize("name", ["coserve", "late-binding"])
def test_an_expert_leaves_without_the_body_that_another_needs(name: str) -> None:
    """There is room for two experts and a body: c takes the place of b alone, in the time of its own part."""
    line = line_of(ABC, 54, costs=bodies(a=P, b=P, c=P), strategy=name)
    inspect(line, (10.0, "C"))
    assert in_one_pool(line) == [
        (0.0, "load a and body"),
        (4.0, "load b"),
        (10.0, "evict b"),
        (10.0, "load c"),
        (11.0, "run c x1"),
    ]


@pytest.mark.parametrize("name", ["coserve", "late-binding"])
def test_the_last_holder_frees_both(name: str) -> None:
    """c, which has another body, needs 40 bytes: a leaves with its body."""
    line = line_of(ABC, 54, costs=bodies(a=P, c=Q), strategy=name)
    inspect(line, (10.0, "C"))
    assert in_one_pool(line)[2:] == [
        (10.0, "evict b"),
        (10.0, "evict a and body"),
        (10.0, "load c and body"),
        (14.0, "run c x1"),
    ]


@pytest.mark.parametrize("name", ["coserve", "late-binding"])
def test_a_body_that_the_newcomer_needs_stays_though_its_last_holder_leaves(name: str) -> None:
    """There is room for one expert and the body."""
    line = line_of(ABC, 44, costs=bodies(a=P, b=P, c=P), strategy=name)
    inspect(line, (10.0, "BC"))
    assert in_one_pool(line) == [
        (0.0, "load a and body"),
        (10.0, "evict a"),
        (10.0, "load b"),
        (11.0, "run b x1"),
        (11.3, "evict b"),
        (11.3, "load c"),
        (12.3, "run c x1"),
    ]


def on_cuda(costs: Mapping[str, Cost], capacity: int, **options: Any) -> VirtualLine:
    """A device with a copy lane, and host memory for ten experts' own parts."""
    plan = Plan(
        (PoolSpec("cuda0", "cuda", capacity, 4),),
        (ExecutorSpec("cuda0", "cuda", "cuda0"),),
        CacheSpec(100, frozenset({"cuda"}), demotes=True),
    )
    return VirtualLine(ABC, costs, plan, **options)


COPIED = Body("P", 30, 3.3, copy_s=0.3)


@pytest.mark.parametrize(
    ("bad_loads", "after"),
    [({}, [(4.8, "load b")]), ({"a": 1}, [(4.8, "load a"), (4.8, "load b and body"), (5.7, "load a")])],
)
def test_of_two_loads_of_one_body_under_way_the_first_that_succeeds_brings_it(
    bad_loads: dict[str, int], after: list[tuple[float, str]]
) -> None:
    """While a is copied, b is read without the body, which has been read for a: if a fails, it is copied with b."""
    line = on_cuda(
        {e: of(COPIED, copy_s=0.1) for e in "abc"}, 64, strategy="late-binding", troubles=Troubles(bad_loads)
    )
    arrive(line, 0.0, "AB")
    line.run(start=False)
    assert [(load.expert, load.body) for load in line.loads][:2] == [("a", "P"), ("b", "P")]
    assert [entry for entry in in_one_pool(line, without="run") if entry[1] != "load c"] == [
        (0.0, "load a and body"),
        (3.9, "load b"),
        (3.9, "load a and body"),
        *after,
    ]
    assert [result.verdict for result in line.results.values()] == [Verdict.OK] * 2


def test_a_body_whose_last_expert_could_not_be_loaded_leaves_in_its_name() -> None:
    """b takes the place of a, and the body stays for it; when b fails, nobody holds the body."""
    line = line_of(ABC, 44, costs=bodies(a=P, b=P, c=P), bad_loads={"b": 10**9}, evict_s=0.5)
    inspect(line, (10.0, "B"))
    assert log_of(line)[:5] == [
        (0.0, "cpu0 load a and body"),
        (10.0, "cpu0 evict a"),
        (10.5, "cpu0 load b"),
        (11.5, "cpu0 evict b and body"),
        (12.0, "cpu0 load b and body"),
    ]
    assert line.results[0].verdict is None
    assert not line.controller.pools["cpu0"].reserved_bytes


def test_a_stopped_line_lets_a_body_go_that_an_expert_was_to_take_over() -> None:
    line = line_of(ABC, 44, costs=bodies(a=P, b=P, c=P), evict_s=2.0)
    arrive(line, 10.0, "B")
    line.stop(11.0)
    line.run()
    assert log_of(line, after=10.0) == [(10.0, "cpu0 evict a"), (11.0, "cpu0 evict b and body")]
    assert not line.controller.pools["cpu0"].reserved_bytes


@pytest.mark.parametrize("lost_at_s", [0.5, 4.5, 10.5, 13.0, 14.1])
@pytest.mark.parametrize("name", ENGINE)
def test_a_lost_device_leaves_no_body_in_the_books(name: str, lost_at_s: float) -> None:
    plan = Plan(
        tuple(PoolSpec(f"{device}0", device, 54, 4) for device in ("cuda", "cpu")),
        tuple(ExecutorSpec(f"{device}0", device, f"{device}0") for device in ("cuda", "cpu")),
    )
    line = VirtualLine(ABC, bodies(a=P, b=P, c=Q), plan, strategy=name, evict_s=0.2)
    arrive(line, 10.0, "ABCABCAABBCCA")
    line.lose(lost_at_s, "cuda")
    line.run()
    assert [result.verdict for result in line.results.values()] == [Verdict.OK] * 13
    lost = [pool for pool in line.controller.pools.values() if pool.device == "cuda"]
    assert not any(pool.reserved_bytes for pool in lost)


@pytest.mark.parametrize(("held_by", "leaves"), [("b", "a"), ("bc", "b")])
def test_the_last_holder_counts_with_its_body(held_by: str, leaves: str) -> None:
    """`line`: to bring back a byte of a takes 0.2 s, of b 0.1 s, but of b with its body, which is slow, 0.25 s."""
    slow = Body("P", 30, 9.0)
    rules = board(dict.fromkeys(["A", *held_by.upper(), "D"], 1))
    costs = {"a": cost(load_s=2.0)} | {expert: of(slow) for expert in held_by}
    line = line_of(rules, 44 + 10 * len(held_by), costs=costs, strategy="late-binding")
    inspect(line, (20.0, "D"))
    assert in_one_pool(line, after=20.0)[0] == (20.0, f"evict {leaves}")


def test_an_expert_goes_where_its_body_is() -> None:
    """`coserve`: c goes to the executor that holds its body, though the other comes first by name."""
    line = line_of(ABC, 44, executors=2, costs={"a": of(Q), "b": of(P), "c": of(P)})
    assert log_of(line, (20.0, "C"), after=20.0) == [
        (20.0, "cpu1 evict b"),
        (20.0, "cpu1 load c"),
        (21.0, "cpu1 run c x1"),
    ]


def test_a_copy_in_host_memory_serves_only_where_the_body_is_in_place() -> None:
    """Host memory holds no bodies: b, which comes without its body being there, is read with it from disk."""
    line = on_cuda({expert: of(COPIED, copy_s=0.1) for expert in "ab"} | {"c": cost(copy_s=0.1)}, 44)
    for at_s, component in [(20.0, "C"), (30.0, "B"), (40.0, "A")]:
        arrive(line, at_s, component)
    line.run()
    assert in_one_pool(line) == [
        (0.0, "load a and body"),  # from disk
        (3.9, "load a and body"),  # up to the device
        (4.3, "cuda fill b"),
        (5.2, "cuda fill c"),
        (20.0, "evict a and body"),
        (20.0, "load c"),
        (20.1, "run c x1"),
        (30.0, "evict c"),
        (30.0, "load b and body"),
        (33.9, "load b and body"),
        (34.3, "run b x1"),
        (40.0, "evict b"),
        (40.0, "load a"),
        (40.1, "run a x1"),
    ]


def test_each_variant_has_its_own_body() -> None:
    """b comes in q8, and is upgraded while the disk is idle: it leaves with the body of q8, that of fp32 is there."""
    fine, coarse = Body("P fp32", 30, 3.0), Body("P q8", 8, 0.8)
    line = VirtualLine(
        board({"A": 2, "B": 1}),
        {expert: {"fp32": of(fine), "q8": of(coarse, weights_bytes=3, load_s=0.3)} for expert in "ab"},
        pools_of(1, 55, 4),
        strategy=replace(COSERVE, name="chosen", residency=Upgraded),
    )
    line.bad_loads["b"] = 1  # so that b comes only when it is needed
    inspect(line, (10.0, "B"))
    assert in_one_pool(line) == [
        (0.0, "load a and body"),
        (4.0, "load b"),
        (10.0, "load b and body"),
        (11.1, "run b x1"),
        (11.4, "evict b and body"),
        (11.4, "load b"),
    ]
    assert [load.variant for load in line.loads] == ["fp32", "fp32", "q8", "fp32"]
    assert line.controller.pools["cpu0"].reserved_bytes == 10 + 10 + 30
