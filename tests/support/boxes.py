"""Boxes as hypothesis draws them: devices, pools, lanes, speeds, and host memory as a cache."""

from dataclasses import replace

from hypothesis import strategies as st

from coe.scheduler.costs import CostTable
from coe.scheduler.plan import CacheSpec, ExecutorSpec, Plan, PoolSpec

SPEEDS = st.lists(st.sampled_from([0.5, 0.75, 1.0, 1.5, 2.0]), max_size=3)


@st.composite
def boxes(draw, case):
    """One to three devices with pools shared or not, lanes, speeds, and memory of the host as a cache."""
    pools, executors, costs, scaling = [], [], {}, {}
    for device in ("gpu", "cpu", "npu")[: draw(st.integers(1, 3))]:
        factor = draw(st.sampled_from([0.5, 1.0, 3.0]))
        copied = draw(st.sampled_from([0.0, 0.5, 1.0]))
        prices = {
            expert: replace(
                one, per_image_s=one.per_image_s * factor, base_s=one.base_s * factor, copy_s=one.load_s * copied
            )
            for expert, one in case.costs.items()
        }
        costs |= {(device, expert): one for expert, one in prices.items()}
        single = max(one.batch_bytes(1) for one in prices.values())
        number = draw(st.integers(1, 3))
        sharers = number if draw(st.booleans()) else 1
        capacity = max(one.weights_bytes for one in prices.values()) + sharers * single + draw(st.integers(0, 90))
        for index in range(number):
            pool = f"{device}{0 if sharers > 1 else index}"
            if pool not in [one.id for one in pools]:
                pools.append(PoolSpec(pool, device, capacity, sharers * single))
            executors.append(ExecutorSpec(f"{device}{index}", device, pool))
        # No executor is faster beside others than alone.
        speeds = draw(SPEEDS)
        scaling[device] = [min(total, busy) for busy, total in enumerate(speeds, 1)]
    cache = draw(st.sampled_from([None, CacheSpec(0), CacheSpec(40), CacheSpec(400)]))
    return Box(Plan(tuple(pools), tuple(executors), cache), CostTable(costs), scaling)


class Box:
    """A plan, its costs and its speeds."""

    def __init__(self, plan, costs, scaling):
        self.plan, self.costs, self.scaling = plan, costs, scaling

    def __repr__(self):
        return f"{self.plan} {self.scaling}"
