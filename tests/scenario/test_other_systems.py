"""The strategies of the laboratory: what each technique decides, as timetables; and that every image is answered."""

import random
from dataclasses import replace

import pytest
from lines import ENGINE, arrive, board, cost, inspect, line_of, log_of

from coe.lab.machine import SimulatedMachine
from coe.lab.simulated import all_contenders, contender, simulated_run
from coe.lab.workloads.workload import task
from coe.scheduler.events import Why
from coe.scheduler.policies.coserve import COSERVE, NextGroups
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


def test_switches_and_order_of_speed_are_what_they_were():
    assert sorted([*GOLDEN, *ENGINE, "narrow-minded"]) == sorted(all_contenders())
    workload, speed, counts = task("A1", requests=150, seed=0), {}, {}
    for name in [*GOLDEN, "coserve"]:
        numa, uma = (
            simulated_run(SimulatedMachine(device), workload, contender(name), seed=0, bounded=False)
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
