"""A budget split over executors: equal pools, activations set aside, and a refusal that says what is enough."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import texts

from coe.config import parse_bytes
from coe.errors import ConfigError
from coe.inspector.settings import inbox_bytes, memory_scores, plan, score_bytes, with_workspaces
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.plan import ExecutorSpec, PoolSpec

MIB = 1 << 20


def table(**costs):
    return CostTable({("cpu", expert): cost for expert, cost in costs.items()})


def cost(weights, activation=1, max_batch=4, workspace=0):
    return Cost(0.1, 0.1, 1.0, weights * MIB, activation * MIB, max_batch, workspace * MIB)


def test_executors_have_equal_pools_of_what_images_under_way_and_the_device_leave():
    made = plan({"cpu": 2}, 101 * MIB, ["a"], table(a=cost(10)))
    half = 101 * MIB // 2
    assert made.pools == (PoolSpec("cpu0", "cpu", half, 4 * MIB), PoolSpec("cpu1", "cpu", half, 4 * MIB))
    assert made.executors == (ExecutorSpec("cpu0", "cpu", "cpu0"), ExecutorSpec("cpu1", "cpu", "cpu1"))
    assert inbox_bytes(800 * MIB) == 100 * MIB
    assert inbox_bytes(64 << 30) == 512 * MIB
    for fixed, each in ((0, 35), (20, 25)):
        made = plan({"cpu": 2}, 80 * MIB, ["a"], table(a=cost(10)), with_images=True, fixed_bytes=fixed * MIB)
        assert [pool.capacity_bytes for pool in made.pools] == [each * MIB] * 2


@pytest.mark.parametrize(("base_s", "images"), [(0.0, 1), (0.006, 1), (0.02, 4), (0.1, 8)])
def test_a_batch_is_useful_only_as_far_as_it_saves_time(base_s, images):
    costs = table(a=replace(cost(10, activation=2, max_batch=8), base_s=base_s))
    assert plan({"cpu": 1}, 100 * MIB, ["a"], costs).pools[0].workspace_bytes == 2 * images * MIB


@pytest.mark.parametrize(
    ("costs", "mib"),
    [
        # The largest useful batch of all experts is set aside,
        ({"a": cost(10), "b": cost(5, activation=2, max_batch=8, workspace=3)}, 2 * 8 + 3),
        # but never more than a quarter, unless one image needs it,
        ({"a": cost(10, activation=5, max_batch=32)}, 25),
        ({"a": cost(10, activation=40)}, 40),
        # and the largest expert fits beside it.
        ({"a": cost(90, activation=2, max_batch=32)}, 10),
    ],
)
def test_the_largest_useful_batch_is_set_aside_as_far_as_experts_leave_room(costs, mib):
    assert plan({"cpu": 1}, 100 * MIB, [*costs], table(**costs)).pools[0].workspace_bytes == mib * MIB


def test_what_has_no_room_or_no_cost_is_named_with_what_is_enough():
    with pytest.raises(ConfigError) as caught:
        plan({"cpu": 2}, 100 * MIB, ["a", "big"], table(a=cost(10), big=cost(60, activation=3)))
    assert str(caught.value) == (
        "a memory budget of 100.0 MiB for 2 executors does not hold expert 'big' (60.0 MiB) and the activations of "
        "one image (3.0 MiB), because each has 50.0 MiB of it; give at least 126MiB, or fewer executors"
    )
    with pytest.raises(ConfigError) as caught:
        plan({"cpu": 1}, 80 * MIB, ["big"], table(big=cost(75)), with_images=True)
    assert "because each has 70.0 MiB of it after 10.0 MiB for images under way; give at least" in str(caught.value)
    with pytest.raises(ConfigError, match="no cost is known for expert 'b' on device 'cpu'"):
        plan({"cpu": 1}, MIB, ["b"], table(a=cost(1)))


@given(st.integers(2, 1 << 40), st.integers(0, 1 << 30), st.integers(1, 5))
def test_the_advice_is_enough_when_it_is_followed(weights, activation, executors):
    costs = CostTable({("cpu", "a"): Cost(0.1, 0.1, 1.0, weights, activation)})
    with pytest.raises(ConfigError) as caught:
        plan({"cpu": executors}, 1, ["a"], costs)
    advice = re.search(r"at least (\S+?MiB)", str(caught.value))
    assert advice
    (pool, *_) = plan({"cpu": executors}, parse_bytes(advice[1]), ["a"], costs).pools
    assert pool.workspace_bytes >= activation
    assert pool.workspace_bytes + weights <= pool.capacity_bytes


# Memory scores


def test_a_score_is_a_footprint_in_experts():
    scores = memory_scores({"small": 100, "large": 300})
    assert scores == {"small": 0.5, "large": 1.5}
    assert score_bytes(1.5, {"small": 100, "large": 300}) == 300


@given(st.dictionaries(texts(), st.integers(1, 1 << 40), min_size=1))
def test_the_scores_of_a_board_add_up_to_its_number_of_experts(sizes):
    scores = memory_scores(sizes)
    assert sum(scores.values()) == pytest.approx(len(sizes))
    assert all(score_bytes(scores[expert], sizes) == pytest.approx(sizes[expert], abs=1) for expert in sizes)


SMALL_AND_LARGE = table(small=cost(5), large=cost(15))


@pytest.mark.parametrize(("loaded", "workspace_mib"), [(6, 20), (3.0, 35), (9.8, 1)])
def test_a_score_says_what_pools_hold_and_batches_have_the_rest(loaded, workspace_mib):
    made = plan({"cpu": 2}, 100 * MIB, ["small", "large"], SMALL_AND_LARGE, loaded=loaded)
    assert [pool.workspace_bytes for pool in made.pools] == [pytest.approx(workspace_mib * MIB, abs=1)] * 2


@pytest.mark.parametrize("loaded", [1.0, 9.9, 40.0])
def test_a_score_that_does_not_fit_is_refused_with_those_that_do(loaded):
    with pytest.raises(ConfigError, match=r"loaded experts are not possible .* give 3 to 9.8$"):
        plan({"cpu": 2}, 100 * MIB, ["small", "large"], SMALL_AND_LARGE, loaded=loaded)


# Images under way


@given(st.integers(1, 3), st.integers(1, 400), st.integers(1, 50))
def test_the_memory_that_an_error_gives_is_enough_with_images_too(executors, weights, activation):
    costs, numbers = table(a=cost(weights, activation)), {"cpu": executors}
    with pytest.raises(ConfigError, match="give at least") as caught:
        plan(numbers, 2 * MIB, ["a"], costs, with_images=True)
    least = parse_bytes(re.search(r"give at least (\w+)", str(caught.value))[1])
    plan(numbers, least, ["a"], costs, with_images=True)


def test_pools_leave_other_experts_the_workspace_that_these_need():
    costs = table(a=cost(10), b=cost(10, activation=40))
    made = plan({"cpu": 2}, 200 * MIB, ["a"], costs)
    wider = with_workspaces(made, ["a", "b"], costs)
    assert [pool.workspace_bytes // MIB for pool in (*made.pools, *wider.pools)] == [4, 4, 40, 40]
    assert [pool.capacity_bytes for pool in wider.pools] == [pool.capacity_bytes for pool in made.pools]
    assert with_workspaces(wider, ["a"], costs) == made
    with pytest.raises(ConfigError, match=r"does not hold expert 'c' .* in its pool 'cpu0' of 100\.0 MiB; open a line"):
        with_workspaces(made, ["a", "c"], table(a=cost(10), c=cost(99, activation=5)))
