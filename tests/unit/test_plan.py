"""A budget split over executors: equal pools, activations set aside, and a refusal that says what is enough."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.config import parse_bytes
from coe.costs import Cost, CostTable
from coe.errors import ConfigError
from coe.plan import ExecutorSpec, PoolSpec, plan

MIB = 1 << 20


def table(**costs: Cost) -> CostTable:
    return CostTable({("cpu", expert): cost for expert, cost in costs.items()})


def cost(weights: int, activation: int = 1, max_batch: int = 4, workspace: int = 0) -> Cost:
    return Cost(0.1, 0.1, 1.0, weights * MIB, activation * MIB, max_batch, workspace * MIB)


def test_each_executor_has_a_pool_of_its_own_with_an_equal_part() -> None:
    made = plan({"cpu": 2}, 101 * MIB, ["a"], table(a=cost(10)))
    half = 101 * MIB // 2
    assert made.pools == (PoolSpec("cpu0", "cpu", half, 4 * MIB), PoolSpec("cpu1", "cpu", half, 4 * MIB))
    assert made.executors == (ExecutorSpec("cpu0", "cpu", "cpu0"), ExecutorSpec("cpu1", "cpu", "cpu1"))


def test_the_largest_useful_batch_is_set_aside() -> None:
    made = plan({"cpu": 1}, 100 * MIB, ["a", "b"], table(a=cost(10), b=cost(5, activation=2, max_batch=8, workspace=3)))
    assert made.pools[0].workspace_bytes == (2 * 8 + 3) * MIB


def test_but_never_more_than_a_quarter() -> None:
    made = plan({"cpu": 1}, 100 * MIB, ["a"], table(a=cost(10, activation=5, max_batch=32)))
    assert made.pools[0].workspace_bytes == 25 * MIB


def test_unless_one_image_needs_it() -> None:
    made = plan({"cpu": 1}, 100 * MIB, ["a"], table(a=cost(10, activation=40)))
    assert made.pools[0].workspace_bytes == 40 * MIB


def test_and_the_largest_expert_fits_beside_it() -> None:
    made = plan({"cpu": 1}, 100 * MIB, ["a"], table(a=cost(90, activation=2, max_batch=32)))
    assert made.pools[0].workspace_bytes == 10 * MIB


def test_a_budget_that_is_too_small_names_the_expert_and_what_is_enough() -> None:
    with pytest.raises(ConfigError) as caught:
        plan({"cpu": 2}, 100 * MIB, ["a", "big"], table(a=cost(10), big=cost(60, activation=3)))
    assert str(caught.value) == (
        "a memory budget of 100.0 MiB for 2 executor(s) does not hold expert 'big' (60.0 MiB) and the activations of "
        "one image (3.0 MiB); give at least 126MiB, or fewer executors"
    )


@given(st.integers(2, 1 << 40), st.integers(0, 1 << 30), st.integers(1, 5))
def test_the_advice_is_enough_when_it_is_followed(weights: int, activation: int, executors: int) -> None:
    costs = CostTable({("cpu", "a"): Cost(0.1, 0.1, 1.0, weights, activation)})
    with pytest.raises(ConfigError) as caught:
        plan({"cpu": executors}, 1, ["a"], costs)
    advice = re.search(r"at least (\S+?MiB)", str(caught.value))
    assert advice
    (pool, *_) = plan({"cpu": executors}, parse_bytes(advice[1]), ["a"], costs).pools
    assert pool.workspace_bytes >= activation
    assert pool.workspace_bytes + weights <= pool.capacity_bytes


def test_an_expert_that_was_never_measured_is_named() -> None:
    with pytest.raises(ConfigError, match="no cost is known for expert 'b' on device 'cpu'"):
        plan({"cpu": 1}, MIB, ["b"], table(a=cost(1)))
