"""Several devices on a line, and several boxes in a cluster."""

import random
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import board
from tables import with_slow_rows
from thorough import THOROUGH

from apps.boards.make import board_file
from coe.lab.cluster_bench import Mishap, Scene, cluster_run, fleet
from coe.lab.cluster_simulator import SimulatedNetwork
from coe.lab.machine import SimulatedMachine
from coe.lab.simulated import contender
from coe.lab.workloads.workload import synthetic
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec
from coe.testing import VirtualLine

QUICK = Cost(per_image_s=0.02, base_s=0.05, load_s=1.0, weights_bytes=10, activation_bytes=1, max_batch=8)


def line_on(devices, counts, *, strategy="late-binding", quick=QUICK):
    """A line with an executor on each of `devices`: how many times as slow as the quickest, and how many experts."""
    rules = board(counts)
    pools = tuple(PoolSpec(id, id, 10 * experts + 16, 8) for id, (_, experts) in devices.items())
    costs = {
        (id, expert): replace(quick, per_image_s=quick.per_image_s * factor, base_s=quick.base_s * factor)
        for id, (factor, _) in devices.items()
        for expert in rules.experts
    }
    return VirtualLine(
        rules, CostTable(costs), Plan(pools, tuple(ExecutorSpec(id, id, id) for id in devices)), strategy=strategy
    )


def inspect(line, components, every_s):
    """Let the images come one after another, once the line is settled, and run until all are answered."""
    for index, component in enumerate(components):
        line.arrive(20 + every_s * index, component)
    line.run()
    return line


def images_by_device(line):
    ran = Counter()
    for _, what in line.log:
        executor, word, *rest = what.split()
        if word == "run":
            ran[executor] += int(rest[-1][1:])
    return ran


def last_s(line):
    return max(at_s for at_s, what in line.log if what.startswith("reply")) - 20


def p99_s(line):
    latencies = sorted(result.latency_s for result in line.results.values())
    return latencies[int(0.99 * len(latencies))]


@pytest.mark.parametrize(("devices", "every_s", "most_s"), [(2, 0.06, 25), (2, 0.0, 21), (4, 0.03, 13)])
def test_devices_share_an_expert_with_more_work_than_one_of_them_can_do(devices, every_s, most_s):
    """400 images of 0.1 s, all of one expert: 40 s on a single device."""
    ids = [f"cuda:{number}" for number in range(devices)]
    hot = replace(QUICK, per_image_s=0.1, base_s=0.0)
    line = line_on(dict.fromkeys(ids, (1, 4)), {"A": 1, "B": 1, "C": 1}, quick=hot)
    inspect(line, "A" * 400, every_s)
    assert last_s(line) < most_s
    assert min(images_by_device(line)[id] for id in ids) > 0.8 * 400 / devices


@pytest.mark.parametrize(("load_s", "images", "most_s"), [(2.0, 150, 6.0), (3.0, 200, 8.0)])
def test_work_in_batches_of_one_is_shared_as_the_long_work_that_it_is(load_s, images, most_s):
    """An image takes 0.06 s: 9 and 12 s on a single device, where one large batch would take 1.5 and 2 s."""
    small = replace(QUICK, per_image_s=0.01, load_s=load_s, max_batch=1)
    line = line_on({"cuda:0": (1, 1), "cuda:1": (1, 1)}, {"A": 1, "B": 1}, quick=small)
    inspect(line, "A" * images, 0.0)
    assert last_s(line) < most_s


@pytest.mark.parametrize("factor", [2, 3])
def test_a_slower_device_takes_its_share_of_a_hot_expert(factor):
    """What both can do: 1 + 1 / factor times the work of the quick device, but for a load of a second."""
    hot = replace(QUICK, per_image_s=0.1, base_s=0.0)
    line = line_on({"cuda": (1, 4), "cpu": (factor, 4)}, {"A": 1, "B": 1}, quick=hot)
    inspect(line, "A" * 400, 0.0)
    assert last_s(line) < 40 / (1 + 1 / factor) + 3


def test_a_second_device_takes_a_batch_only_if_it_ends_it_sooner():
    """An image takes 0.07 s on the GPU and 0.35 s on the CPU; both hold the expert of the last images."""
    line = line_on({"cpu": (5, 4), "cuda": (1, 4)}, {"A": 1, "B": 1})
    inspect(line, "A" * 400, 0.0)  # both devices hold `a` now
    assert images_by_device(line)["cpu"] > 8
    before = images_by_device(line)
    for at_s in (100.0, 100.02, 100.03):
        line.arrive(at_s, "A")
    line.run(start=False)
    # The second and third image end in 0.07 + 0.09 s on the GPU, and would end in 0.35 s on the CPU.
    assert images_by_device(line) - before == {"cuda": 3}
    assert max(result.latency_s for result in list(line.results.values())[-3:]) < 0.2


def test_an_expert_that_only_a_far_slower_device_holds_is_loaded_where_it_ends_sooner():
    """`b` lies on the CPU, where an image takes 3.5 s: the GPU loads it and runs it in 1.07 s."""
    line = line_on({"cuda": (1, 2), "cpu": (50, 2)}, {"A": 3, "B": 2})
    inspect(line, "B", 0.0)
    assert (20.0, "cuda load b") in line.log
    assert last_s(line) == pytest.approx(1.07)


ROWS = list(product(((2, 2), (3, 1)), (0.05, 0.0, 0.2), (5, 8), (50, 20)))


@pytest.mark.parametrize(("rooms", "every_s", "experts", "factor"), with_slow_rows(ROWS, fast=2))
def test_a_slow_second_device_costs_no_image_its_time(rooms, every_s, experts, factor):
    """The worst waits with a CPU beside the GPU: no worse than with `coserve`, nor than without the CPU."""
    counts = {"ABCDEFGH"[index]: experts - index for index in range(experts)}
    components = random.Random(1).choices([*counts], [*counts.values()], k=400)
    both = {"cuda": (1.0, rooms[0]), "cpu": (factor, rooms[1])}
    alone = {"cuda": both["cuda"]}
    ours, coserve, without = (
        p99_s(inspect(line_on(devices, counts, strategy=strategy), components, every_s))
        for devices, strategy in ((both, "late-binding"), (both, "coserve"), (alone, "late-binding"))
    )
    assert ours <= 1.1 * max(coserve, without)


@pytest.mark.parametrize("seed", [2, 4])
def test_a_slow_device_leaves_a_group_to_a_load_that_is_nearly_done(seed):
    """With the whole load counted again, it took 20 to 30 % of the groups that the GPU was loading for."""
    counts = {component: 12 - index for index, component in enumerate("ABCDEFGHIJKL")}
    components = random.Random(seed).choices([*counts], [*counts.values()], k=300)
    devices = {"cuda": (1, 1), "cpu": (10, 8)}
    ours, coserve = (
        p99_s(inspect(line_on(devices, counts, strategy=strategy), components, 0.35))
        for strategy in ("late-binding", "coserve")
    )
    assert ours < coserve


@pytest.mark.parametrize("seed", [1, 2])
def test_stages_without_any_device_do_not_wait_until_all_shares_are_done(seed):
    """The quick device holds one expert; the slow one holds the three others, which it should share all the time."""
    waits = {}
    for strategy in ("late-binding", "coserve"):
        line = line_on({"cuda": (1, 1), "cpu": (10, 8)}, {"A": 4, "B": 3, "C": 2, "D": 1}, strategy=strategy)
        inspect(line, random.Random(seed).choices("ABCD", [4, 3, 2, 1], k=300), every_s=0.05)
        waits[strategy] = p99_s(line)
    assert waits["late-binding"] <= 1.3 * waits["coserve"]


@given(
    st.permutations(["cuda:0", "cuda:1", "cpu"]),
    st.lists(st.sampled_from("ABCDEFGH"), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.sampled_from([1.0, 2.5, 20.0]),
)
@settings(max_examples=12 * THOROUGH, deadline=None)
@pytest.mark.parametrize("strategy", ["late-binding", "coserve"])
def test_no_order_of_executors_matters(strategy, order, components, every_s, factor):
    devices = {"cuda:0": (1.0, 2), "cuda:1": (1.0, 2), "cpu": (factor, 2)}
    counts = {"ABCDEFGH"[index]: 8 - index for index in range(8)}
    logs = []
    for ids in (list(devices), order):
        line = line_on({id: devices[id] for id in ids}, counts, strategy=strategy)
        logs.append(sorted(inspect(line, components, every_s).log))
    assert logs[0] == logs[1]


MACHINE = SimulatedMachine("numa-rtx3080ti")


def scene_of(boards, images, network=None, strategy="late-binding"):
    """Images of boards in equal parts, one every 4 ms, that wait as long as it takes."""
    joined, chosen = fleet(boards), contender(strategy)
    workload = synthetic(joined.rules, task="boards", requests=images, seed=0)
    max_wait_s = 1e6 if chosen.strategy.hurries else None
    return Scene(MACHINE, workload, joined, chosen, network or SimulatedNetwork(), max_wait_s=max_wait_s)


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
    assert (run.verdicts, run.failed) == (verdicts_of.verdicts, 0)
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
