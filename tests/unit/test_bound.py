"""The bound, worked by hand (see docs/bound.md). That no line beats it is in tests/scenario/test_never_beaten.py."""

import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from lines import board
from lines import cost as cost_of

from coe.board.rules import Rules
from coe.core import Finding, Request
from coe.errors import ConfigError
from coe.lab.bound import Bound, bound, least_share
from coe.lab.workloads.workload import Workload
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.plan import ExecutorSpec, Plan, PoolSpec
from coe.sim.agenda import Arrival


class Says:
    """An oracle that says "ok" but where it was told otherwise."""

    def __init__(self, findings: Mapping[tuple[int, str], Finding] | None = None) -> None:
        self._findings = findings or {}

    def find(self, request: Request, expert: str, variant: str | None = None) -> Finding:
        return self._findings.get((request.id, expert)) or Finding(expert, "fp32", "ok", 1.0)


def images(rules: Rules, *arrivals: tuple[float, str]) -> Workload:
    """Images of components that arrive at these times: (0.5, "AAB") is three at once."""
    each = [(at_s, name) for at_s, names in arrivals for name in names]
    return Workload("test", "iid", rules, [Arrival(at_s, Request(i, name)) for i, (at_s, name) in enumerate(each)])


def gpu(executors: int = 1, capacity: int = 1000) -> Plan:
    return on({"gpu": executors}, capacity)


def on(executors: Mapping[str, int], capacity: int = 1000) -> Plan:
    """A pool of each device, shared by its executors."""
    return Plan(
        tuple(PoolSpec(device, device, capacity, 4) for device in executors),
        tuple(
            ExecutorSpec(f"{device}{i}", device, device) for device, number in executors.items() for i in range(number)
        ),
    )


def table(plan: Plan, rules: Rules, default: Cost, **others: Cost) -> CostTable:
    """One cost for all but the experts and the devices that are named."""
    devices = {pool.device for pool in plan.pools}
    return CostTable({(d, e): others.get(e, others.get(d, default)) for d in devices for e in rules.experts})


def work_out(
    workload: Workload,
    plan: Plan,
    default: Cost,
    *,
    resident: str = "",
    cached: str = "",
    scaling: Mapping[str, Sequence[float]] | None = None,
    says: Mapping[tuple[int, str], Finding] | None = None,
    **others: Cost,
) -> Bound:
    costs = table(plan, workload.board, default, **others)
    return bound(workload, Says(says), costs, plan, scaling or {}, resident, cached)


ABC = board({"A": 1, "B": 1, "C": 1})
CHAIN = board({"A": 1, "B": 1}, {"a": "d", "b": "d"})


# Switches


def test_an_expert_that_is_used_and_was_not_there_is_a_switch_and_one_that_no_finding_leads_to_is_none() -> None:
    assert work_out(images(ABC, (0, "AABBC")), gpu(), cost_of(), resident="b").switches == 2
    bad = {(0, "a"): Finding("a", "fp32", "bad", 1.0)}
    assert work_out(images(CHAIN, (0, "A")), gpu(), cost_of()).switches == 2
    assert work_out(images(CHAIN, (0, "A")), gpu(), cost_of(), says=bad).switches == 1


@pytest.mark.parametrize(("capacity", "switches"), [(24, 1), (23, 2)])
def test_a_resident_that_waits_for_what_has_no_room_beside_it_must_come_back(capacity: int, switches: int) -> None:
    """d follows a; a and d take 10 bytes each, and 4 are workspace."""
    assert work_out(images(CHAIN, (0, "A")), gpu(capacity=capacity), cost_of(), resident="d").switches == switches


def test_only_as_many_come_back_as_must_leave() -> None:
    """a leads to b, c and d, which are there: 10, 20 and 30 bytes of 64. The largest leaves, and a has room."""
    rules = board({"A": 1}, {"a": "[b, c, d]"})
    weights = {"c": cost_of(weights_bytes=20), "d": cost_of(weights_bytes=30)}
    for capacity, switches in [(74, 1), (73, 2), (44, 2), (43, 3), (24, 3), (23, 4)]:
        found = work_out(images(rules, (0, "A")), gpu(capacity=capacity), cost_of(), resident="bcd", **weights)
        assert found.switches == switches, capacity


def test_a_resident_that_another_branch_leads_to_need_not_wait() -> None:
    """d is reached by a, which is there, and by b, which is not."""
    rules = board({"R": 1}, {"r": "[a, b]", "a": "d", "b": "d"})
    assert work_out(images(rules, (0, "R")), gpu(capacity=34), cost_of(), resident="rad").switches == 1


# Time: each term alone. A batch of n takes 0.2 + 0.1 n, a load 1 s, unless another cost is named.


@pytest.mark.parametrize(("arrivals", "last_s"), [([], 0.0), ([(2.5, "X")], 2.5)])
def test_nothing_takes_no_time_and_an_unknown_component_is_answered_as_it_comes(arrivals: list, last_s: float) -> None:
    assert work_out(images(ABC, *arrivals), gpu(), cost_of()) == Bound(0, 0, last_s, last_s, 0.0, 0.0, 0.0)


def test_arrivals_the_last_image_and_its_way() -> None:
    found = work_out(images(CHAIN, (0, "A"), (5, "A")), gpu(2), cost_of(), resident="ad")
    assert found.arrivals_s == pytest.approx(5 + 0.3 + 0.3)
    assert found.makespan_s == found.arrivals_s
    assert found.makespan_s == found.arrivals_s


def test_arrivals_each_branch_at_once_and_the_detector_of_both_with_the_first() -> None:
    """r ends at 0.3; a at 0.6, b at 1.3; d runs once, from 0.6 on to 2.6."""
    rules = board({"R": 1}, {"r": "[a, b]", "a": "d", "b": "d"})
    slow = {"b": cost_of(base_s=0.9), "d": cost_of(base_s=1.9)}
    found = work_out(images(rules, (0, "R")), gpu(4), cost_of(), resident="rabd", **slow)
    assert found.arrivals_s == pytest.approx(2.6)
    assert found.compute_s < 2.6


def test_arrivals_an_image_waits_for_its_expert_to_be_read() -> None:
    found = work_out(images(CHAIN, (0.5, "A"), (0.5, "B")), gpu(2), cost_of(), resident="b", d=cost_of(load_s=1.4))
    # a from 1.0 to 1.3; d is there at 1.4 and done at 1.7.
    assert found.arrivals_s == pytest.approx(1.7)


def test_arrivals_the_better_device_for_each_image() -> None:
    """The GPU is ten times as fast, but 2 s of copying away; one read of 1 s serves both."""
    plan, far = on({"gpu": 1, "cpu": 1}), cost_of(per_image_s=0.01, base_s=0.02, load_s=3.5, copy_s=2.0)
    assert work_out(images(ABC, (0, "A")), plan, cost_of(), gpu=far).arrivals_s == pytest.approx(1.3)
    assert work_out(images(ABC, (9, "A")), plan, cost_of(), gpu=far).arrivals_s == pytest.approx(9.03)


def test_disk_all_that_is_neither_there_nor_cached_and_then_a_run() -> None:
    found = work_out(images(ABC, (0, "ABC")), gpu(3), cost_of(copy_s=0.1), cached="b")
    # a and c for 0.9 each, the last copied in 0.1 and run in 0.3.
    assert found.disk_s == pytest.approx(1.8 + 0.1 + 0.3)
    assert found.makespan_s == found.disk_s
    assert work_out(images(ABC, (0, "ABC")), gpu(), cost_of(), resident="ab", cached="c").disk_s == 0


def test_disk_first_what_has_most_to_follow() -> None:
    """b takes 5 s once it is read: first b, then a and c, is done at 6 s; the other way round at 8."""
    found = work_out(images(ABC, (0, "ABC")), gpu(3), cost_of(), b=cost_of(base_s=4.9))
    assert found.disk_s == pytest.approx(1 + 5)


def test_disk_all_images_of_an_expert_follow_its_read() -> None:
    """11 images in batches of 4: 1.1 s and three times 0.2 s, on one executor and on two."""
    for executors, after_s in [(1, 1.7), (2, 0.85)]:
        found = work_out(images(ABC, (0, "A" * 11)), gpu(executors), cost_of())
        assert found.disk_s == pytest.approx(1 + after_s)


def test_disk_one_for_all_devices_and_the_shorter_read() -> None:
    found = work_out(images(ABC, (0, "ABC")), on({"gpu": 1, "cpu": 1}), cost_of(), gpu=cost_of(load_s=2.0, copy_s=1.5))
    assert found.disk_s == pytest.approx(3 * 0.5 + 0.3)


def test_copy_one_lane_after_the_first_read() -> None:
    """Read for 0.2, copied for 0.8: 0.2 until the lane can begin, three copies, and the last runs for 0.3."""
    found = work_out(images(ABC, (0, "ABC")), gpu(3), cost_of(copy_s=0.8))
    assert found.copy_s == pytest.approx(0.2 + 3 * 0.8 + 0.3)
    assert found.makespan_s == found.copy_s
    assert work_out(images(ABC, (0, "ABC")), gpu(3), cost_of(copy_s=0.8), cached="abc").copy_s == pytest.approx(2.7)


def test_copy_none_where_a_device_has_the_memory_of_the_host() -> None:
    plan = on({"gpu": 1, "cpu": 1})
    assert work_out(images(ABC, (0, "ABC")), plan, cost_of(), gpu=cost_of(copy_s=0.8)).copy_s == 0


def test_copy_two_lanes_share() -> None:
    """0.8 s on one lane and 0.4 s on the other: 4/9 s and 8/9 s of three go through them at best, at once."""
    plan, costs = on({"gpu": 1, "npu": 1}), {"gpu": cost_of(copy_s=0.8), "npu": cost_of(copy_s=0.4)}
    found = work_out(images(ABC, (0, "ABC")), plan, cost_of(), cached="abc", **costs)
    assert found.copy_s == pytest.approx(3 / (1 / 0.8 + 1 / 0.4) + 0.3)


def test_compute_whole_batches_on_one_device() -> None:
    """5 of a in 2 batches, 4 of b in one: 0.9 s and three times 0.2 s."""
    found = work_out(images(ABC, (0, "AAAAABBBB")), gpu(), cost_of(), resident="ab")
    assert found.compute_s == pytest.approx(1.5)
    assert found.makespan_s == found.compute_s
    assert found.makespan_s == found.compute_s


def test_compute_batches_are_no_larger_than_memory_allows() -> None:
    """Beside the 10 bytes of a, 12 bytes hold 2 images, for each takes 5 and a batch 2 more."""
    hungry = cost_of(activation_bytes=5, workspace_bytes=2)
    found = work_out(images(ABC, (0, "AAAA")), gpu(capacity=22), hungry, resident="a")
    assert found.compute_s == pytest.approx(0.4 + 2 * 0.2)


@pytest.mark.parametrize(("scaling", "speed"), [((), 3), ((1, 1.5, 1.6), 1.6), ((1, 1.6, 1.2), 1.6), ((1, 1.4), 1.4)])
def test_compute_as_fast_as_executors_together_can_be(scaling: tuple[float, ...], speed: float) -> None:
    found = work_out(images(ABC, (0, "A" * 12)), gpu(3), cost_of(), resident="a", scaling={"gpu": scaling})
    assert found.compute_s == pytest.approx((1.2 + 3 * 0.2) / speed)


def test_an_executor_that_shares_is_no_faster_than_alone() -> None:
    found = work_out(images(ABC, (0, "A")), gpu(2), cost_of(), resident="a", scaling={"gpu": (0.5, 0.8)})
    assert found.arrivals_s == pytest.approx(0.3 / 0.5)


@pytest.mark.parametrize(("late", "batches"), [("AAAAAAAA", 2), ("AAA", 1)])
def test_compute_from_then_on(late: str, batches: int) -> None:
    """What comes at 10 s, and may be joined by the early image, fills that many batches of at most 4."""
    found = work_out(images(ABC, (0, "A"), (10, late)), gpu(), cost_of(), resident="a")
    assert found.compute_s == pytest.approx(10 + 0.1 * len(late) + batches * 0.2)


def test_compute_begins_when_the_stages_before_are_done() -> None:
    """d cannot begin before a is done at 0.3; then 4 images are a batch of 0.6 s."""
    found = work_out(images(CHAIN, (0, "AAAA")), gpu(2), cost_of(), resident="ad")
    assert found.compute_s == pytest.approx(max(2 * 0.6 / 2, 0.3 + 0.6 / 2))


def test_compute_two_devices_share_as_suits_both() -> None:
    """a is at home on x, b on y: 4 images of each are 0.6 s there. With b twice as slow, x helps out."""
    slow, plan = cost_of(per_image_s=1.0, base_s=2.0), on({"x": 1, "y": 1})
    costs = CostTable({("x", "a"): cost_of(), ("y", "a"): slow, ("x", "b"): slow, ("y", "b"): cost_of()})
    workload = images(ABC, (0, "AAAABBBB"))
    assert bound(workload, Says(), costs, plan, {}, "ab", "").compute_s == pytest.approx(0.6)
    workload = images(ABC, (0, "BBBB"))
    assert bound(workload, Says(), costs, plan, {}, "ab", "").compute_s == pytest.approx(1 / (1 / 0.6 + 1 / 6))


def test_a_cost_that_is_not_known() -> None:
    with pytest.raises(ConfigError, match=r"'a'.*'gpu'"):
        bound(images(ABC, (0, "A")), Says(), CostTable({}), gpu(), {}, "", "")


# Sharing


def by_search(work_s: np.ndarray) -> float:
    """The dual of two machines on a fine grid."""
    grid = np.linspace(0, 1, 2001)
    return max(float(np.minimum(w * work_s[0], (1 - w) * work_s[1]).sum()) for w in grid)


def test_two_machines_exactly() -> None:
    dice = random.Random(1)
    for _ in range(50):
        work_s = np.array([[dice.choice([0, dice.random()]) for _ in range(8)] for _ in range(2)])
        exact, searched = least_share(work_s), by_search(work_s)
        assert searched - 1e-9 <= exact <= searched * 1.01 + 1e-9


def test_many_machines_at_most_what_a_split_takes_and_not_far_below() -> None:
    """Three machines alike share evenly; three that have each a job of their own take the longest."""
    assert least_share(np.full((3, 9), 2.0)) == pytest.approx(6.0)
    assert 3.6 <= least_share(np.array([[4.0, 99, 99], [99, 2.0, 99], [99, 99, 1.0]])) <= 4.0
    assert least_share(np.zeros((3, 2))) == 0
    dice = np.random.default_rng(2)
    for _ in range(30):
        work_s = dice.random((3, 6))
        # A split by hand: each job where it is shortest.
        taken = np.bincount(work_s.argmin(axis=0), work_s.min(axis=0), minlength=3).max()
        assert work_s.min(axis=0).sum() / 3 - 1e-9 <= least_share(work_s) <= taken + 1e-9
