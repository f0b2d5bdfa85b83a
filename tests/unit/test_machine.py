"""A preset as a machine: costs by area of the input, and how memory is split for a strategy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

from coe.board import rules
from coe.board.rules import Rules
from coe.config import parse_bytes
from coe.errors import ConfigError
from coe.lab import preset
from coe.lab.machine import Configuration, SimulatedMachine
from coe.scheduler.plan import CacheSpec, Plan, TooSmall
from coe.scheduler.strategies import names
from coe.scheduler.strategies import strategy as named
from coe.testing import rules_from

BOARD = rules_from(
    """
board: b
experts:
  body: {kind: resnet101, labels: [ok], input: 224, then: {ok: OK}}
  half: {kind: resnet101, labels: [ok], input: 112, then: {ok: OK}}
  joint: {kind: yolov5l, labels: [ok], input: 320, then: {ok: OK}}
components:
  A: {count: 2, inspect: body, then: {ok: half}}
  B: {count: 1, inspect: joint}
"""
)
BOX = """\
about: "a box"
disk: [100MB/s, "made up"]
memories:
  device: {size: [{DEVICE}, "made up"], reserved: [10MB, "made up"]}
  host: {size: [1010MB, "made up"], reserved: [10MB, "made up"]}
kinds:
  k: {input: [10, "made up"], weights: [100MB, "made up"], open_ms: [50, "made up"]}
devices:
  gpu:
    memory: device
    copy: [1GB/s, "made up"]
    scaling: [[1.0, 1.5], "made up"]
    kinds: &kinds
      k:
        per_image_ms: [10, "made up"]
        base_ms: [5, "made up"]
        activation: [1MB, "made up"]
        max_batch: [4, "made up"]
  cpu: {memory: host, scaling: [[1.0], "made up"], kinds: *kinds}
configurations:
  best: {executors: [{gpu: 2, cpu: 1}, "made up"], expert_share: [{gpu: 0.5}, "made up"]}
  best/wide: {executors: [{gpu: 3}, "made up"]}
"""
SMALL = rules_from(
    "board: b\nexperts:\n  a: {kind: k, labels: [ok], input: 10, then: {ok: OK}}\n"
    "  wide: {kind: k, labels: [ok], input: 20, then: {ok: OK}}\ncomponents:\n"
    "  A: {inspect: a}\n  B: {inspect: wide}\n"
)


@pytest.fixture
def box(tmp_path: Path) -> Callable[[str], SimulatedMachine]:
    """A machine whose device has so much memory."""

    def make(device: str) -> SimulatedMachine:
        path = tmp_path / "box.yaml"
        path.write_text(BOX.replace("{DEVICE}", device), encoding="utf-8")
        return SimulatedMachine(str(path))

    return make


@cache
def board_of(name: str) -> Rules:
    return rules.load(name)


@cache
def machine_of(name: str) -> SimulatedMachine:
    return SimulatedMachine(name)


def plan_for(machine: SimulatedMachine, strategy: str, configuration: Configuration, board: Rules = BOARD) -> Plan:
    return machine.plan(board, machine.costs(board), named(strategy), configuration)


def devices_of(plan: Plan) -> dict[str, int]:
    """Executors by device."""
    return {device: len(list(them)) for device, them in groupby(one.device for one in plan.executors)}


# Costs


def test_time_and_activations_of_an_image_grow_with_the_area_of_the_input(
    box: Callable[[str], SimulatedMachine],
) -> None:
    costs = box("1GB").costs(SMALL)
    plain, wide = costs("gpu", "a"), costs("gpu", "wide")
    assert (plain.per_image_s, plain.activation_bytes) == (0.01, 10**6)
    assert (wide.per_image_s, wide.activation_bytes) == (0.04, 4 * 10**6)
    assert (plain.base_s, plain.weights_bytes, plain.load_s, plain.max_batch) == (
        *(wide.base_s, wide.weights_bytes),
        *(wide.load_s, wide.max_batch),
    )


def test_a_load_is_disk_and_opening_and_copy(box: Callable[[str], SimulatedMachine]) -> None:
    costs = box("1GB").costs(SMALL)
    assert costs("gpu", "a").copy_s == pytest.approx(0.1)
    assert costs("gpu", "a").load_s == pytest.approx(1.0 + 0.05 + 0.1)
    assert costs("cpu", "a").copy_s == 0
    assert costs("cpu", "a").load_s == pytest.approx(1.0 + 0.05)


@pytest.mark.parametrize(("name", "variant"), [("numa-rtx3080ti", "q8"), ("uma-m2", None)])
def test_a_body_and_the_rest_of_an_expert_take_what_the_whole_expert_takes(name: str, variant: str | None) -> None:
    whole, divided = SimulatedMachine(name), SimulatedMachine(name, 0.65)
    for device in whole.preset.devices:
        if variant is None:
            before, after = whole.costs(BOARD)(device, "body"), divided.costs(BOARD)(device, "body")
            other = divided.costs(BOARD)(device, "joint")
        elif device not in whole.configuration("prepared", "A").executors:
            continue
        else:
            before = whole.blob_costs(BOARD, [device])[device, "body", variant]
            after, other = (divided.blob_costs(BOARD, [device])[device, e, variant] for e in ("body", "joint"))
        assert after.body is not None
        assert other.body is not None
        assert after.body.id != other.body.id
        assert after.body.bytes == int(0.65 * before.weights_bytes)
        assert after.whole_bytes == before.weights_bytes
        assert after.load_s + after.body.load_s == pytest.approx(before.load_s)
        assert after.copy_s + after.body.copy_s == pytest.approx(before.copy_s)
        assert replace(after, body=None, weights_bytes=0, load_s=0, copy_s=0) == replace(
            before, weights_bytes=0, load_s=0, copy_s=0
        )


@pytest.mark.parametrize("name", preset.names())
def test_copies_are_made_where_the_memory_is_another(name: str) -> None:
    machine = SimulatedMachine(name)
    costs = machine.costs(BOARD)
    for device, spec in machine.preset.devices.items():
        for expert in BOARD.experts:
            cost = costs(device, expert)
            assert (cost.copy_s > 0) == (spec.memory == "device")
            assert cost.load_s > cost.copy_s
            assert cost.batch_s(1) > 0


def test_one_image_on_the_papers_gpu_takes_the_papers_40_ms() -> None:
    assert SimulatedMachine("numa-rtx3080ti").costs(BOARD)("cuda", "body").batch_s(1) == pytest.approx(0.040)


def test_a_kind_without_a_cost_names_the_expert_and_what_there_is() -> None:
    board = rules_from(
        "board: b\nexperts:\n  odd: {kind: resnet18, labels: [ok], input: 8, then: {ok: OK}}\n"
        "components:\n  A: {inspect: odd}\n"
    )
    with pytest.raises(ConfigError) as caught:
        SimulatedMachine("uma-m2").costs(board)
    assert str(caught.value) == (
        "preset 'uma-m2' has no cost of kind 'resnet18' on device 'mps', which expert 'odd' needs; "
        "known: resnet101, yolov5l, yolov5m"
    )


# Configurations


def test_a_board_may_have_a_configuration_of_its_own(box: Callable[[str], SimulatedMachine]) -> None:
    machine = box("1GB")
    assert machine.configuration("best", "b") == Configuration({"gpu": 2, "cpu": 1}, {"gpu": 0.5})
    assert machine.configuration("best", "wide") == Configuration({"gpu": 3}, {})


@pytest.mark.parametrize(
    ("name", "executors"), [("numa-rtx3080ti", {"cuda": 3, "cpu": 1}), ("uma-m2", {"mps": 2, "cpu": 1})]
)
def test_the_papers_casual_configuration(name: str, executors: dict[str, int]) -> None:
    found = SimulatedMachine(name).configuration("paper-default", "board_a")
    assert found.executors == executors
    assert found.expert_share == {next(iter(executors)): 0.75}


def test_a_configuration_that_there_is_not_is_said() -> None:
    with pytest.raises(ConfigError, match=r"preset 'uma-m2' has no configuration 'bets'; did you mean 'best'"):
        SimulatedMachine("uma-m2").configuration("bets", "board_a")


def test_a_device_that_there_is_not_is_said() -> None:
    machine = SimulatedMachine("uma-m2")
    with pytest.raises(ConfigError, match="preset 'uma-m2' has no device 'cuda'; known: cpu, mps"):
        plan_for(machine, "coserve", Configuration({"cuda": 1}, {}))


# Plans


def test_samba_on_apart_memories_has_one_pool_of_all_and_the_host_as_a_cache() -> None:
    machine = SimulatedMachine("numa-rtx3080ti")
    made = plan_for(machine, "samba", machine.configuration("paper-default", "board_a"))
    assert [(pool.id, pool.device, pool.capacity_bytes) for pool in made.pools] == [("cuda0", "cuda", 11_200_000_000)]
    assert [(one.id, one.pool) for one in made.executors] == [("cuda0", "cuda0")]
    assert made.cache == CacheSpec(12_000_000_000)


def test_samba_on_one_memory_has_no_cache() -> None:
    machine = SimulatedMachine("uma-m2")
    made = plan_for(machine, "samba", machine.configuration("paper-default", "board_a"))
    assert [(pool.device, pool.capacity_bytes) for pool in made.pools] == [("mps", 16_000_000_000)]
    assert made.cache is None


@pytest.mark.parametrize(("name", "executors"), [("numa-rtx3080ti", {"cuda": 4}), ("uma-m2", {"mps": 3})])
def test_samba_parallel_has_all_executors_on_the_first_device(name: str, executors: dict[str, int]) -> None:
    machine = SimulatedMachine(name)
    made = plan_for(machine, "samba-parallel", machine.configuration("paper-default", "board_a"))
    assert devices_of(made) == executors
    assert len(made.pools) == len(made.executors)
    assert (made.cache is not None) == (name == "numa-rtx3080ti")


@pytest.mark.parametrize("board", ["A", "B"])
@pytest.mark.parametrize("configuration", ["best", "paper-default"])
@pytest.mark.parametrize("name", preset.names())
@pytest.mark.parametrize("strategy", names())
def test_pools_fill_what_each_memory_has_and_no_more(strategy: str, name: str, configuration: str, board: str) -> None:
    machine, board_rules = machine_of(name), board_of(board)
    found = machine.configuration(configuration, board_rules.board)
    costs = machine.costs(board_rules)
    made = machine.plan(board_rules, costs, named(strategy), found)
    for memory, spec in machine.preset.memories.items():
        usable = spec.size.value - spec.reserved.value
        pools = [pool for pool in made.pools if machine.preset.devices[pool.device].memory == memory]
        parts = Counter({pool.id: 0 for pool in pools})
        parts.update(executor.pool for executor in made.executors if executor.pool in parts)
        # Equal parts for all executors, whether each has its own or those of a device have theirs together.
        assert len({pool.capacity_bytes / parts[pool.id] for pool in pools}) <= 1
        taken = sum(pool.capacity_bytes for pool in pools)
        assert not pools or usable - parts.total() < taken <= usable
    for pool in made.pools:
        own = [costs(pool.device, expert) for expert in board_rules.experts]
        assert pool.capacity_bytes - pool.workspace_bytes >= max(cost.weights_bytes for cost in own)
        assert pool.workspace_bytes >= max(cost.batch_bytes(1) for cost in own)
    if named(strategy).cached:
        assert {pool.device for pool in made.pools} == {next(iter(machine.preset.devices))}
    else:
        assert devices_of(made) == dict(found.executors)
        assert made.cache is None


def test_devices_with_one_memory_have_equal_parts_of_it() -> None:
    made = plan_for(SimulatedMachine("uma-m2"), "coserve", Configuration({"mps": 3, "cpu": 1}, {}))
    assert [(pool.device, pool.capacity_bytes) for pool in made.pools] == [
        *[("mps", 4_000_000_000)] * 3,
        ("cpu", 4_000_000_000),
    ]


def test_a_share_says_how_much_holds_experts(box: Callable[[str], SimulatedMachine]) -> None:
    made = plan_for(box("810MB"), "coserve", Configuration({"gpu": 2, "cpu": 1}, {"gpu": 0.75}), SMALL)
    assert [(pool.capacity_bytes, pool.workspace_bytes) for pool in made.pools] == [
        (400_000_000, 100_000_000),
        (400_000_000, 100_000_000),
        # Nothing is said of the CPU: what its largest batch needs.
        (1_000_000_000, 16_000_000),
    ]


def test_a_memory_under_one_expert_is_said_with_what_is_enough(box: Callable[[str], SimulatedMachine]) -> None:
    machine = box("210MB")
    with pytest.raises(TooSmall) as caught:
        plan_for(machine, "coserve", Configuration({"gpu": 2, "cpu": 1}, {}), SMALL)
    sentence = str(caught.value)
    assert sentence == (
        "preset 'box.yaml', device 'gpu': a pool of 95.4 MiB, one of 2 in memory 'device', does not hold expert 'a' "
        "(95.4 MiB) and the activations of one image (3.8 MiB); let memory 'device' have at least 199MiB in "
        "addition to what is reserved, or take fewer executors"
    )
    # The advice, followed to the letter, is enough.
    enough = parse_bytes(re.search(r"at least (\w+)", sentence)[1])  # type: ignore[index]
    for given, fits in ((enough, True), (enough - (1 << 20), False)):
        machine = box(str(given + 10**7))
        if fits:
            plan_for(machine, "coserve", Configuration({"gpu": 2, "cpu": 1}, {}), SMALL)
        else:
            with pytest.raises(TooSmall):
                plan_for(machine, "coserve", Configuration({"gpu": 2, "cpu": 1}, {}), SMALL)


def test_one_executor_cannot_be_fewer(box: Callable[[str], SimulatedMachine]) -> None:
    with pytest.raises(TooSmall, match=r"at least 100MiB in addition to what is reserved$"):
        plan_for(box("50MB"), "samba", Configuration({"gpu": 2}, {}), SMALL)


def test_a_machine_says_what_it_is() -> None:
    assert repr(SimulatedMachine("uma-m2")) == "<SimulatedMachine uma-m2, mps, cpu>"
