"""Precisions: which variants a line takes, and second looks as a simulation has them."""

from functools import cache

import pytest
from lines import board as board_of
from tables import with_slow_rows

from coe import config
from coe.core import FULL, Request, again_id
from coe.errors import ConfigError
from coe.inspector import precision
from coe.inspector.precision import VariantChoice, allowed, apply_choice, check_precision, choose
from coe.lab.machine import SimulatedMachine
from coe.lab.simulated import Prepared, contender, prepared_run, run_plan
from coe.lab.workloads.workload import task
from coe.scheduler.costs import Cost
from coe.scheduler.plan import CacheSpec
from coe.sim.oracle import SampledOracle
from coe.store.manifest import Agreement, PreparedVariant
from coe.testing import rules_from

BOARD = rules_from(
    """
board: b
experts:
  body: {kind: resnet101, labels: [ok, bad], input: 224, shares: {ok: 0.9}, then: {ok: joint, bad: NG}}
  joint: {kind: yolov5l, labels: [ok], input: 320, then: {ok: OK}}
components:
  A: {count: 2, inspect: body}
"""
)
MIXED = precision.apply_choice(BOARD, VariantChoice({"body": "q8", "joint": FULL}, {"body": 0.5}))


@cache
def box():
    return SimulatedMachine("numa-rtx3080ti")


@cache
def images():
    return task("A1", requests=300)


def prepared(strategy="late-binding", **options):
    return prepared_run(box(), images(), contender(strategy).strategy, Prepared(**options))


@cache
def run(strategy, **options):
    made = prepared(strategy, **options)
    return run_plan(made.workload, contender(strategy), made.box)


def finding(board, request, expert, doubtful=0.0):
    return SampledOracle(board, seed=3, doubtful=doubtful).find(Request(request, "A"), expert)


def test_a_blob_is_read_and_copied_and_an_image_of_half_the_side_takes_a_quarter():
    cost = box().blob_costs(BOARD, ["cuda"])["cuda", "body", "q8"]
    assert cost.weights_bytes == 43_300_000
    assert cost.copy_s == pytest.approx(43.3e6 / 13.5e9)
    assert cost.load_s - cost.copy_s == pytest.approx(43.3e6 / 530e6)
    # A batch holds the weights as they run.
    assert cost.batch_bytes(2) == 85_000_000 + 2 * 11_000_000
    costs = box().blob_costs(BOARD, ["cuda"])
    figures = box().preset.devices["cuda"].blobs["yolov5l"]
    for variant in ("fp32", "fp16", "q8"):
        quarter_s = figures[variant].per_image_ms.value / 1e3 / 4
        assert costs["cuda", "joint", variant].per_image_s == pytest.approx(quarter_s)


def test_the_stated_share_of_findings_is_in_doubt_and_a_second_look_says_what_the_first_said():
    for doubtful in (0.0, 0.25, 1.0):
        margins = [finding(MIXED, request, "body", doubtful).margin for request in range(2000)]
        assert set(margins) <= {0.0, 1.0}
        assert margins.count(0.0) / 2000 == pytest.approx(doubtful, abs=0.04)
    assert finding(MIXED, 1, "joint", 1.0) == finding(BOARD, 1, "joint")
    for request in range(50):
        first, second = finding(MIXED, request, "body", 1.0), finding(MIXED, request, again_id("body"), 1.0)
        plain = finding(BOARD, request, "body")
        assert first.label == second.label == plain.label
        assert (first.variant, second.variant, plain.variant) == ("q8", FULL, FULL)


def test_experts_of_board_a_fit_into_both_memories_and_what_has_no_figures_is_named():
    mixed = prepared()
    plan = mixed.box.plan
    assert plan.cache == CacheSpec(12 * 10**9, demotes=True)
    (pool,) = plan.pools
    first_looks = images().board.experts
    assert len(first_looks) == 372
    taken = sum(mixed.box.costs("cuda", id).weights_bytes for id in first_looks)
    assert pool.capacity_bytes - pool.workspace_bytes < taken
    assert taken <= pool.capacity_bytes - pool.workspace_bytes + plan.cache.capacity_bytes
    assert any("372 experts take" in sentence for sentence in mixed.sentences)
    with pytest.raises(ConfigError, match=r"'uma-m2'.*--device"):
        prepared_run(SimulatedMachine("uma-m2"), images(), contender("late-binding").strategy, Prepared())
    expert = "{kind: resnet18, labels: [ok], input: 10, then: {ok: OK}}"
    other = rules_from(f"{{board: b, experts: {{a: {expert}}}, components: {{A: {{inspect: a}}}}}}")
    with pytest.raises(ConfigError, match=r"'resnet18'.*'cuda'"):
        box().blob_costs(other, ["cuda"])


@pytest.mark.parametrize("strategy", with_slow_rows(["late-binding", "coserve", "samba"], fast=1))
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_no_run_beats_its_bound(strategy, warm):
    row = run(strategy, doubtful=0.1, warm=warm)
    assert (row.images, row.errors) == (300, 0)
    assert row.lower_bound_makespan_s is not None
    assert row.switches >= row.lower_bound_switches
    assert row.makespan_s >= row.lower_bound_makespan_s * (1 - 1e-9)


def test_with_full_host_memory_only_second_looks_read_the_disk():
    cold, warm = (run("late-binding", doubtful=0.0, warm=warm) for warm in (False, True))
    doubted = run("late-binding", doubtful=0.1, warm=True)
    assert cold.disk_loads > 0
    assert (warm.disk_loads, warm.switches > 0) == (0, True)
    assert doubted.disk_loads > 0
    # A start at time 0 is no part of the run, and filling goes on after the last image without making it longer.
    assert warm.makespan_s < cold.makespan_s
    assert cold.makespan_s < 20


def offer(agrees=1.0, below=0.0, **more):
    figures = {"images": 9, "labels_equal": agrees, "largest_score_difference": 0.0}
    agreement = None if agrees is None else Agreement(**figures, **more)
    return PreparedVariant(file="v", bytes=1, digest="", agreement=agreement, escalate_below=below)


def price(run_s, load_s, weights_bytes):
    return Cost(run_s, 0.0, load_s, weights_bytes, 0)


BIG = price(1.0, 4.0, 8)
SMALL = price(1.2, 1.0, 2)
SOUND = offer()


@pytest.mark.parametrize(
    ("mode", "devices", "offered", "expected"),
    [
        ("fp32", ["cpu"], {"int8": SOUND}, "fp32"),
        ("mixed", ["cpu"], {"fp32": SOUND, "int8": SOUND, "q8": SOUND, "fp16": SOUND}, "int8"),
        ("mixed", ["cpu"], {"q8": SOUND, "fp16": SOUND}, "fp32"),
        ("mixed", ["cuda"], {"int8": SOUND, "q8": SOUND, "fp16": SOUND}, "q8"),
        ("mixed", ["cuda"], {"q8": offer(0.9), "fp16": SOUND}, "fp16"),
        ("mixed", ["cpu", "cuda"], {"int8": SOUND, "q8": SOUND}, "fp32"),
        ("mixed", ["cpu"], {"int8": offer(0.9989)}, "fp32"),
        ("mixed", ["cpu"], {"int8": offer(0.999)}, "int8"),
        ("mixed", ["cpu"], {"int8": offer(None)}, "fp32"),
        ("mixed", ["cpu"], {"int8": offer(below=0.1, again=0.5)}, "int8"),
        ("mixed", ["cpu"], {"int8": offer(below=0.1, again=0.6)}, "fp32"),
        ("mixed", ["cpu"], {"int8": offer(below=0.1, again=1.0, generated=True)}, "int8"),
        ("mixed", ["cpu"], {}, "fp32"),
    ],
)
def test_the_smallest_variant_that_all_devices_run_and_that_agrees_is_taken(mode, devices, offered, expected):
    assert allowed(mode, offered, devices, 0.999) == expected


def test_only_lesser_variants_that_say_so_look_again_and_the_reason_has_the_numbers():
    costs = {("cpu", id, variant): cost for id in "abcd" for variant, cost in (("fp32", BIG), ("int8", SMALL))}
    offers = {"a": {"int8": offer(below=0.25)}, "b": {"int8": SOUND}, "c": {"fp32": offer(below=0.5)}}
    found = choose("mixed", offers, {"a": "int8", "b": "int8", "c": "fp32"}, costs, 0.999)
    assert (found.variants, found.escalate_below) == ({"a": "int8", "b": "int8", "c": "fp32"}, {"a": 0.25})
    # d is of a kind that has no variants; nothing is said of it.
    offers = {"a": {"int8": SOUND}, "b": {}, "c": {"int8": offer(0.9)}}
    reason = choose("mixed", offers, {"a": "int8", "b": "fp32", "c": "fp32", "d": "fp32"}, costs, 0.999).reason
    for words in (
        "3 in fp32, 1 in int8",
        "26 B (32 B in fp32)",
        "1 run in fp32 alone",
        "1 run in fp32 because",
        "99.9 %",
    ):
        assert words in reason


def test_who_looks_again_is_a_successor_with_the_same_successors():
    rules = board_of({"A": 1}, {"a": "c"})
    board = apply_choice(rules, VariantChoice({"a": "fp16", "c": "q8"}, {"a": 0.25}))
    assert {id: expert.variant for id, expert in board.experts.items()} == {"a": "fp16", "c": "q8", "a@fp32": "fp32"}
    assert board.experts["a@fp32"].weights == board.experts["a"].weights
    assert set(board.graph.digraph.edges) == {("a", "c"), ("a", "a@fp32"), ("a@fp32", "c")}
    assert board.graph.probability("a@fp32") == config.ESCALATED_SHARE * board.graph.probability("a")
    assert board.router.order("A") == {"a": 0, "a@fp32": 1, "c": 2}
    assert (board.digest, board.board) == (rules.digest, rules.board)
    rules = board_of({"A": 1, "C": 1}, {"a": "c"})
    board = apply_choice(rules, VariantChoice({"a": "fp16", "c": "q8"}, {"c": 0.25}))
    assert {id: board.graph.waits_for_others(id) for id in board.experts} == {"a": False, "c": False, "c@fp32": True}
    rules = board_of({"A": 1}, {"a": "c"})
    board = apply_choice(rules, VariantChoice({"a": "fp32", "c": "fp32"}, {}))
    assert board.experts == rules.experts
    assert list(board.graph.digraph.edges) == list(rules.graph.digraph.edges)
    assert board.graph.by_probability == rules.graph.by_probability


def test_experts_that_stay_on_a_line_keep_their_variants_and_other_precisions_there_are_not():
    before = VariantChoice({"a": "q8", "gone": "int8"}, {"a": 0.5})
    after = VariantChoice({"a": "fp32", "b": "q8"}, {"b": 0.25}).after(before)
    assert after.variants == {"a": "q8", "gone": "int8", "b": "q8"}
    assert after.escalate_below == {"a": 0.5, "b": 0.25}
    assert [check_precision("precision", mode) for mode in ("fp32", "mixed")] == ["fp32", "mixed"]
    with pytest.raises(ConfigError, match="'mixed'"):
        check_precision("precision", "mixd")
