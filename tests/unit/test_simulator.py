"""The simulated box: one disk for all, a copy lane for each device, processors that executors share."""

from dataclasses import replace

import pytest
from lines import ENGINE, board, cost

from coe import config
from coe.core import Finding, Request
from coe.lab.workloads.workload import synthetic
from coe.results.metrics import Recorder
from coe.scheduler.controller import Controller
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.events import Arrived, EventBatch, Evict, Finished, Load, Loaded, PaceChanged, Reply, Run
from coe.scheduler.plan import CacheSpec, ExecutorSpec, Plan, PoolSpec
from coe.scheduler.strategies import strategy
from coe.sim.agenda import Arrival
from coe.sim.oracle import SampledOracle
from coe.sim.simulator import Simulator, Speeds
from coe.testing import pools_of, rules_from

BOARD = rules_from(
    """
board: b
experts:
  a: {kind: k, labels: [ok, bad], input: 8}
  b: {kind: k, labels: [ok, bad], input: 8}
  c: {kind: k, labels: [ok, bad], input: 8}
components:
  A: {count: 3, inspect: a, shares: {ok: 0.75}, then: {ok: OK, bad: NG}}
  B: {count: 2, inspect: b, then: {ok: OK, bad: NG}}
  C: {count: 1, inspect: c, then: {ok: OK, bad: NG}}
"""
)


GPU = Cost(per_image_s=1, base_s=0, load_s=3, weights_bytes=10, activation_bytes=1, copy_s=1)


class Log:
    def __init__(self):
        self.lines = []

    def observe(self, event, commands, now, control_s=0.0):
        for command in commands:
            match command:
                case Run():
                    self.note(now, f"{command.executor} run {command.batch.expert} x{len(command.batch)}")
                case Evict():
                    self.note(now, f"{command.pool} evict {command.expert}")
                case Load():
                    self.note(now, f"{command.pool} wants {command.expert} from {command.source}")
                case Reply():
                    self.note(now, f"reply {command.result.request.id}")

    def span(self, device, what, begin_s, end_s):
        self.note(begin_s, f"{'disk' if device is None else f'copy {device}'}: {what} until {end_s:g}")

    def note(self, now, what):
        self.lines.append((round(now, 6), what))


def simulate(plan, cost, arrivals, *, name="coserve", **options):
    costs = CostTable({(device, expert): one for device, one in cost.items() for expert in "abc"})
    controller = Controller(router=BOARD.router, graph=BOARD.graph, costs=costs, plan=plan, strategy=strategy(name))
    log, recorder = Log(), Recorder(controller.pools)
    box = Simulator(
        controller, SampledOracle(BOARD), watchers=[log, recorder], span=log.span, preloaded=True, **options
    )
    box.start()
    box.run([Arrival(at_s, Request(number, component)) for number, (at_s, component) in enumerate(arrivals)])
    controller.check(idle=True)
    return log, recorder


def plan_of(*pools, cache_bytes=0):
    return Plan(
        tuple(PoolSpec(id, device, size, 1) for id, device, size in pools),
        tuple(ExecutorSpec(id, device, id) for id, device, _ in pools),
        CacheSpec(cache_bytes) if cache_bytes else None,
    )


def test_a_load_passes_the_disk_and_then_the_lane_while_the_disk_reads_on():
    log, recorder = simulate(
        plan_of(("g0", "gpu", 11), ("g1", "gpu", 11)), {"gpu": GPU}, [(0, "C"), (0, "A"), (0, "C")]
    )
    assert log.lines == [
        (0.0, "g0 wants a from disk"),
        (0.0, "g1 wants b from disk"),
        # c is nowhere and both pools are full: c goes to g0, and a, just driven out there, to the idle g1.
        (0.0, "g0 evict a"),
        (0.0, "g1 evict b"),
        (0.0, "g0 wants c from disk"),
        (0.0, "disk: g0 load c until 2"),
        (0.0, "g1 wants a from disk"),
        # The disk goes on with a while the lane copies c.
        (2.0, "disk: g1 load a until 4"),
        (2.0, "copy gpu: g0 load c until 3"),
        (3.0, "g0 run c x1"),
        (4.0, "copy gpu: g1 load a until 5"),
        (4.0, "reply 0"),
        (4.0, "g0 run c x1"),
        (5.0, "g1 run a x1"),
        (5.0, "reply 2"),
        (6.0, "reply 1"),
    ]
    assert recorder.metrics().switches == recorder.metrics().disk_loads == 2


def test_what_the_host_has_a_copy_of_is_not_read_from_disk():
    log, recorder = simulate(
        plan_of(("g0", "gpu", 11), cache_bytes=10), {"gpu": GPU}, [(0, "A"), (0, "B"), (0, "A"), (0, "B")], name="samba"
    )
    assert log.lines == [
        (0.0, "g0 wants a from disk"),
        (0.0, "g0 run a x1"),
        (1.0, "reply 0"),
        # b was the likeliest that no pool took: the cache held it from the start.
        (1.0, "g0 evict a"),
        (1.0, "g0 wants b from host"),
        (1.0, "copy gpu: g0 load b until 2"),
        (2.0, "g0 run b x1"),
        (3.0, "reply 1"),
        (3.0, "g0 evict b"),
        (3.0, "g0 wants a from disk"),
        (3.0, "disk: g0 load a until 5"),
        (5.0, "copy gpu: g0 load a until 6"),
        (6.0, "g0 run a x1"),
        (7.0, "reply 2"),
        # a took the place of b in the cache.
        (7.0, "g0 evict a"),
        (7.0, "g0 wants b from disk"),
        (7.0, "disk: g0 load b until 9"),
        (9.0, "copy gpu: g0 load b until 10"),
        (10.0, "g0 run b x1"),
        (11.0, "reply 3"),
    ]
    seen = recorder.metrics()
    assert (seen.switches, seen.disk_loads) == (3, 2)


def test_executors_share_their_device():
    cpu = Cost(per_image_s=1, base_s=0, load_s=1, weights_bytes=10, activation_bytes=1)
    plan, arrivals = plan_of(("c0", "cpu", 11), ("c1", "cpu", 11)), [(0.0, "A"), (0.5, "B")]
    alone, _ = simulate(plan, {"cpu": cpu}, arrivals)
    assert alone.lines[2:] == [(0, "c0 run a x1"), (0.5, "c1 run b x1"), (1.0, "reply 0"), (1.5, "reply 1")]
    shared, _ = simulate(plan, {"cpu": cpu}, arrivals, speeds=Speeds({"cpu": [1.0, 1.0]}))
    assert shared.lines[2:] == [(0, "c0 run a x1"), (0.5, "c1 run b x1"), (1.5, "reply 0"), (2.0, "reply 1")]


def test_the_oracle_says_the_same_whatever_was_asked_before_and_follows_the_shares():
    forward, backward = SampledOracle(BOARD, seed=1), SampledOracle(BOARD, seed=1)
    requests = [Request(number, "A") for number in range(4000)]
    said = [forward.find(request, "a").label for request in requests]
    assert said == [backward.find(request, "a").label for request in reversed(requests)][::-1]
    assert said.count("ok") / len(said) == pytest.approx(0.75, abs=0.03)
    assert said != [SampledOracle(BOARD, seed=2).find(request, "a").label for request in requests]


def test_a_copy_that_is_still_being_read_is_waited_for():
    gpu = replace(GPU, per_image_s=0.5)
    pools = plan_of(("g0", "gpu", 11), ("g1", "gpu", 11), cache_bytes=10)
    log, recorder = simulate(pools, {"gpu": gpu}, [(0, "A"), (0, "A"), (3.2, "C"), (3.2, "C")], name="samba-parallel")
    assert [line for line in log.lines if "load" in line[1] or "wants" in line[1]][2:] == [
        # a takes the place of c in the cache.
        (0.0, "g1 wants a from disk"),
        (0.0, "disk: g1 load a until 2"),
        (2.0, "copy gpu: g1 load a until 3"),
        (3.2, "g0 wants c from disk"),
        (3.2, "disk: g0 load c until 5.2"),
        # The host will have c, but has not read it yet.
        (3.5, "g1 wants c from host"),
        (5.2, "copy gpu: g0 load c until 6.2"),
        (6.2, "copy gpu: g1 load c until 7.2"),
    ]
    assert recorder.metrics().disk_loads == 2


def test_a_cache_that_begins_empty_fills_with_what_is_read():
    plan = plan_of(("g0", "gpu", 11), ("g1", "gpu", 21), cache_bytes=30)
    _, recorder = simulate(plan, {"gpu": GPU}, [(0, component) for component in "BAABBAAB"], name="samba-parallel")
    seen = recorder.metrics()
    assert (seen.switches, seen.disk_loads) == (6, 2)


BOARD_SLOWER = board({"A": 3, "B": 2, "C": 1})
COSTS = CostTable({("cpu", expert): cost() for expert in "abc"})


class Steps:
    def __init__(self):
        self.all = []

    def observe(self, event, commands, now, control_s=0.0):
        self.all.append((now, event, commands))


def controller(name, *, executors=1):
    return Controller(
        router=BOARD_SLOWER.router,
        graph=BOARD_SLOWER.graph,
        costs=COSTS.following(),
        plan=pools_of(executors, 24, 4),
        strategy=strategy(name),
    )


def steps_of(name, speed, *, images=60, executors=1):
    """Run images on executors that are `speed` times as fast as their costs state."""
    line, steps = controller(name, executors=executors), Steps()
    recorder = Recorder(line.pools)
    speeds = Speeds({"cpu": (speed, speed)})
    simulator = Simulator(line, SampledOracle(BOARD_SLOWER), watchers=[steps, recorder], speeds=speeds)
    simulator.start()
    simulator.run(synthetic(BOARD_SLOWER, task="t", requests=images, every_s=0.5).arrivals)
    line.check(idle=True)
    return steps.all, recorder.metrics()


def changes(steps):
    return [command for _, _, commands in steps for command in commands if isinstance(command, PaceChanged)]


@pytest.mark.parametrize("name", ENGINE)
def test_a_machine_of_half_the_speed_is_reported_and_expected_and_one_as_measured_changes_nothing(name):
    steps, metrics = steps_of(name, 1.0)
    assert not changes(steps)
    assert metrics.pace == 1
    steps, metrics = steps_of(name, 0.5)
    assert [round(change.pace, 6) for change in changes(steps)] == [2.0]
    assert metrics.pace == pytest.approx(2)
    assert metrics.images == 60


@pytest.mark.parametrize("name", ENGINE)
def test_a_recorded_run_on_a_slower_machine_replays_to_the_same_commands(name):
    steps, _ = steps_of(name, 0.4, executors=2)
    assert changes(steps)
    fresh = controller(name, executors=2)
    for now, event, commands in steps:
        again = fresh.start(now) if event is None else fresh.handle(event, now)
        assert again == commands


def test_the_costs_that_decisions_use_are_the_corrected_ones():
    line = controller("late-binding")
    simulator = Simulator(line, SampledOracle(BOARD_SLOWER), speeds=Speeds({"cpu": (0.5,)}))
    simulator.start()
    simulator.run(synthetic(BOARD_SLOWER, task="t", requests=60, every_s=0.5).arrivals)
    assert line.world.costs("cpu", "a").batch_s(1) == pytest.approx(2 * COSTS("cpu", "a").batch_s(1))
    assert line.world.costs("cpu", "a").load_s == COSTS("cpu", "a").load_s


def test_batches_that_end_together_are_counted_one_by_one():
    """As many batches as the pace needs, in half as many steps: each counts, and the change is said once."""
    line = controller("coserve", executors=2)
    ended, paces, number = [], [], 0
    pending = line.start(0.0)
    while pending:
        load = pending.pop(0)
        pending += line.handle(Loaded(load.pool, load.expert), 0.0)
    while not paces:
        arrived = EventBatch(tuple(Arrived(Request(number + each, component)) for each, component in enumerate("AB")))
        commands, number = line.handle(arrived, float(number)), number + 2
        runs = [command for command in commands if isinstance(command, Run)]
        assert len(runs) == 2
        finished = [
            Finished(run.executor, (Finding(run.batch.expert, "fp32", "ok", 1.0),), 2 * COSTS("cpu", "a").batch_s(1))
            for run in runs
        ]
        ended += finished
        commands = line.handle(EventBatch(tuple(finished)), float(number))
        paces = [command.pace for command in commands if isinstance(command, PaceChanged)]
    assert paces == [2.0]
    assert len(ended) == config.PACE_BATCHES + config.PACE_BATCHES % 2
