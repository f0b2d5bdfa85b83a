"""The strategies of the laboratory: what each technique decides, as timetables; and that every image is answered."""

import random
from dataclasses import replace

import pytest
import yaml
from boxes import boxes
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import ENGINE, arrive, board, cost, inspect, line_of, log_of
from tables import with_slow_rows
from thorough import THOROUGH

from coe.core import Request
from coe.lab.machine import Configuration, SimulatedMachine
from coe.lab.preset import FOLDER
from coe.lab.simulated import PlannedBox, all_contenders, contender, run_plan, simulated_run
from coe.lab.workloads.workload import Workload, placement, task
from coe.scheduler.events import Why
from coe.scheduler.policies.coserve import COSERVE, NextGroups
from coe.scheduler.strategies import names
from coe.sim.agenda import Arrival
from coe.testing import VirtualLine, pools_of

GOLDEN = {
    "samba": (88, 79),
    "samba-fifo": (98, 83),
    "samba-parallel": (142, 124),
    "coserve-none": (106, 114),
    "coserve-em": (84, 91),
    "coserve-em-ra": (81, 88),
    "coserve-paper-default": (49, 56),
    "hobbit": (48, 71),
    "duoserve": (40, 54),
    "expertflow": (37, 52),
    "emoe": (72, 86),
}
"""Switches of the first 150 images of task A1 on a box of each kind."""
OTHERS = [name for name in GOLDEN if name != "coserve-paper-default"]


@pytest.mark.slow
def test_switches_and_order_of_speed_are_what_they_were():
    assert sorted([*GOLDEN, *ENGINE, "narrow-minded"]) == sorted(all_contenders())
    workload, speed, counts = task("A1", requests=150, seed=0), {}, {}
    for name in [*GOLDEN, "coserve"]:
        numa, uma = (
            simulated_run(SimulatedMachine(device), workload, contender(name), seed=0)
            for device in ("numa-rtx3080ti", "uma-m2")
        )
        assert (numa.errors, uma.errors, uma.disk_loads) == (0, 0, uma.switches)
        # Only what has a copy in host memory is loaded without the disk.
        assert (numa.disk_loads < numa.switches) == name.startswith("samba")
        speed[name], counts[name] = numa.images_per_s, (numa.switches, uma.switches)
    assert counts == GOLDEN | {"coserve": (39, 53)}
    # The paper's ablation (section 5.3), and its comparison (section 5.2).
    assert speed["coserve-none"] < speed["coserve-em"] < speed["coserve-em-ra"] < speed["coserve"]
    assert speed["coserve"] > 1.5 * max(speed[name] for name in ("samba", "samba-fifo", "samba-parallel"))


def chain():
    return board({"A": 8, "B": 5, "C": 4, "D": 3, "E": 1}, {"a": "y", "c": "z", "d": "[y, z]"})


def loads(line, why):
    return [load.expert for load in line.loads if load.why is why]


def test_hobbit_loads_the_next_layer_while_an_image_runs():
    rules = board({"A": 8, "B": 5, "C": 4}, {"a": "y"})
    line = line_of(rules, 24, strategy="hobbit", costs={"a": cost(per_image_s=3)})
    images = [(10.0 + 10 * number, letter) for number, letter in enumerate("ABCA")]
    assert log_of(line, *images, after=40.0) == [
        (40.0, "cpu0 evict b"),
        (40.0, "cpu0 load a"),
        (41.0, "cpu0 run a x1"),
        (41.0, "cpu0 evict c"),
        (41.0, "cpu0 load y"),
        (44.2, "cpu0 run y x1"),
    ]
    assert loads(line, Why.SPECULATIVE) == ["y"]


def test_duoserve_loads_what_followed_before():
    line = line_of(board({"A": 4, "B": 3, "C": 2, "D": 1}), 24, strategy="duoserve")
    for at_s, letter in enumerate("CDCDC"):
        arrive(line, 10.0 + 5 * at_s, letter)
    line.run()
    # Once d has followed c, it is loaded while c runs.
    assert log_of(line, after=20.0) == [
        (20.0, "cpu0 evict d"),
        (20.0, "cpu0 load c"),
        (21.0, "cpu0 run c x1"),
        (21.0, "cpu0 evict a"),
        (21.0, "cpu0 load d"),
        (25.0, "cpu0 run d x1"),
        (30.0, "cpu0 run c x1"),
    ]
    assert loads(line, Why.SPECULATIVE) == ["d"]


def test_expertflow_gives_up_a_wrong_guess_first_and_a_foreseen_expert_last():
    rules = board({"A": 9, "B": 8, "C": 1}, {"a": "y"})
    line = line_of(rules, 34, strategy="expertflow", costs={"a": cost(per_image_s=3.0)}, findings={(0, "a"): "bad"})
    inspect(line, (10.0, "A"), (20.0, "B"), (30.0, "C"))
    # y was foreseen for the image of A and not needed, because a rejected it; it has never run.
    assert [what for _, what in log_of(line, after=30.0)][:1] == ["cpu0 evict y"]


def test_emoe_runs_first_what_has_least_slack_with_its_path():
    rules = board({"A": 4, "B": 3, "C": 2}, {"b": "y"})
    line = line_of(rules, 54, strategy="emoe", costs={"a": cost(per_image_s=3.0)})
    line.arrive(10.0, "A")
    line.arrive(10.1, "C", due_s=13.9)
    line.arrive(10.2, "B", due_s=14.0)
    line.run()
    # b is due later than c, but y comes after it.
    runs = [what for _, what in log_of(line, after=10.0) if " run " in what]
    assert runs[:3] == ["cpu0 run a x1", "cpu0 run b x1", "cpu0 run c x1"]


@pytest.mark.parametrize("name", OTHERS)
def test_a_guess_never_has_a_waiting_expert_leave_and_every_image_is_answered(name):
    for seed in range(12):
        dice = random.Random(seed)
        costs = {expert: cost(weights_bytes=dice.randint(1, 20)) for expert in chain().experts}
        plan = pools_of(dice.randint(1, 3), dice.randint(30, 60), 4)
        rejected = {(n, e): "bad" for n in range(25) for e in costs if dice.random() < 0.2}
        line = VirtualLine(chain(), costs, plan, strategy=name, evict_s=0.2, findings=rejected)
        for _ in range(25):
            line.arrive(dice.choice([0, 0.5, 1, 2, 10.0]), dice.choice("ABCDE"))
        line.run()
        assert [result.error for result in line.results.values()] == [None] * 25


def test_a_first_expert_that_came_on_demand_and_is_leaving_is_not_loaded_at_the_same_time():
    line = line_of(chain(), 30, executors=2, strategy="duoserve", evict_s=0.5)
    inspect(line, (1.0, "D"), (1.5, "A"))
    assert len(line.results) == 2


class Undecided(NextGroups):
    """Guesses two experts where there is room for one, and looks again whenever a load has ended."""

    asked = 0

    def ahead(self, executor, world, now):
        self.asked += 1
        assert self.asked < 50, "two guesses replace each other for ever"
        yield from (expert for expert in "bc" if expert not in executor.pool)


def test_two_guesses_do_not_replace_each_other_while_nothing_new_is_known():
    undecided = replace(COSERVE, name="undecided", prefetch=Undecided)
    line = line_of(board({"A": 4, "B": 3, "C": 2}), 14, strategy=undecided)
    inspect(line, (10.0, "A"))
    # One when the line begins, one when the image comes, and one when it has its finding.
    assert 1 <= len(loads(line, Why.SPECULATIVE)) <= 3


LATE_S = st.sampled_from([0.0, 0.0, 7.3, 1000.0])


@given(st.data(), cases(), st.sampled_from(names()), LATE_S, st.integers(0, 9))
@settings(max_examples=15 * THOROUGH, deadline=None)
def test_no_row_beats_its_own_bound(data, case, name, late_s, seed):
    """Several devices, copies, a host cache, speeds; requests may begin late, as in a recorded day."""
    box = data.draw(boxes(case))
    arrivals = [Arrival(late_s + at_s, Request(i, component)) for i, (at_s, component) in enumerate(case.arrivals)]
    workload = Workload("test", "iid", case.rules, arrivals)
    scaling = {device: tuple(speeds) for device, speeds in box.scaling.items()}
    row = run_plan(workload, contender(name), PlannedBox("box", box.costs, box.plan, scaling), seed=seed)
    assert (row.images, row.errors) == (len(arrivals), 0)
    assert row.lower_bound_makespan_s is not None
    assert row.disk_loads <= row.switches
    assert row.switches >= row.lower_bound_switches
    slack_s = 1e-9 * (1 + late_s + row.makespan_s)
    assert row.makespan_s >= row.lower_bound_makespan_s - slack_s
    assert row.p50_s <= row.p99_s <= row.makespan_s + slack_s


ONE = Configuration({"cuda": 2}, {"cuda": 0.75})
TWO = Configuration({"cuda": 2, "cuda:1": 2}, {"cuda": 0.75, "cuda:1": 0.75})


@pytest.mark.parametrize("name", ["late-binding", "coserve"])
def test_a_second_gpu_brings_its_memory_and_its_speed(tmp_path, name):
    box = yaml.safe_load((FOLDER / "numa-rtx3080ti.yaml").read_text(encoding="utf-8"))
    box["memories"]["device 1"] = box["memories"]["device"]
    box["devices"]["cuda:1"] = {**box["devices"]["cuda"], "memory": "device 1"}
    (path := tmp_path / "two.yaml").write_text(yaml.safe_dump(box), encoding="utf-8")
    machine, day = SimulatedMachine(str(path)), task("A1", requests=300)
    one, two = (simulated_run(machine, day, contender(name), configuration=asked) for asked in (ONE, TWO))
    assert (two.images, two.errors) == (300, 0)
    assert two.switches < one.switches
    assert one.makespan_s > 1.3 * two.makespan_s


def long_tail(seed):
    """Twelve components with a long tail of counts; every third goes on to one of two shared experts."""
    names = "ABCDEFGHIJKL"
    counts = {name: 24 / (1 + index) for index, name in enumerate(names)}
    follows = {name.lower(): "yz"[index % 2] for index, name in enumerate(names) if index % 3 == seed % 3}
    return board(counts, follows)


def switches(name, seed):
    """Loads after the start, for 300 images that come faster than they can be inspected."""
    rules, random_ = long_tail(seed), random.Random(seed)
    line = line_of(rules, 54, executors=2, strategy=name)
    counts = [component.count for component in rules.components.values()]
    for index, component in enumerate(random_.choices([*rules.components], counts, k=300)):
        line.arrive(20.0 + index * 0.05, component)
    line.run()
    assert len(line.results) == 300
    return line.switches


@pytest.mark.parametrize(("seed", "known"), [(1, (25, 11)), (2, (27, 12)), (3, (16, 11)), (4, (24, 13))])
def test_switches_are_known_and_late_binding_has_fewer(seed, known):
    """Not on every small board: it makes room ahead, so that the disk need not wait, and that may be a load more."""
    assert tuple(switches(name, seed) for name in ENGINE) == known


GOLDEN_SIMULATED = {
    ("numa-rtx3080ti", "A1", "iid", 300): (66, 49),
    ("uma-m2", "A1", "iid", 300): (85, 66),
    ("numa-rtx3080ti", "A1", "iid", 2500): (253, 193),
    ("numa-rtx3080ti", "A2", "iid", 3500): (284, 218),
    ("numa-rtx3080ti", "B1", "iid", 2500): (241, 193),
    ("numa-rtx3080ti", "B2", "iid", 3500): (263, 213),
    ("numa-rtx3080ti", "A1", "boards", 2500): (315, 272),
    ("uma-m2", "A1", "iid", 2500): (303, 241),
    ("uma-m2", "B2", "iid", 3500): (319, 265),
}
"""Switches by box, task, order, and number of images, in the order of `ENGINE`: first the beginning of a task."""


def check(row, requests):
    assert (row.images, row.errors) == (requests, 0)
    assert row.lower_bound_makespan_s is not None
    assert row.switches >= row.lower_bound_switches > 0, row
    assert row.makespan_s >= row.lower_bound_makespan_s * (1 - 1e-9) > 0, row
    assert 0 < row.p50_s <= row.p99_s <= row.makespan_s, row
    assert 0 < row.disk_loads <= row.switches, row
    assert 0 < row.hit_ratio < 1, row
    assert row.images_per_s == pytest.approx(requests / row.makespan_s)


# Whole tasks take ten times as long, and `make test-all` runs most of them.
@pytest.mark.parametrize(("device", "name", "order", "images"), with_slow_rows(GOLDEN_SIMULATED, fast=2), ids=str)
def test_switches_are_what_they_were(device, name, order, images):
    machine, workload = SimulatedMachine(device), task(name, order=order, requests=images, seed=0)
    coserve, late = rows = [simulated_run(machine, workload, contender(chosen), seed=0) for chosen in ENGINE]
    for row in rows:
        check(row, len(workload.arrivals))
        # Without a host cache everything comes from the disk.
        assert row.disk_loads == row.switches
    assert late.images_per_s > coserve.images_per_s
    assert (coserve.switches, late.switches) == GOLDEN_SIMULATED[device, name, order, images]


@pytest.mark.parametrize(("foreseen", "switches", "ahead"), [("parts", 117, 117), ("none", 214, 0)])
def test_switches_at_a_trickle_are_what_they_were(foreseen, switches, ahead):
    """900 images of board A, one every 200 ms."""
    workload = task("A1", order="boards", requests=900, every_s=0.2, seed=0)
    parts = placement(workload.board, seed=0)
    workload = replace(workload, parts=parts) if foreseen == "parts" else workload.unforeseen()
    row = simulated_run(SimulatedMachine("uma-m2"), workload, contender("late-binding"), seed=0)
    check(row, 900)
    assert (row.switches, row.speculated) == (switches, ahead)
    assert row.switches >= row.in_order_switches >= 112
