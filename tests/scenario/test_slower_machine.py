"""A line on a machine that gets slower than its costs: it says so, expects it, and a recorded run replays."""

import pytest
from lines import ENGINE, board, cost

from coe import config
from coe.core import Finding, Request
from coe.lab.workloads.workload import synthetic
from coe.results.metrics import Recorder
from coe.scheduler.controller import Controller
from coe.scheduler.costs import CostTable
from coe.scheduler.events import Arrived, EventBatch, Finished, Loaded, PaceChanged, Run
from coe.scheduler.strategies import strategy
from coe.sim.oracle import SampledOracle
from coe.sim.simulator import Simulator, Speeds
from coe.testing import pools_of

BOARD = board({"A": 3, "B": 2, "C": 1})
COSTS = CostTable({("cpu", expert): cost() for expert in "abc"})


class Steps:
    """Keeps every step of a run."""

    def __init__(self):
        self.all = []

    def observe(self, event, commands, now, control_s=0.0):
        self.all.append((now, event, commands))


def controller(name, *, executors=1):
    return Controller(
        router=BOARD.router,
        graph=BOARD.graph,
        costs=COSTS.following(),
        plan=pools_of(executors, 24, 4),
        strategy=strategy(name),
    )


def steps_of(name, speed, *, images=60, executors=1):
    """Run images on executors that are `speed` times as fast as their costs state."""
    line, steps = controller(name, executors=executors), Steps()
    recorder = Recorder(line.pools)
    speeds = Speeds({"cpu": (speed, speed)})
    simulator = Simulator(line, SampledOracle(BOARD), watchers=[steps, recorder], speeds=speeds)
    simulator.start()
    simulator.run(synthetic(BOARD, task="t", requests=images, every_s=0.5).arrivals)
    line.check(idle=True)
    return steps.all, recorder.metrics()


def changes(steps):
    return [command for _, _, commands in steps for command in commands if isinstance(command, PaceChanged)]


@pytest.mark.parametrize("name", ENGINE)
def test_a_machine_as_measured_changes_nothing(name):
    steps, metrics = steps_of(name, 1.0)
    assert not changes(steps)
    assert metrics.pace == 1


@pytest.mark.parametrize("name", ENGINE)
def test_a_machine_of_half_the_speed_is_reported_and_expected(name):
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
    simulator = Simulator(line, SampledOracle(BOARD), speeds=Speeds({"cpu": (0.5,)}))
    simulator.start()
    simulator.run(synthetic(BOARD, task="t", requests=60, every_s=0.5).arrivals)
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
