"""Several boxes in virtual time: every image is answered once, as on one box, whatever becomes of the boxes."""

from dataclasses import replace
from pathlib import Path

import pytest
from tables import with_slow_rows

from apps.boards.make import board_file
from coe.lab.cluster_bench import Mishap, Scene, cluster_run, fleet
from coe.lab.cluster_simulator import SimulatedNetwork
from coe.lab.machine import SimulatedMachine
from coe.lab.simulated import contender
from coe.lab.workloads.workload import synthetic
from coe.scheduler.controller import Controller
from coe.scheduler.events import Fill, Load, Why
from coe.sim.oracle import SampledOracle
from coe.sim.simulator import Simulator

MACHINE = SimulatedMachine("numa-rtx3080ti")


def scene_of(boards, images, network=None, strategy="late-binding"):
    """Images of boards in equal parts, one every 4 ms, that wait as long as it takes."""
    joined = fleet(boards)
    workload = synthetic(joined.rules, task="boards", requests=images, seed=0)
    hurries = contender(strategy).strategy.hurries
    return Scene(
        MACHINE,
        workload,
        joined,
        contender(strategy),
        network or SimulatedNetwork(),
        max_wait_s=1e6 if hurries else None,
    )


@pytest.fixture(scope="module")
def small():
    return scene_of(["A"], 400)


@pytest.fixture(scope="module")
def alone(small):
    return cluster_run(small, 1)


@pytest.fixture(scope="module")
def three(small):
    return cluster_run(small, 3)


def check(run, scene, verdicts_of, boxes):
    images = len(scene.workload.arrivals)
    assert len(run.answered_s) == len(run.verdicts) == images
    assert run.verdicts == verdicts_of.verdicts
    assert run.failed == 0
    assert images <= run.images_moved <= boxes * images


@pytest.mark.parametrize("strategy", with_slow_rows(["coserve", "samba"], fast=1))
def test_boxes_run_any_strategy(alone, strategy):
    scene = scene_of(["A"], 400, strategy=strategy)
    check(cluster_run(scene, 2), scene, alone, 2)


@pytest.mark.parametrize("mishap", [Mishap.LOST, Mishap.JOINS])
@pytest.mark.parametrize(
    "share", [pytest.param(0.0, marks=pytest.mark.slow), 0.5, pytest.param(2.0, marks=pytest.mark.slow)]
)
def test_a_box_that_goes_or_comes_costs_no_image(small, alone, three, mishap, share):
    run = cluster_run(small, 3, mishap, share * three.makespan_s)
    check(run, small, alone, 4)
    assert run.experts_moved > 0


def test_verdicts_are_those_of_one_box_also_on_a_slow_network_that_makes_it_slower(small, alone, three):
    scene = replace(small, network=SimulatedNetwork(latency_s=0.05, bytes_per_s=12_500_000, image_bytes=2_000_000))
    run = cluster_run(scene, 3)
    check(run, small, alone, 3)
    assert run.makespan_s > three.makespan_s
    assert run.images_moved < 1.2 * len(small.workload.arrivals)
    check(cluster_run(small, 2), small, alone, 2)


def test_a_simulated_box_loads_first_experts_that_come_with_other_rules():
    """A preloaded box has its first experts at time 0; those of rules that come later pass the disk."""
    scene = scene_of(["A"], 1)
    board = scene.fleet.rules
    controller = Controller(
        router=board.router, graph=board.graph, costs=scene.costs, plan=scene.plan, strategy=scene.contender.strategy
    )
    simulator = Simulator(controller, SampledOracle(board), preloaded=True)
    simulator.start()
    resident = [expert for expert in board.experts if any(expert in pool for pool in controller.pools.values())]
    pool, absent = "cuda", next(expert for expert in board.experts if expert not in resident)
    simulator._carry_out(Load(pool, absent, Why.INITIAL))
    assert not simulator._preloads
    simulator._carry_out(Fill("cuda", absent))
    assert not simulator._preloads


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    """Boards A and B, and eight more of the kind."""
    folder = tmp_path_factory.mktemp("boards")
    names = ["A", "B"]
    for kind in "AB":
        for seed in range(2, 6):
            path = Path(folder) / f"{kind}{seed}.yaml"
            path.write_text(board_file(kind, seed), encoding="utf-8")
            names.append(str(path))
    return scene_of(names, 10_000)


@pytest.mark.slow
def test_ten_boards_on_four_boxes_reach_nine_tenths_of_the_bound(ten):
    run, least = cluster_run(ten, 4), ten.least(4)
    assert run.failed == 0
    assert run.makespan_s <= least.makespan_s / 0.9


@pytest.mark.slow
def test_ten_seconds_after_a_box_is_lost_the_others_work_as_fast_as_three(ten):
    undisturbed = cluster_run(ten, 4)
    lost = cluster_run(ten, 4, Mishap.LOST, undisturbed.makespan_s / 2)
    three = cluster_run(ten, 3)
    answered = lost.answered_by(lost.mishap_s + 10)
    assert (len(lost.verdicts), lost.failed) == (10_000, 0)
    assert lost.rate_after(answered) >= 0.85 * three.rate_after(answered)
