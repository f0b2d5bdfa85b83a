"""Whatever comes, fails or changes, devices that only obey hold each body exactly as long as an expert needs it."""

from dataclasses import replace

from bodies_in_place import Obeyed
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import ENGINE, board, cost, joined
from plots import BOARDS, COSTS, SHARED, ChangingLine, Plot, plots
from thorough import THOROUGH

from coe.scheduler.costs import Body, Cost
from coe.scheduler.plan import CacheSpec, ExecutorSpec, Plan, PoolSpec
from coe.testing import Troubles, VirtualLine, pools_of

P, Q = Body("P", 12, 1.5, 0.2), Body("Q", 7, 0.5, 0.1)


class ObeyedLine(Obeyed, VirtualLine):
    """A line whose devices only obey."""


class ObeyedChangingLine(Obeyed, ChangingLine):
    """A line with changing boards whose devices only obey."""


@given(plots(), st.sampled_from(ENGINE), st.sampled_from([30, 45, 80]), st.data())
@settings(max_examples=20 * THOROUGH, deadline=None)
def test_boards_come_and_go_while_bodies_are_resident(
    plot: Plot, strategy: str, capacity: int, data: st.DataObject
) -> None:
    bodies = {name: data.draw(st.sampled_from([P, Q, None])) for name in COSTS}
    ids = joined(BOARDS, SHARED).experts
    costs = {id: replace(COSTS[id[-1]], body=bodies[id[-1]]) for id in ids}
    said = {(number, id): plot.label(number, id[-1]) for number in range(len(plot.images)) for id in ids}
    rules, plan = joined({key: BOARDS[key] for key in plot.first}, SHARED), pools_of(1, capacity, 4)
    bad = data.draw(st.dictionaries(st.sampled_from(sorted(ids)), st.integers(1, 3), max_size=2))
    evict_s = data.draw(st.sampled_from([0.0, 0.01, 0.7]))
    line = ObeyedChangingLine(
        rules, costs, plan, strategy=strategy, findings=said, troubles=Troubles(bad), evict_s=evict_s
    )
    line.begin(plot)
    line.run()
    assert len(line.results) == len(plot.images)
    line.check_idle()


LETTERS = "ABCDEF"
RULES = board(dict(zip(LETTERS, (6, 5, 4, 3, 2, 1), strict=True)), {"a": "b", "c": "[d, e]"})


@st.composite
def costs(draw: st.DrawFn) -> dict[str, Cost | dict[str, Cost]]:
    """Costs of experts that are copied to the device; some choose their variant at each load, each with its body."""
    table: dict[str, Cost | dict[str, Cost]] = {}
    for name in LETTERS.lower():
        body = draw(st.sampled_from([P, P, Q, None]))
        fine = cost(copy_s=0.1, weights_bytes=draw(st.integers(1, 14)), body=body)
        small = None if body is None else replace(body, id=f"{body.id} q8", bytes=body.bytes // 3)
        coarse = replace(fine, weights_bytes=max(1, fine.weights_bytes // 3), load_s=0.4, body=small)
        table[name] = {"fp32": fine, "q8": coarse} if draw(st.booleans()) else fine
    return table


@given(
    costs(),
    st.lists(st.tuples(st.sampled_from([0.0, 0.3, 1.0, 6.0]), st.sampled_from(LETTERS)), min_size=1, max_size=25),
    st.sampled_from(ENGINE),
    st.data(),
)
@settings(max_examples=30 * THOROUGH, deadline=None)
def test_a_copy_lane_host_memory_failures_and_a_lost_device(
    costs: dict[str, Cost | dict[str, Cost]], arrivals: list[tuple[float, str]], strategy: str, data: st.DataObject
) -> None:
    devices = data.draw(st.sampled_from([("cuda",), ("cuda", "cpu")]))
    capacity = data.draw(st.sampled_from([31, 45, 90]))
    cache = CacheSpec(data.draw(st.sampled_from([15, 60])), frozenset({"cuda"}), demotes=data.draw(st.booleans()))
    plan = Plan(
        tuple(PoolSpec(f"{device}0", device, capacity, 4) for device in devices),
        tuple(ExecutorSpec(f"{device}0", device, f"{device}0") for device in devices),
        data.draw(st.sampled_from([cache, None])),
    )
    bad = data.draw(st.dictionaries(st.sampled_from(LETTERS.lower()), st.integers(1, 3), max_size=3))
    evict_s = data.draw(st.sampled_from([0.0, 0.2, 1.5]))
    line = ObeyedLine(RULES, costs, plan, strategy=strategy, troubles=Troubles(bad), evict_s=evict_s)
    now = 0.0
    for wait_s, component in arrivals:
        now += wait_s
        line.arrive(now, component)
    if data.draw(st.booleans()):
        line.lose(data.draw(st.floats(0, now + 5)), "cuda")
    elif data.draw(st.booleans()):
        line.stop(data.draw(st.floats(0, now + 5)))
    line.run()
    assert len(line.results) == len(arrivals)
    line.check_idle()
