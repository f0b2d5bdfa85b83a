"""The host's memory goes to those that share it, a device's own to its executors, and copies lie between."""

from dataclasses import dataclass

import pytest

from coe.core import Expert
from coe.errors import ConfigError
from coe.inspector.settings import Settings, memories, plan_pools
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.plan import CacheSpec

MIB = 1 << 20
EXPERTS = {"a": Expert("a", "k", ("ok",), 8, "t/a")}
COSTS = CostTable(
    {
        ("cpu", "a"): Cost(0.1, 0.1, 1.0, 10 * MIB, activation_bytes=MIB, max_batch=4),
        # Its batches hold nothing that is not held for good.
        ("cuda", "a"): Cost(0.1, 0.1, 1.0, 10 * MIB, activation_bytes=0, max_batch=32),
    }
)


@dataclass
class Box:
    memory_bytes: int | None
    host_bytes: int = 0
    each: int = 0

    def fixed_bytes(self, experts, executors):
        assert [expert.id for expert in experts] == ["a"]
        return executors * self.each


GPU, CPU = Box(100 * MIB, 40 * MIB, each=5 * MIB), Box(None, each=MIB)


def plan_of(numbers, devices, memory=64 * MIB, demotes=True):
    known = memories(devices, list(EXPERTS.values()), numbers)
    return plan_pools(Settings(memory, numbers), known, EXPERTS, COSTS, with_images=True, demotes=demotes)


def test_each_memory_is_divided_among_its_own_executors_and_without_two_there_are_no_copies():
    made = plan_of({"cuda": 2, "cpu": 1}, {"cuda": GPU, "cpu": CPU})
    assert [(pool.id, pool.capacity_bytes // MIB, pool.workspace_bytes // MIB) for pool in made.pools] == [
        ("cuda0", 45, 0),
        ("cuda1", 45, 0),
        ("cpu0", 55, 4),
    ]
    assert [executor.pool for executor in made.executors] == ["cuda0", "cuda1", "cpu0"]
    assert made.cache == CacheSpec(40 * MIB, frozenset({"cuda"}), demotes=True)
    made = plan_of({"cpu": 2}, {"cpu": CPU})
    assert made.cache is None
    assert [pool.capacity_bytes // MIB for pool in made.pools] == [27, 27]
    # A GPU alone needs nothing of the host's memory.
    made = plan_of({"cuda": 1}, {"cuda": GPU}, memory=MIB, demotes=False)
    assert [pool.id for pool in made.pools] == ["cuda0"]
    assert made.cache == CacheSpec(40 * MIB, frozenset({"cuda"}), demotes=False)


def test_what_is_held_for_good_is_counted_by_device_and_a_gpu_that_is_too_small_is_said():
    devices = {"cuda": GPU, "cpu": CPU}
    known = memories(devices, list(EXPERTS.values()), {"cuda": 2, "cpu": 1})
    assert {id: memory.fixed_bytes for id, memory in known.items()} == {"cuda": 10 * MIB, "cpu": MIB}
    with pytest.raises(ConfigError, match=r"12.0 MiB for 1 executor.* does not hold expert 'a'"):
        plan_of({"cuda": 1}, {"cuda": Box(12 * MIB, each=5 * MIB)})
