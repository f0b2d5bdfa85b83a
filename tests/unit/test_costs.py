"""What a cost is made of, and how many images fit into so many bytes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.errors import ConfigError
from coe.scheduler.costs import Cost
from coe.scheduler.events import Why
from coe.scheduler.plan import PoolSpec
from coe.scheduler.pool import ModelPool

GOOD = {"per_image_s": 0.1, "base_s": 0.2, "load_s": 1.0, "weights_bytes": 10, "activation_bytes": 4}


@pytest.mark.parametrize(
    ("activation", "workspace", "room", "images"),
    [
        (4, 0, 12, 3),
        (4, 0, 11, 2),
        (4, 3, 11, 2),
        (4, 3, 2, 0),
        (4, 0, -4, 0),
        (0, 3, 2, 0),
        (0, 3, 3, math.inf),
        (0, 0, 0, math.inf),
        (0, 0, -1, 0),
    ],
)
def test_how_many_images_fit(activation: int, workspace: int, room: int, images: float) -> None:
    cost = Cost(**{**GOOD, "activation_bytes": activation, "workspace_bytes": workspace})
    assert min(cost.images_in(room), 1000) == min(images, 1000)


@given(
    waiting=st.integers(1, 40),
    activation=st.sampled_from([0, 0, 1, 7]),
    workspace=st.sampled_from([0, 1, 30, 10**12]),
    max_batch=st.integers(1, 32),
    taken=st.integers(0, 90),
)
def test_a_batch_that_is_split_off_always_fits_and_one_more_would_not(
    waiting: int, activation: int, workspace: int, max_batch: int, taken: int
) -> None:
    cost = Cost(**{**GOOD, "activation_bytes": activation, "workspace_bytes": workspace, "max_batch": max_batch})
    pool = ModelPool(PoolSpec("cpu0", "cpu", 100, 0))
    for expert, size in (("a", cost.weights_bytes), ("b", taken)):
        pool.plan(expert, size, Why.DEMAND)
        assert pool.reserve(expert)
        pool.commit(expert)
    room = pool.batch_room_bytes()
    size = min(waiting, cost.max_batch, cost.images_in(room))
    assert 0 <= size <= min(waiting, max_batch)
    if size:
        pool.pin("a", cost.batch_bytes(size))
        pool.check()
    if size < min(waiting, max_batch):
        assert cost.batch_bytes(size + 1) > room


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, bad) for name in GOOD for bad in (-1, math.nan, math.inf)),
        *((name, -1) for name in ("workspace_bytes", "copy_s")),
    ],
)
def test_what_no_expert_can_cost_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"an expert cannot cost {name}={value}; it must be a number of 0 or more"):
        Cost(**{**GOOD, name: value})


@pytest.mark.parametrize("max_batch", [0, -1])
def test_batches_without_images_are_refused(max_batch: int) -> None:
    with pytest.raises(ConfigError, match=f"max_batch={max_batch} lets no image run; give at least 1"):
        Cost(**GOOD, max_batch=max_batch)
