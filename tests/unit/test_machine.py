"""A preset as a machine: costs by area of the input, and how memory is split for a strategy."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import groupby

import pytest

from coe.board import rules
from coe.config import parse_bytes
from coe.errors import ConfigError
from coe.inspector.settings import TooSmall
from coe.lab import preset
from coe.lab.machine import Configuration, SimulatedMachine
from coe.scheduler.costs import Cost
from coe.scheduler.plan import CacheSpec
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


MakeBox = Callable[[str], SimulatedMachine]


@pytest.fixture
def box(tmp_path):
    """A machine whose device has so much memory."""

    def make(device):
        path = tmp_path / "box.yaml"
        path.write_text(BOX.replace("{DEVICE}", device), encoding="utf-8")
        return SimulatedMachine(str(path))

    return make


@cache
def board_of(name):
    return rules.load(name)


@cache
def machine_of(name):
    return SimulatedMachine(name)


def plan_for(machine, strategy, configuration, board=BOARD):
    return machine.plan(board, machine.costs(board), named(strategy), configuration)


# Costs


def test_costs_grow_with_the_area_of_the_input_and_a_load_is_disk_opening_and_copy(box):
    costs = box("1GB").costs(SMALL)
    plain = Cost(0.01, 0.005, 1.0 + 0.05 + 0.1, 10**8, 10**6, 4, copy_s=0.1)
    assert costs("gpu", "a") == plain
    assert costs("gpu", "wide") == replace(plain, per_image_s=0.04, activation_bytes=4 * 10**6)
    assert costs("cpu", "a") == replace(plain, load_s=1.05, copy_s=0.0)


@pytest.mark.parametrize("name", preset.names())
def test_copies_are_made_where_the_memory_is_another(name):
    machine = machine_of(name)
    costs = machine.costs(BOARD)
    for device, spec in machine.preset.devices.items():
        for expert in BOARD.experts:
            cost = costs(device, expert)
            assert (cost.copy_s > 0) == (spec.memory == "device")
            assert cost.load_s > cost.copy_s
            assert cost.batch_s(1) > 0
    if name == "numa-rtx3080ti":
        assert costs("cuda", "body").batch_s(1) == pytest.approx(0.040), "as the paper has it"


def test_a_kind_a_configuration_or_a_device_that_there_is_not_is_said():
    with pytest.raises(ConfigError, match=r"'uma-m2'.*'k'.*'mps'.*'a'.*resnet101, yolov5l, yolov5m"):
        machine_of("uma-m2").costs(SMALL)
    machine = machine_of("uma-m2")
    with pytest.raises(ConfigError, match="'bets'; did you mean 'best'"):
        machine.configuration("bets", "board_a")
    with pytest.raises(ConfigError, match="'cuda'; known: cpu, mps"):
        plan_for(machine, "coserve", Configuration({"cuda": 1}, {}))


# Configurations


def test_a_board_may_have_a_configuration_of_its_own(box):
    machine = box("1GB")
    assert machine.configuration("best", "b") == Configuration({"gpu": 2, "cpu": 1}, {"gpu": 0.5})
    assert machine.configuration("best", "wide") == Configuration({"gpu": 3}, {})


@pytest.mark.parametrize(
    ("name", "executors"), [("numa-rtx3080ti", {"cuda": 3, "cpu": 1}), ("uma-m2", {"mps": 2, "cpu": 1})]
)
def test_the_papers_casual_configuration(name, executors):
    found = machine_of(name).configuration("paper-default", "board_a")
    assert found.executors == executors
    assert found.expert_share == {next(iter(executors)): 0.75}


# Plans


@pytest.mark.parametrize(
    ("name", "strategy", "pools", "cache_bytes"),
    [
        ("numa-rtx3080ti", "samba", [("cuda", 11_200_000_000)], 12_000_000_000),
        ("uma-m2", "samba", [("mps", 16_000_000_000)], None),
        ("numa-rtx3080ti", "samba-parallel", [("cuda", 2_800_000_000)] * 4, 12_000_000_000),
        ("uma-m2", "samba-parallel", [("mps", 16_000_000_000 // 3)] * 3, None),
    ],
)
def test_samba_runs_on_the_first_device_and_has_apart_memory_as_a_cache(name, strategy, pools, cache_bytes):
    machine = machine_of(name)
    made = plan_for(machine, strategy, machine.configuration("paper-default", "board_a"))
    assert [(pool.device, pool.capacity_bytes) for pool in made.pools] == pools
    assert [executor.pool for executor in made.executors] == [pool.id for pool in made.pools]
    assert made.cache == (None if cache_bytes is None else CacheSpec(cache_bytes))


@pytest.mark.parametrize("board", ["A", "B"])
@pytest.mark.parametrize("configuration", ["best", "paper-default"])
@pytest.mark.parametrize("name", preset.names())
# A split looks at nothing else of a strategy than `cached` and `single`.
@pytest.mark.parametrize("strategy", ["coserve", "late-binding", "samba", "samba-parallel"])
def test_pools_fill_what_each_memory_has_and_no_more(strategy, name, configuration, board):
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
        devices = {device: len(list(them)) for device, them in groupby(one.device for one in made.executors)}
        assert devices == dict(found.executors)
        assert made.cache is None


def test_a_share_says_how_much_holds_experts(box):
    made = plan_for(box("810MB"), "coserve", Configuration({"gpu": 2, "cpu": 1}, {"gpu": 0.75}), SMALL)
    assert [(pool.capacity_bytes, pool.workspace_bytes) for pool in made.pools] == [
        (400_000_000, 100_000_000),
        (400_000_000, 100_000_000),
        # Nothing is said of the CPU: what its largest batch of use needs.
        (1_000_000_000, 8_000_000),
    ]


def test_a_memory_under_one_expert_is_said_with_what_is_enough(box):
    def plan(device):
        return plan_for(box(device), "coserve", Configuration({"gpu": 2, "cpu": 1}, {}), SMALL)

    with pytest.raises(TooSmall, match=r"'gpu'.*one of 2 in memory 'device'.*'a'.*fewer executors") as caught:
        plan("210MB")
    # The advice, followed to the letter, is enough.
    enough = parse_bytes(re.search(r"at least (\w+)", str(caught.value))[1])
    plan(str(enough + 10**7))
    with pytest.raises(TooSmall):
        plan(str(enough - (1 << 20) + 10**7))
    with pytest.raises(TooSmall, match=r"at least 100MiB in addition to what is reserved$"):
        plan_for(box("50MB"), "samba", Configuration({"gpu": 2}, {}), SMALL)  # one executor cannot be fewer
