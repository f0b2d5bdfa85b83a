"""Mixed precision in virtual time: variants chosen as a line chooses them, second looks, and host memory as a tier."""

from functools import cache

import pytest
from tables import with_slow_rows

from coe.core import FULL, Request, again_id
from coe.errors import ConfigError
from coe.inspector import precision
from coe.inspector.precision import VariantChoice
from coe.lab.machine import SimulatedMachine
from coe.lab.simulated import Prepared, contender, prepared_run, run_plan
from coe.lab.workloads.workload import task
from coe.scheduler.plan import CacheSpec
from coe.sim.oracle import SampledOracle
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


# Costs


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


# Second looks


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


# Runs


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
