"""No strategy beats the bound, on any board and any box; and what it promises can be reached."""

import pytest
from boxes import boxes
from cases import LINE, cases
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import ENGINE, board, cost
from thorough import THOROUGH

from coe.core import Finding, Request
from coe.lab.bound import bound
from coe.lab.workloads.workload import Workload
from coe.results.metrics import Recorder
from coe.scheduler.controller import Controller
from coe.scheduler.costs import CostTable
from coe.scheduler.events import Reply, Why
from coe.scheduler.plan import CacheSpec, ExecutorSpec, Plan, PoolSpec
from coe.scheduler.strategies import strategy
from coe.sim.agenda import Arrival
from coe.sim.simulator import Simulator, Speeds

SLACK = 1e-9
"""Seconds in which sums differ that were added up in another order."""


class Says:
    """An oracle that says "ok", or what a case says."""

    def __init__(self, case=None):
        self._case = case

    def find(self, request, expert):
        return self._case.finding(request.id, expert) if self._case else Finding(expert, "fp32", "ok", 1.0)


class Replies:
    def __init__(self):
        self.last_s = 0.0

    def observe(self, event, commands, now, control_s=0.0):
        if any(isinstance(command, Reply) for command in commands):
            self.last_s = now


def workload_of(rules, arrivals):
    return Workload("test", "iid", rules, [Arrival(at_s, Request(i, name)) for i, (at_s, name) in enumerate(arrivals)])


@given(cases(), LINE)
@settings(max_examples=15 * THOROUGH, deadline=None)
def test_no_line_beats_the_bound(case, chosen):
    line = case.line(*chosen)
    line.run()
    controller = line.controller
    executors = tuple(ExecutorSpec(one.id, one.device, one.pool.id) for one in controller.executors.values())
    plan = Plan(tuple(pool.spec for pool in controller.pools.values()), executors)
    resident = {load.expert for load in line.loads if load.why is Why.INITIAL}
    least = bound(workload_of(line.board, case.arrivals), Says(case), line.costs, plan, {}, resident, ())
    assert sum(load.why is not Why.INITIAL for load in line.loads) >= least.switches
    last_s = max(when for when, _, told in line.history if any(isinstance(command, Reply) for command in told))
    assert last_s >= least.makespan_s - SLACK


@given(st.data(), cases(), st.sampled_from(ENGINE), st.booleans())
@settings(max_examples=15 * THOROUGH, deadline=None)
def test_no_box_beats_the_bound(data, case, name, preloaded):
    box = data.draw(boxes(case))
    controller = Controller(
        router=case.rules.router, graph=case.rules.graph, costs=box.costs, plan=box.plan, strategy=strategy(name)
    )
    recorder, replies = Recorder(controller.pools), Replies()
    simulator = Simulator(
        controller, Says(case), speeds=Speeds(box.scaling), watchers=[recorder, replies], preloaded=preloaded
    )
    simulator.start()
    # What is loaded while images come is no part of the beginning.
    experts = list(case.rules.experts) if preloaded else []
    resident = {expert for expert in experts if any(expert in pool for pool in controller.pools.values())}
    cached = {expert for expert in experts if controller.cache is not None and expert in controller.cache}
    workload = workload_of(case.rules, case.arrivals)
    simulator.run(workload.arrivals)
    controller.check(idle=True)
    least = bound(workload, Says(case), box.costs, box.plan, box.scaling, resident, cached)
    metrics = recorder.metrics()
    assert metrics.images == len(case.arrivals)
    assert metrics.switches + (0 if preloaded else metrics.initial_loads) >= least.switches
    assert replies.last_s >= least.makespan_s - SLACK


def run(rules, arrivals, plan, prices, name="coserve", cached=()):
    """Run images on one device whose experts are there from the beginning if they fit.

    Return the switches, the seconds until the last reply, and the bound.
    """
    costs = CostTable({("gpu", expert): price for expert, price in prices.items()})
    controller = Controller(router=rules.router, graph=rules.graph, costs=costs, plan=plan, strategy=strategy(name))
    recorder, replies, workload = Recorder(controller.pools), Replies(), workload_of(rules, arrivals)
    simulator = Simulator(controller, Says(), watchers=[recorder, replies], preloaded=True)
    simulator.start()
    resident = [expert for expert in rules.experts if any(expert in pool for pool in controller.pools.values())]
    simulator.run(workload.arrivals)
    least = bound(workload, Says(), costs, plan, {}, resident, cached)
    return recorder.metrics().switches, replies.last_s, least


def shared(executors, capacity):
    """Executors of one pool."""
    those = tuple(ExecutorSpec(f"gpu{index}", "gpu", "gpu") for index in range(executors))
    return Plan((PoolSpec("gpu", "gpu", capacity, 4),), those)


LETTERS = board({"A": 9, "B": 8, "C": 2, "D": 1})
CHAIN = board({"A": 9, "B": 8}, {"a": "d", "b": "d"})


def now(names):
    return [(0.0, name) for name in names]


@pytest.mark.parametrize(
    ("limit", "makespan_s", "switches", "rules", "arrivals", "executors", "capacity", "price"),
    [
        pytest.param("compute", 0.9, 0, LETTERS, now("AAAAA"), 1, 100, cost(), id="one at once, then a batch"),
        pytest.param("compute", 0.6, 0, LETTERS, now("ABBA"), 2, 100, cost(max_batch=1), id="two executors"),
        pytest.param("disk", 2.3, 2, LETTERS, now("CD"), 1, 24, cost(), id="two reads, the last followed by a run"),
        pytest.param("copy", 2.3, 2, LETTERS, now("CD"), 1, 24, cost(copy_s=1.0), id="two copies"),
        pytest.param("arrivals", 5.6, 0, CHAIN, [(0.0, "B"), (5.0, "A")], 1, 100, cost(), id="the last image"),
    ],
)
def test_the_bound_is_reached(limit, makespan_s, switches, rules, arrivals, executors, capacity, price):
    made, last_s, least = run(rules, arrivals, shared(executors, capacity), dict.fromkeys(rules.experts, price))
    assert getattr(least, f"{limit}_s") == least.makespan_s
    assert last_s == pytest.approx(least.makespan_s) == pytest.approx(makespan_s)
    assert made == least.switches == switches


def test_a_detector_that_must_leave_and_come_back_is_two_switches_at_least():
    made, _, least = run(CHAIN, now("A"), shared(1, 14), dict.fromkeys("abd", cost()))
    assert made == least.switches == 2


def test_a_copy_in_the_host_is_there_when_its_read_has_ended():
    """Both executors need a at once: one reads it, the other takes the copy that this makes, not one out of nothing."""
    rules = board({"B": 9, "C": 8, "D": 7, "E": 6, "F": 5, "A": 1})
    pools = tuple(PoolSpec(name, "gpu", 24, 4) for name in ("gpu0", "gpu1"))
    plan = Plan(pools, tuple(ExecutorSpec(pool.id, "gpu", pool.id) for pool in pools), CacheSpec(10))
    prices = {expert: cost(load_s=10.0, copy_s=0.1) for expert in rules.experts} | {"d": cost(per_image_s=0, base_s=0)}
    _, last_s, least = run(rules, now("AA" + 20 * "DA"), plan, prices, "samba-parallel", cached="f")
    assert last_s >= least.makespan_s - SLACK
