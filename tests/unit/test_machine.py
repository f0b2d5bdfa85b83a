"""Boxes of the laboratory: presets, machines made of them, and one that was profiled."""

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import groupby

import pytest
from profiles import MB, kind_profile
from pydantic import BaseModel

from coe.board import rules
from coe.config import parse_bytes
from coe.errors import ConfigError
from coe.inspector.profile import Fingerprint, Profile
from coe.inspector.settings import DeviceMemory, TooSmall
from coe.lab import preset
from coe.lab.machine import Configuration, ProfiledMachine, SimulatedMachine, machine_named
from coe.lab.preset import FOLDER, SourcedFigure
from coe.lab.simulated import contender, simulated_run
from coe.lab.workloads.workload import synthetic
from coe.profiler import profile_file
from coe.profiler.site import LookedAt, ProfiledSite
from coe.profiler.tune import Search, Setup
from coe.scheduler.costs import Cost
from coe.scheduler.plan import CacheSpec
from coe.scheduler.strategies import strategy as named
from coe.store.store import Store
from coe.testing import rules_from

BOARD = rules_from("""
board: b
experts:
  body: {kind: resnet101, labels: [ok], input: 224, then: {ok: OK}}
  half: {kind: resnet101, labels: [ok], input: 112, then: {ok: OK}}
  joint: {kind: yolov5l, labels: [ok], input: 320, then: {ok: OK}}
components:
  A: {count: 2, inspect: body, then: {ok: half}}
  B: {count: 1, inspect: joint}
""")
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
  cpu:
    memory: host
    scaling: [[1.0], "made up"]
    kinds: *kinds
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
def box(tmp_path):
    def make(device):
        path = tmp_path / "box.yaml"
        path.write_text(BOX.replace("{DEVICE}", device), encoding="utf-8")
        return SimulatedMachine(str(path))

    return make


board_of, machine_of = cache(rules.load), cache(SimulatedMachine)


def plan_for(machine, strategy, configuration, board=BOARD):
    return machine.plan(board, machine.costs(board), named(strategy), configuration)


def test_costs_of_loads_and_inputs_shares_of_memory_and_a_board_s_own_configuration(box):
    costs = box("1GB").costs(SMALL)
    plain = Cost(0.01, 0.005, 1.0 + 0.05 + 0.1, 10**8, 10**6, 4, copy_s=0.1)
    assert costs("gpu", "a") == plain
    assert costs("gpu", "wide") == replace(plain, per_image_s=0.04, activation_bytes=4 * 10**6)
    assert costs("cpu", "a") == replace(plain, load_s=1.05, copy_s=0.0)
    made = plan_for(box("810MB"), "coserve", Configuration({"gpu": 2, "cpu": 1}, {"gpu": 0.75}), SMALL)
    assert [(pool.capacity_bytes, pool.workspace_bytes) for pool in made.pools] == [
        (400_000_000, 100_000_000),
        (400_000_000, 100_000_000),
        # Nothing is said of the CPU: what its largest batch of use needs.
        (1_000_000_000, 8_000_000),
    ]
    machine = box("1GB")
    assert machine.configuration("best", "b") == Configuration({"gpu": 2, "cpu": 1}, {"gpu": 0.5})
    assert machine.configuration("best", "wide") == Configuration({"gpu": 3}, {})


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
    machine = machine_of("uma-m2")
    with pytest.raises(ConfigError, match=r"'uma-m2'.*'k'.*'mps'.*'a'.*resnet101, yolov5l, yolov5m"):
        machine.costs(SMALL)
    with pytest.raises(ConfigError, match=r"'bets'.*'best'"):
        machine.configuration("bets", "board_a")
    with pytest.raises(ConfigError, match=r"'cuda'.*cpu, mps"):
        plan_for(machine, "coserve", Configuration({"cuda": 1}, {}))


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


BLOB = "{per_image_ms: [1, x], base_ms: [1, x], activation: [1MB, x], max_batch: [1, x], active: [1MB, x]}"


@pytest.fixture
def box_preset(tmp_path):
    def write(text):
        path = tmp_path / "box.yaml"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        return path

    return write


def figures(part):
    if isinstance(part, SourcedFigure):
        return [part]
    if isinstance(part, BaseModel):
        part = {name: getattr(part, name) for name in type(part).model_fields}
    return [figure for one in part.values() for figure in figures(one)] if isinstance(part, dict) else []


@pytest.mark.parametrize("name", preset.names())
def test_each_box_that_ships_can_be_read_and_says_where_its_figures_come_from(name):
    found = preset.load(name)
    assert {"best", "paper-default"} <= set(found.configurations)
    assert {"resnet101", "yolov5m", "yolov5l"} <= set(found.kinds)
    for device, spec in found.devices.items():
        assert set(spec.kinds) == set(found.kinds), f"{device} has no cost for some kind"
        assert spec.scaling.value[0] == 1.0
    all_of_them = figures(found)
    assert len(all_of_them) > 20
    for figure in all_of_them:
        assert len(figure.source.strip()) >= len("assumed"), f"{figure} does not say where it comes from"


def test_the_papers_boxes_have_its_figures_and_a_file_of_another_box_can_be_named(box_preset):
    numa, uma = preset.load("numa-rtx3080ti"), preset.load("uma-m2")
    assert (numa.memories["device"].size.value, numa.memories["host"].size.value) == (12 * 10**9, 16 * 10**9)
    assert (numa.disk.value, uma.disk.value) == (530 * 10**6, 3000 * 10**6)
    for name, executors in (("numa-rtx3080ti", {"cuda": 3, "cpu": 1}), ("uma-m2", {"mps": 2, "cpu": 1})):
        casual = machine_of(name).configuration("paper-default", "board_a")
        assert (casual.executors, casual.expert_share) == (executors, {next(iter(executors)): 0.75})
    assert [memory.size.value for memory in uma.memories.values()] == [24 * 10**9]
    assert all(device.lane is None for device in uma.devices.values())
    found = preset.load(str(box_preset(GOOD)))
    assert found.kinds["k"].weights.value == 100 * 10**6
    assert found.configurations["best"].shares() == {"gpu": 0.5}


@pytest.mark.parametrize("stride", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_a_source_is_not_to_be_left_out_anywhere(box_preset, stride):
    """Take the source away from every figure in turn, or from some."""
    lines = (FOLDER / "numa-rtx3080ti.yaml").read_text(encoding="utf-8").splitlines()
    told = [number for number, line in enumerate(lines) if line.rstrip().endswith('"]')]
    assert len(told) > 20
    for number in told[::stride]:
        head, _, _ = lines[number].rpartition(', "')
        damaged = box_preset("\n".join([*lines[:number], f"{head}]", *lines[number + 1 :]]))
        with pytest.raises(ConfigError, match=r"\[value, source\]"):
            preset.load(str(damaged))


INACTIVE = BLOB.replace(", active: [1MB, x]", "")


def with_blob(blob):
    return "    memory: host\n    blobs: {k: {q8: " + blob + "}}"


GOOD, HOST, OF = BOX.replace("{DEVICE}", "1GB"), "    memory: host", "devices.gpu.kinds.k"
BAD = [
    ("base_ms: [5, ", "base_ms: [5] #", f"{OF}.base_ms: "),
    ('reserved: [10MB, "made up"]', 'reserved: [10MB, ""]', "reserved.source: "),
    ('base_ms: [5, "made up"]', "base_ms: 5", f"{OF}.base_ms: "),
    ('        base_ms: [5, "made up"]\n', "", f"{OF}.base_ms' is missing"),
    (HOST, f"{HOST}\n    clock: 3", "'clock' is not a key of 'devices.cpu'"),
    ("about:", "abuot: x\nabout:", "'about'?"),
    ("100MB/s", "1GB/h", "disk: '1GB/h' "),
    ("size: [1GB,", "size: [1Gflop,", "memories.device.size: '1Gflop' "),
    ("weights: [100MB,", "weights: [-3,", "kinds.k.weights: '-3' "),
    ("[1.0, 1.5]", "[1.0, 3.0]", "devices.gpu.scaling: "),
    ("memory: host", "memory: hots", "devices.cpu.memory: no memory 'hots'"),
    ("{gpu: 3}", "{npu: 1}", "configurations.best/wide: no device 'npu'"),
    ("{gpu: 0.5}", "{npu: 0.5}", "configurations.best: no device 'npu'"),
    ("{gpu: 0.5}", "{gpu: 1.5}", "configurations.best.expert_share.gpu: "),
    ("[10MB, ", "[1GB, ", "memories.device: "),
    ("      k:\n", "      q:\n", "devices.gpu.kinds: 'q' "),
    (HOST, f"{HOST}\n    blobs: {{q: {{}}}}", "cpu.blobs: 'q' "),
    (HOST, with_blob(BLOB), "kinds.k.blobs: no size of 'q8'"),
    (HOST, with_blob(INACTIVE), "blobs.k.q8.active' is missing"),
    (f"{HOST}\n    scaling: [[1.0]", "    memory: hots\n    scaling: [[2.0]", "no memory 'hots'; "),
    (GOOD, "", "about, disk, memories, "),
    (GOOD, "- about\n- disk\n", "about, disk, "),
    (GOOD, "about: [1, 2\ndisk: 5", "line 2: "),
    (GOOD, "about: !!python/object/apply:os.getcwd []", "constructor"),
    *[(GOOD, broken, "") for broken in ("[" * 1100, "about: x\x00", "about: \udcff\udcfe")],
]


@pytest.mark.parametrize(("old", "new", "said"), BAD, ids=[f"{new[:40]!a}" for _, new, _ in BAD])
def test_what_is_wrong_is_said_with_file_and_place(box_preset, old, new, said):
    assert old in GOOD
    path = box_preset(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        preset.load(str(path))
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ")
    assert (said in sentence, "\n" in sentence) == (True, False)


@pytest.mark.parametrize("name", ["uma-m3", "", "box.yaml", "a" * 300, "a\0b", "../presets"])
def test_a_box_that_is_not_there_lists_those_that_are(name):
    with pytest.raises(ConfigError, match="numa-rtx3080ti, uma-m2"):
        preset.load(name)


@pytest.fixture
def board(tmp_path):
    experts = [f"  e{i}: {{kind: k, labels: [ok, bad], input: 8, reject: [bad]}}" for i in range(30)]
    components = [f"  C{i}: {{count: {30 - i}, inspect: e{i}}}" for i in range(30)]
    (path := tmp_path / "b.yaml").write_text("\n".join(["board: b", "experts:", *experts, "components:", *components]))
    return rules.load(path)


def searched(board, store):
    """A search on two cores, for one executor of both or two of one each."""
    here = Fingerprint(cpu="c", cores=2, memory_bytes=1 << 30, gpu=None, driver=None, libraries={})
    scaling = {"cpu": {1: (1.0, 1.8), 2: (1.0,)}}
    known = {("cpu", number, None): LookedAt(DeviceMemory(None, 0, 0)) for number in (1, 2)}
    kinds = tuple(kind_profile(threads, decode_s=0.002) for threads in (1, 2))  # a second thread brings nothing
    site = ProfiledSite(board, Store(store), (), 150 * MB, looked_at=known)
    return Search(site, Profile(made="now", machine=here, kinds=kinds, scaling=scaling), 2, [2, 1], 300)


def stored(search, place, executors=2):
    """Write the profile that a search with so many executors ends with; return its configuration and throughput."""
    best = search.choose({"cpu": executors})[0]
    profile_file.save(search.profile.model_copy(update={"boards": {best.board: best}}), place)
    return Setup(search, best.chosen.executors), best.chosen.images_per_s


@pytest.mark.parametrize("executors", [1, 2])
def test_a_profile_simulates_what_its_search_did(board, tmp_path, executors):
    place = tmp_path / "profile.json"
    setup, speed = stored(searched(board, tmp_path / "store"), place, executors)
    assert setup.executors == {"cpu": executors}
    machine = ProfiledMachine(place, board)
    costs = machine.costs(board)
    assert all(costs("cpu", expert) == setup.costs("cpu", expert) for expert in board.experts)
    best = contender("late-binding")
    plan = machine.plan(board, costs, best.strategy, machine.configuration("best", "b"))
    workspace = machine.board.chosen.workspace_bytes["cpu"]
    pools = setup.plan({"cpu": workspace}).pools
    assert [pool.capacity_bytes for pool in plan.pools] == [pool.capacity_bytes for pool in pools]
    assert all(abs(pool.workspace_bytes - workspace) <= 1 for pool in plan.pools)
    run = simulated_run(machine, synthetic(board, task="b", requests=300, every_s=0), best)
    assert run.images_per_s == pytest.approx(speed, rel=0.02)
    assert machine.configuration("paper-default", "b").expert_share == {"cpu": 0.75}


def test_a_profile_of_another_board_or_version_of_it_is_refused(board, tmp_path):
    place = tmp_path / "profile.json"
    stored(searched(board, tmp_path / "store"), place)
    for change in (("count: 30", "count: 31"), ("board: b", "board: other")):
        (other := tmp_path / "other.yaml").write_text(board.path.read_text().replace(*change), encoding="utf-8")
        with pytest.raises(ConfigError):
            ProfiledMachine(place, rules.load(other))
    with pytest.raises(ConfigError):
        machine_named(str(place), [board, rules.load(other)])
    with pytest.raises(ConfigError):
        ProfiledMachine(place, board).configuration("prepared", "b")
