"""Late binding: what runs, loads and leaves is decided when an executor or a lane is free, from all that waits."""

import random
from dataclasses import replace

import pytest
from lines import ENGINE, board, cost, inspect, line_of, log_of


def test_executors_of_a_device_share_what_is_resident_and_what_waits():
    line = line_of(board({"A": 3, "B": 2}), 24, executors=2, strategy="late-binding")
    assert log_of(line, (10.0, "AAAAAB"), after=10.0) == [
        (10.0, "cpu0 run a x1"),
        (10.0, "cpu1 run a x1"),
        (10.3, "cpu0 run a x3"),
        (10.3, "cpu1 run b x1"),
    ]


def test_what_is_needed_once_is_loaded_before_what_may_come_again():
    """Two wait for d and two for b, which more images are likely to need: b runs them all in one stay."""
    line = line_of(
        board({"A": 9, "B": 8, "C": 1, "D": 1}), 24, strategy="late-binding", costs={"a": cost(per_image_s=1.0)}
    )
    inspect(line, (10.0, "ACDDBB"))
    assert [what for _, what in log_of(line, after=10.0) if "load" in what] == [
        "cpu load c",
        "cpu load d",
        "cpu load b",
    ]
    assert [what for _, what in log_of(line, after=10.0) if "run b" in what] == ["cpu0 run b x2"]


def test_one_image_that_has_waited_for_long_goes_before_two_that_have_just_come():
    """One waits for d while c is loaded; two come for b, which is as likely, when the disk is nearly free."""
    line = line_of(board({"A": 9, "B": 1, "C": 1, "D": 1}), 14, strategy="late-binding", costs={"c": cost(load_s=5.0)})
    inspect(line, (10.0, "CD"), (14.8, "BB"))
    assert [what for _, what in log_of(line, after=10.0) if "load" in what] == [
        "cpu load c",
        "cpu load d",
        "cpu load b",
    ]


@pytest.mark.parametrize(("every_s", "seed"), [(0.25, 5), (0.5, 6)])
def test_with_room_for_few_experts_the_longest_waits_are_no_longer_than_those_of_coserve(every_s, seed):
    """Twelve experts, room for three, a load takes as long as a second of images: by gain alone rare ones wait."""
    counts = {chr(ord("A") + number): 1 + number % 5 for number in range(12)}
    waits = {}
    for strategy in ENGINE:
        chance, now = random.Random(seed), 0.0
        costs = dict.fromkeys(map(str.lower, counts), cost(per_image_s=0.02, base_s=0.05, max_batch=8))
        line = line_of(board(counts), 38, strategy=strategy, costs=costs)
        while now < 120:
            now += chance.expovariate(1 / every_s)
            line.arrive(now, chance.choices([*counts], [*counts.values()])[0])
        line.run()
        waits[strategy] = sorted(result.latency_s for result in line.results.values())
    p99 = {name: each[int(0.99 * len(each))] for name, each in waits.items()}
    p50 = {name: each[len(each) // 2] for name, each in waits.items()}
    assert p99["late-binding"] <= p99["coserve"]
    assert p50["late-binding"] < p50["coserve"]


def test_a_detector_stays_while_its_predecessors_have_stages_waiting():
    """All are as likely to be used; it is what b will send that keeps d here."""
    rules = board({"A": 2, "B": 2, "C": 1}, {"b": "d"})
    line = line_of(rules, 34, strategy="late-binding", costs={"b": cost(per_image_s=2.0)})
    inspect(line, (10.0, "BBC"))
    assert [what for _, what in log_of(line, after=10.0) if "evict" in what] == ["cpu evict a"]
    assert [what for _, what in log_of(line, after=10.0) if "load" in what] == ["cpu load c"]


def test_what_is_to_make_room_runs_first_so_that_the_disk_need_not_wait():
    """Three wait for a and one for b: the fuller batch would be a's, but b's place is the one for c."""
    line = line_of(board({"A": 9, "B": 2, "C": 1}), 24, strategy="late-binding", costs={"c": cost(load_s=5.0)})
    inspect(line, (10.0, "AAAB"), (10.1, "C"), (10.2, "AAA"))
    runs = [what for _, what in log_of(line, after=10.0) if "run" in what or "load" in what]
    assert runs[1] == "cpu0 run b x1"
    assert runs[2:4] == ["cpu0 run a x4", "cpu load c"]


def test_while_something_loads_room_is_made_for_the_load_after_it():
    """Most wait for a, one for b, which is to leave next: it runs while c loads, not after c has come and run."""
    rules = board({"A": 9, "B": 5, "E": 4, "C": 1, "D": 1})
    line = line_of(rules, 34, strategy="late-binding", costs={"a": cost(per_image_s=0.3)})
    inspect(line, (10.0, "CDAAAAAAAABE"))
    runs = [(when, what) for when, what in log_of(line, after=10.0) if "run" in what or "load" in what]
    assert runs[:4] == [(10.0, "cpu0 run a x1"), (10.0, "cpu load c"), (10.5, "cpu0 run b x1"), (10.8, "cpu0 run a x4")]


def waits(max_wait_s):
    """When the one image of b is answered while there are always more of a, and memory for one of them."""
    line = line_of(board({"A": 9, "B": 1}), 14, strategy="late-binding", max_wait_s=max_wait_s)
    for tenth in range(100, 1000, 2):
        line.arrive(tenth / 10, "A")
        line.arrive(tenth / 10, "A")
    lonely = line.arrive(10.5, "B")
    line.run()
    return next(when for when, what in line.log if what.startswith(f"reply {lonely} "))


def test_no_stage_waits_longer_than_it_may_however_busy_others_are():
    assert waits(max_wait_s=10.0) < 20.5
    assert waits(max_wait_s=600.0) > 80.0


def test_the_oldest_goes_first_once_all_are_urgent():
    line = line_of(board({"A": 3, "B": 2}), 24, strategy="late-binding", max_wait_s=0.2, costs={"a": cost(max_batch=1)})
    inspect(line, (10.0, "AB"), (10.05, "AA"))
    assert [what for _, what in log_of(line, after=10.0)] == [
        "cpu0 run a x1",
        "cpu0 run b x1",
        "cpu0 run a x1",
        "cpu0 run a x1",
    ]


def test_usage_that_drifts_is_noticed():
    """The rules call c rare; after a few hundred images of it alone it is what is kept."""
    line = line_of(board({"A": 60, "B": 50, "C": 1, "D": 1}), 24, strategy="late-binding")
    for number in range(2000):
        line.arrive(10.0 + number, "C")
    inspect(line, (2100.0, "D"))
    controller = line.controller
    assert controller.demand.usage("c") > 0.5 > controller.demand.usage("a")
    assert [(one.expert, one.by > 0) for one in controller.demand.drift(2)] == [("c", True), ("a", False)]
    assert next(what for _, what in log_of(line, after=2100.0)) != "cpu evict c"


def test_batches_stay_full_while_all_images_are_overdue_if_who_is_to_come_has_room_beside_them():
    """Memory is set aside for one image; a, b and one of c and d leave room for three more."""
    small = cost(activation_bytes=2, load_s=2.0)
    large = replace(small, weights_bytes=15)
    costs, rules = {"a": small, "b": small, "c": large, "d": large}, board({"A": 2, "B": 2, "C": 1, "D": 1})
    line = line_of(rules, 42, workspace=2, strategy="late-binding", costs=costs, max_wait_s=0.2)
    inspect(line, *((10 + 0.1 * number, letter) for number, letter in enumerate("ABABCABABD" * 6)))
    assert sum(" run " in what for _, what in line.log) < 30
    assert max(result.latency_s for result in line.results.values()) < 12
