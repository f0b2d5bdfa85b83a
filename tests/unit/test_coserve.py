"""The mechanisms of the paper (sections 4.1 to 4.3) as timetables."""

from itertools import pairwise

import pytest
from lines import arrive, board, cost, inspect, line_of, log_of

from coe import config
from coe.core import Finding
from coe.testing import rules_from


def test_experts_are_dealt_out_by_falling_probability_until_the_pools_are_full_but_for_what_fits_in_none():
    line = inspect(line_of(board({"D": 1, "C": 2, "B": 3, "A": 4, "E": 0.5}), 24, executors=2))
    assert line.log == [(0.0, "cpu0 load a"), (1.0, "cpu1 load b"), (2.0, "cpu0 load c"), (3.0, "cpu1 load d")]
    sizes = {"b": cost(weights_bytes=20), "c": cost(weights_bytes=15)}
    line = inspect(line_of(board({"A": 4, "B": 3, "C": 2, "D": 1}), 24, executors=2, costs=sizes))
    assert line.log == [(0.0, "cpu0 load a"), (1.0, "cpu1 load b"), (2.0, "cpu0 load d")]


def test_an_image_that_comes_during_the_start_is_served_as_soon_as_its_expert_is_there_and_that_is_next():
    line = line_of(board({"A": 3, "B": 2, "C": 1}), 34)
    loads = [(0.0, "cpu0 load a"), (1.0, "cpu0 load b")]
    assert log_of(line, (0.5, "B")) == [*loads, (2.0, "cpu0 run b x1"), (2.0, "cpu0 load c")]
    line = line_of(board({"A": 5, "B": 4, "C": 3, "D": 2, "E": 1}), 34)
    assert log_of(line, (1.5, "E")) == [*loads, (2.0, "cpu0 load e"), (3.0, "cpu0 run e x1")]


def test_a_stage_goes_where_the_longest_queue_stays_shortest_then_where_it_adds_least_as_where_awaited():
    line = line_of(board({"A": 4, "B": 3, "C": 2}), 14, executors=3, costs={"c": cost(per_image_s=4.0)})
    # C's queue is the longest; B costs 1.3 s on the first executor and 0.3 s where it is resident.
    assert log_of(line, (10.0, "CB"), after=10.0) == [(10.0, "cpu2 run c x1"), (10.0, "cpu1 run b x1")]
    rules = board({"A": 4, "B": 3, "C": 2, "X": 1})
    line = line_of(rules, 14, executors=3, costs={"c": cost(per_image_s=9.0)})
    log = [(10.0, "cpu2 run c x1"), (10.0, "cpu0 evict a"), (10.0, "cpu0 load x"), (11.0, "cpu0 run x x3")]
    assert log_of(line, (10.0, "CXXX"), after=10.0) == log


def test_a_switch_is_worth_it_where_it_keeps_the_longest_queue_shorter():
    line = line_of(board({"A": 2, "B": 1}), 14, executors=2, costs={"a": cost(per_image_s=3.0)})
    # The second waits behind the first (3.2 + 3.2 s) or costs a load (1.0 + 3.2 s): the other executor takes it.
    # The third adds 3.2 to 3.2 on the first; on the other it would add 3.0 to 4.2.
    assert log_of(line, (10.0, "AAA"), after=10.0) == [
        (10.0, "cpu0 run a x1"),
        (10.0, "cpu1 evict b"),
        (10.0, "cpu1 load a"),
        (11.0, "cpu1 run a x1"),
        (13.2, "cpu0 run a x1"),
    ]


def test_stages_of_one_expert_run_together_up_to_the_profiled_maximum_and_as_free_memory_allows():
    line = line_of(board({"A": 4, "B": 3, "C": 2}), 34)
    log = [(10.0, "cpu0 run c x1"), (10.3, "cpu0 run a x4"), (10.9, "cpu0 run b x3"), (11.4, "cpu0 run c x1")]
    assert log_of(line, (10.0, "CABABACBA"), after=10.0) == log
    line = line_of(board({"A": 5, "B": 4}), 34)
    log = [(10.0, "cpu0 run b x1"), (10.3, "cpu0 run a x4"), (10.9, "cpu0 run a x4"), (11.5, "cpu0 run a x1")]
    assert log_of(line, (10.0, "BAAAAAAAAA"), after=10.0) == log
    line = line_of(board({"A": 5, "B": 4, "C": 3}), 34, costs={"a": cost(activation_bytes=2)})
    log = [(10.0, "cpu0 run b x1"), (10.3, "cpu0 run a x2"), (10.7, "cpu0 run a x2"), (11.1, "cpu0 run a x1")]
    assert log_of(line, (10.0, "BAAAAA"), after=10.0) == log


def test_a_batch_whose_images_take_nothing_still_waits_for_room_for_its_workspace():
    """Two executors share 40 bytes: 20 are weights, an image of a takes 16, and b needs 6 for a batch of any size."""
    costs = {"a": cost(activation_bytes=16), "b": cost(activation_bytes=0, workspace_bytes=6)}
    line = line_of(board({"A": 2, "B": 1}), 20, executors=2, workspace=6, costs=costs, strategy="late-binding")
    assert log_of(line, (10.0, "AB"), after=10.0) == [(10.0, "cpu0 run a x1"), (10.3, "cpu0 run b x1")]


def test_orphans_leave_first_and_the_largest_of_them_before_the_least_likely():
    rules = board({"A": 5, "P": 4, "C": 1, "D": 0.5, "E": 0.4}, {"p": "[x, y, z]"})
    sizes = {"p": 55, "x": 20, "y": 10, "z": 5, "d": 30, "e": 25}
    line = line_of(rules, 60, workspace=1, costs={name: cost(weights_bytes=size) for name, size in sizes.items()})
    inspect(line, (10.0, "D"), (20.0, "E"), (30.0, "A"))
    assert [what for _, what in log_of(line)][:5] == [f"cpu0 load {expert}" for expert in "axyzc"]
    assert log_of(line, after=10.0) == [
        (10.0, "cpu0 evict x"),  # p, whom x, y and z follow, never fitted: the largest orphans go
        (10.0, "cpu0 evict y"),
        (10.0, "cpu0 load d"),
        (11.0, "cpu0 run d x1"),
        (20.0, "cpu0 evict z"),  # the last orphan, then d, which is less likely than c
        (20.0, "cpu0 evict d"),
        (20.0, "cpu0 load e"),
        (21.0, "cpu0 run e x1"),
        (30.0, "cpu0 run a x1"),
    ]


def test_a_successor_is_an_orphan_as_long_as_its_predecessor_is_loading():
    line = line_of(board({"A": 3, "B": 2, "C": 1}, {"a": "x"}), 34)
    assert log_of(line, (10.0, "C"), after=10.0)[:2] == [(10.0, "cpu0 evict b"), (10.0, "cpu0 load c")]
    line = line_of(board({"Y": 3, "Z": 3, "A": 4, "C": 1}, {"y": "x", "z": "x"}), 34)
    assert [what for _, what in log_of(line, (2.5, "C"))][:5] == [
        *("cpu0 load x", "cpu0 load a", "cpu0 load y"),
        *("cpu0 evict x", "cpu0 load c"),  # a is less likely, but x cannot run before y
    ]


@pytest.mark.parametrize(("count", "leaves"), [(97, "a"), (0, "x")])
def test_an_expert_with_which_a_component_begins_is_no_orphan(count, leaves):
    """x follows y, which never fits. It is no orphan while X occurs, whose images begin with it."""
    rules = board({"X": count, "Y": 3, "A": 2, "B": 1}, {"y": "x"})
    line = line_of(rules, 24, costs={"y": cost(weights_bytes=30)})
    assert log_of(line, (10.0, "B"), after=10.0)[0] == (10.0, f"cpu0 evict {leaves}")


def test_the_next_absent_group_is_loaded_while_the_executor_runs_and_nothing_evicted_that_comes_before():
    line = line_of(board({"A": 5, "B": 4, "C": 3, "D": 2}), 34, costs={"a": cost(per_image_s=3.0)})
    assert log_of(line, (10.0, "ABDBD"), after=10.0) == [
        (10.0, "cpu0 run a x1"),
        (10.0, "cpu0 evict c"),
        (10.0, "cpu0 load d"),
        (13.2, "cpu0 run b x2"),
        (13.6, "cpu0 run d x2"),
    ]
    line = line_of(board({"A": 5, "B": 4, "C": 3}), 24)
    assert log_of(line, (10.0, "ABC"), after=10.0) == [
        (10.0, "cpu0 run a x1"),
        (10.3, "cpu0 run b x1"),
        (10.3, "cpu0 evict a"),
        (10.3, "cpu0 load c"),
        (11.3, "cpu0 run c x1"),
    ]


def test_branches_run_in_the_order_of_the_rules_and_all_must_pass():
    line = line_of(board({"A": 1}, {"a": "[x, y, z]"}), 64, findings={(1, "y"): "bad"})
    assert log_of(line, (10.0, "A"), (20.0, "A"), after=20.0, without="cpu0 load") == [
        (20.0, "cpu0 run a x1"),
        (20.3, "cpu0 run x x1"),
        (20.6, "cpu0 run y x1"),
        (20.9, "cpu0 run z x1"),
        (21.2, "reply 1 NG"),
    ]
    assert [finding.expert for finding in line.results[1].findings] == ["a", "x", "y", "z"]


def test_one_run_serves_two_branches_that_judge_it_differently():
    follows = {"a": "[x, y]", "x": "{inspect: z, min_score: 0.9}", "y": "{inspect: z, min_score: 0.1}"}
    rules = rules_from(
        "board: b\ncomponents: {A: {inspect: a}}\nexperts:\n"
        + "\n".join(f"  {e}: {{kind: k, labels: [ok], input: 8, then: {{ok: {follows.get(e, 'OK')}}}}}" for e in "axyz")
    )
    line = line_of(rules, 100, findings={(0, "z"): Finding("z", "fp32", "ok", 0.5)})
    assert log_of(line, (10.0, "A"), after=10.0, without="cpu0 load") == [
        (10.0, "cpu0 run a x1"),
        (10.3, "cpu0 run x x1"),
        (10.6, "cpu0 run y x1"),
        (10.9, "cpu0 run z x1"),
        (11.2, "reply 0 REVIEW"),  # the stricter branch did not believe it
    ]


def test_branches_that_meet_again_in_forty_layers_are_walked_once():
    layers = {f"{side}{layer}": f"[l{layer + 1}, r{layer + 1}]" for layer in range(39) for side in "lr"}
    layers |= {"l39": "OK", "r39": "NG"}
    lines = [f"  {name}: {{kind: k, labels: [ok], input: 8, then: {{ok: {then}}}}}" for name, then in layers.items()]
    head = "board: b\ncomponents: {L: {inspect: l0}, R: {inspect: r0}}\nexperts:\n"
    line = line_of(rules_from(head + "\n".join(lines)), 1000)
    line.arrive(100.0, "L")
    line.run()
    assert (line.results[0].verdict, len(line.results[0].findings)) == ("NG", 79)


@pytest.mark.parametrize(("strategy", "latest_s"), [("coserve", config.GROUP_HOLD_S + 3.0), ("coserve-em", 3.0)])
def test_a_busy_expert_holds_up_the_others_no_longer_than_the_bound(strategy, latest_s):
    line = line_of(board({"A": 5, "B": 1}), 14, strategy=strategy)
    for index in range(1000):
        arrive(line, 10.0 + index / 10, "A")
    waiting = line.arrive(10.05, "B")
    line.run()
    assert line.results[waiting].latency_s <= latest_s
    assert len(line.results) == 1001


def test_of_two_busy_experts_the_second_holds_up_the_others_for_what_came_meanwhile_and_one_bound_more():
    """Each could run all day. While the first runs for the bound, as much comes for the second."""
    steady = cost(per_image_s=0.1, base_s=0.0)
    line = line_of(board({"A": 5, "B": 4, "C": 1}), 14, costs={"a": steady, "b": steady})
    for index in range(3000):
        arrive(line, 10.0 + index / 20, "AB"[index % 2])
    waiting = line.arrive(10.15, "C")
    line.run()
    assert line.results[waiting].latency_s <= 3 * (config.GROUP_HOLD_S + 3.0)


def test_a_group_that_is_over_its_bound_takes_no_more_even_if_more_come_than_can_run():
    line = line_of(board({"A": 5, "B": 1}), 14, costs={"a": cost(per_image_s=0.2, base_s=0.0)})
    for index in range(1500):
        arrive(line, 10.0 + index / 10, "A")
    waiting = line.arrive(10.05, "B")
    line.run()
    # Half of what comes in each second can run: at the bound as much waits as was run before.
    assert line.results[waiting].latency_s <= 2 * config.GROUP_HOLD_S + 3.0


def test_an_executor_whose_prefetch_waits_is_not_passed_over_for_the_demands_of_others_for_ever():
    small, large = "ABCDEF", "UVWX"
    rules = board(dict.fromkeys(small, 1.0) | dict.fromkeys(large, 0.5))
    costs = {letter.lower(): cost(weights_bytes=6, per_image_s=0.5) for letter in small}
    costs |= {letter.lower(): cost(weights_bytes=18) for letter in large}
    line = line_of(rules, 22, executors=3, strategy="coserve-none", costs=costs)
    for index in range(60):
        arrive(line, 20.0, small[index % 6] + large[index % 4] + large[(index + 2) % 4])
    line.run()
    runs = [when for when, what in log_of(line, after=20.0) if what.startswith("cpu0 run")]
    # The lane always has the demands of the two others; each may be served once or twice between.
    assert max(later - earlier for earlier, later in pairwise(runs)) <= 5.0
