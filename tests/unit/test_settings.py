"""Settings of a line: profile, pools and budgets."""

import os
import re
from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import kind_profile
from texts import texts

from coe import config
from coe.config import parse_bytes
from coe.core import Expert
from coe.errors import ConfigError
from coe.helpers import system
from coe.inspector import profile
from coe.inspector.line_options import AUTO, LineOptions
from coe.inspector.profile import BoardProfile, Fingerprint, Profile
from coe.inspector.settings import (
    Settings,
    inbox_bytes,
    memories,
    memory_scores,
    plan,
    plan_pools,
    score_bytes,
    settle,
    with_workspaces,
)
from coe.profiler import profile_file
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.plan import CacheSpec, ExecutorSpec, PoolSpec
from coe.testing import Experiment, rules_from

GIB = 1 << 30


@pytest.fixture
def board(monkeypatch):
    monkeypatch.setattr(system, "usable_memory", lambda: 64 * GIB)
    return rules_from(
        "board: b\nexperts:\n  a: {kind: k, labels: [ok, bad], input: 8, reject: [bad]}\n"
        "components:\n  A: {count: 1, inspect: a}\n"
    )


CHOSEN = {
    **{"executors": {"cpu": 2}, "threads": {"cpu": 1}, "workspace_bytes": {"cpu": 1000}, "loaded_experts": 3},
    **{"images_per_s": 9.0, "casual_images_per_s": 8.0, "reasons": ("because",)},
}


def made_for(board, entry=MappingProxyType({}), **changes):
    known = {"board": board.board, "digest": board.digest, "memory_bytes": GIB, "strategy": "coserve", "chosen": CHOSEN}
    boards = {
        "b": BoardProfile.model_validate(known | dict.fromkeys(("usage", "windows", "executors"), ()) | {**entry})
    }
    made = {"made": "2026-11-21T10:00:00", "machine": Fingerprint.here(), "kinds": (kind_profile(),)}
    return Profile(**(made | {"boards": boards} | changes))


def settled(board, source, said=None, **given):
    strategy = "samba" if given.pop("single", False) else "coserve"
    sentences = said if said is not None else []
    return settle(board, LineOptions.of("b", profile=source, strategy=strategy, say=sentences.append, **given))


def test_what_was_chosen_is_used_and_said_as_are_defaults_and_more_memory_than_there_is(board, monkeypatch):
    found = settled(board, None)
    assert (found.memory_bytes, dict(found.executors)) == (config.parse_bytes(config.MEMORY), {"cpu": 1})
    assert (found.threads, found.workspace_bytes, found.profile) == ({}, {}, None)
    assert settled(board, AUTO) == settled(board, "none") == found
    said = []
    known = made_for(board)
    found = settled(board, known, said)
    assert found == Settings(GIB, {"cpu": 2}, {"cpu": 1}, {"cpu": 1000}, known)
    assert said == ["using this machine's profile of 2026-11-21: cpu=2, 1.00 GiB of memory"]
    monkeypatch.setattr(system, "usable_memory", lambda: GIB)
    said = []
    settled(board, None, said, memory=GIB)
    assert said == []
    settled(board, None, said)
    assert all(word in said[0] for word in ("warning", "2.00 GiB", "1.00 GiB"))


def test_the_user_overrides_any_part_also_without_a_profile(board):
    known = made_for(board)
    more = settled(board, known, memory="2GiB")
    assert (more.memory_bytes, dict(more.executors), dict(more.workspace_bytes)) == (2 * GIB, {"cpu": 2}, {})
    one = settled(board, known, executors="cpu=1")
    assert (one.memory_bytes, dict(one.executors), one.threads, one.workspace_bytes) == (GIB, {"cpu": 1}, {}, {})
    fewer = settled(board, known, threads=2)
    assert (dict(fewer.executors), dict(fewer.threads), dict(fewer.workspace_bytes)) == ({"cpu": 2}, {"cpu": 2}, {})
    split = settled(board, known, experiment=Experiment(loaded=12.5))
    assert (dict(split.threads), dict(split.workspace_bytes), split.loaded) == ({"cpu": 1}, {}, 12.5)
    same = settled(board, known, memory="1GiB", executors="cpu=2")
    assert dict(same.workspace_bytes) == {"cpu": 1000}
    found = settled(board, None, executors="cpu=3", threads=2, experiment=Experiment(loaded=5.0))
    assert (dict(found.threads), found.loaded) == ({"cpu": 2}, 5.0)
    with pytest.raises(ConfigError, match="threads=0: give a whole number from 1 to"):
        settled(board, None, threads=0)


def test_a_profile_made_for_another_strategy_is_said_to_be_and_one_for_a_single_executor_is_used(board):
    said = []
    settled(board, made_for(board, {"strategy": "late-binding"}), said)
    assert "of 2026-11-21, made for strategy late-binding: cpu=2" in said[0]
    chosen = CHOSEN | {"executors": {"cpu": 1}}
    found = settled(board, made_for(board, {"strategy": "samba", "chosen": chosen}), single=True)
    assert (dict(found.threads), dict(found.workspace_bytes)) == ({"cpu": 1}, {"cpu": 1000})


def test_usage_that_differs_from_the_rules_is_that_of_the_images(board):
    rows = [{"expert": "a", "by_rules": 1.0, "by_images": 0.4, "differs": True}, {"expert": "b", "by_rules": 0.5}]
    found = settled(board, made_for(board, {"usage": rows}))
    assert found.usage == {"a": 0.4}
    assert settled(board, made_for(board)).usage == {}


@pytest.mark.parametrize("said", [{"device_memory": "1GiB"}, {"host_memory": 1000}])
@pytest.mark.parametrize("executors", [None, "cpu=2"])
def test_memory_of_a_gpu_without_executors_is_refused(board, said, executors):
    with pytest.raises(ConfigError, match="there are none; give --executors cuda=1 too"):
        settled(board, None, executors=executors, **said)
    assert settled(board, None, executors="cpu=1,cuda=1", single=True, **said).executors == {"cpu": 1}


def test_memories_of_a_gpu_are_those_that_it_was_profiled_under(board):
    chosen = CHOSEN | {"executors": {"cuda": 2, "cpu": 1}}
    known = made_for(board, {"chosen": chosen, "device_bytes": 8 * GIB, "host_bytes": 4 * GIB})
    found = settled(board, known)
    assert (dict(found.executors), found.device_bytes, found.host_bytes) == ({"cuda": 2, "cpu": 1}, 8 * GIB, 4 * GIB)
    less = settled(board, known, device_memory="2GiB", host_memory="1GiB")
    assert (less.device_bytes, less.host_bytes) == (2 * GIB, GIB)
    assert dict(less.workspace_bytes) == {"cpu": 1000}
    split = chosen | {"workspace_bytes": {"cuda": 2000, "cpu": 1000}}
    known = made_for(board, {"chosen": split, "device_bytes": 8 * GIB, "host_bytes": 4 * GIB})
    assert (settled(board, known).batch_bytes, dict(settled(board, known).workspace_bytes)) == (2000, {"cpu": 1000})
    assert settled(board, known, device_memory="2GiB").batch_bytes is None
    one = settled(board, known, single=True)
    assert (dict(one.executors), one.device_bytes) == ({"cuda": 1}, 8 * GIB)
    without = settled(board, known, executors="cpu=2")
    assert (without.device_bytes, without.host_bytes) == (None, None)


def test_a_single_executor_strategy_takes_costs_alone_as_does_a_board_that_has_changed(board):
    found = settled(board, made_for(board), single=True, executors="cpu=2")
    assert (dict(found.executors), dict(found.workspace_bytes)) == ({"cpu": 1}, {})
    assert found.profile is not None
    said = []
    found = settled(board, made_for(board, {"digest": "other"}), said)
    assert dict(found.executors) == {"cpu": 1}
    assert "has changed since it was profiled; run coe-profile --board b again" in said[0]


def test_a_profile_of_another_machine_is_passed_over_with_a_warning(board, tmp_path, monkeypatch):
    path = tmp_path / "profile.json"
    machine = Fingerprint.here().model_copy(update={"cores": 99})
    profile_file.save(made_for(board, machine=machine), path)
    monkeypatch.setenv(config.PROFILE_VARIABLE, str(path))
    said = []
    assert settled(board, AUTO, said).profile is None
    assert said[0].startswith(f"warning: the profile at {path} no longer fits this machine (the number of cores")
    # One that is named must fit.
    with pytest.raises(ConfigError, match="the number of cores was 99"):
        settled(board, path)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "damaged"),
        ("{}", "made"),
        ('{"version": 7, "made": "x"}', "version 1"),
        ('{"version": 1, "odd": 1}', "damaged"),
    ],
)
def test_a_profile_that_cannot_be_used_is_said_to_be_so(board, tmp_path, monkeypatch, text, word):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{word}.*coe-profile"):
        profile.load(path)
    monkeypatch.setenv(config.PROFILE_VARIABLE, str(path))
    said = []
    assert settled(board, AUTO, said).profile is None
    assert said[0].startswith("warning: ")


def test_a_profile_is_read_back(board, tmp_path):
    path = tmp_path / "new" / "profile.json"
    known = made_for(board)
    profile_file.save(known, path)
    assert profile.load(path) == known
    assert os.listdir(path.parent) == ["profile.json"]


def test_where_nothing_may_be_written_is_found_out_before(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="cannot be written; name another place with --out"):
        profile_file.writable(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--out"):
        profile_file.writable(tmp_path / "file" / "profile.json")
    profile_file.writable(tmp_path / "file")
    (tmp_path / "file").write_text("board: b\n")
    for is_readable in (True, False):
        with pytest.raises(ConfigError, match="file is not a profile, and would be overwritten"):
            profile_file.writable(tmp_path / "file")
        if is_readable:
            monkeypatch.setattr(type(tmp_path), "open", lambda *_: os.open(tmp_path / "none", os.O_RDONLY))


def test_the_place_is_the_users_data_folder(monkeypatch, tmp_path):
    monkeypatch.delenv(config.PROFILE_VARIABLE)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert profile.place() == tmp_path / "coe" / "profile.json"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(profile.place()) == "/home/someone/.local/share/coe/profile.json"


@pytest.mark.parametrize("visible", ["", "-1"])
def test_a_gpu_that_may_not_be_used_is_none(monkeypatch, visible):
    for name in ("gpu_name", "gpu_driver", "gpu_is_here"):
        monkeypatch.setattr(system, name, lambda: "Some GPU")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with_it = Fingerprint.here()
    assert (with_it.gpu, with_it.driver) == ("Some GPU", "Some GPU")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    without = Fingerprint.here()
    assert (without.gpu, without.driver) == (None, None)
    assert any("the GPU was Some GPU, is None" in one for one in with_it.changes(without))


def test_a_fingerprint_says_what_has_changed_also_cores_that_a_container_withholds(monkeypatch):
    now = Fingerprint.here()
    assert now.changes(now) == []
    other = {"memory_bytes": now.memory_bytes * 2, "gpu": "H200", "libraries": now.libraries | {"torch": "1.0"}}
    changed = now.model_copy(update=other).changes(now)
    assert [one.partition(", is")[0] for one in changed if not one.startswith("memory was ")] == [
        "the GPU was H200", "torch was 1.0",
    ]  # fmt: skip
    assert len(changed) == 3
    # A kernel that keeps a little more for itself is the same machine.
    assert now.model_copy(update={"memory_bytes": int(now.memory_bytes * 1.01)}).changes(now) == []
    before = Fingerprint.here()
    monkeypatch.setattr(system, "usable_cores", lambda: before.cores + 1)
    assert before.changes(Fingerprint.here()) == [f"the number of cores was {before.cores}, is {before.cores + 1}"]


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
    assert memory_scores({"small": 100, "large": 300}) == {"small": 0.5, "large": 1.5}
    assert score_bytes(1.5, {"small": 100, "large": 300}) == 300


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


@pytest.mark.parametrize(
    ("executors", "memory", "costs", "more", "named"),
    [
        (2, 100, {"a": cost(10), "big": cost(60, 3)}, {}, ["'big'", "60.0 MiB", "3.0 MiB", "50.0 MiB", "126MiB"]),
        (1, 80, {"big": cost(75)}, {"with_images": True}, ["70.0 MiB", "10.0 MiB", "at least"]),
        (1, 1, {"a": cost(1)}, {"experts": ["b"]}, ["'b'", "'cpu'"]),
    ],
)
def test_what_has_no_room_or_no_cost_is_named_with_what_is_enough(executors, memory, costs, more, named):
    experts = more.pop("experts", [*costs])
    with pytest.raises(ConfigError) as caught:
        plan({"cpu": executors}, memory * MIB, experts, table(**costs), **more)
    assert [word for word in named if word not in str(caught.value)] == []


@given(st.integers(2, 1 << 40), st.integers(0, 1 << 30), st.integers(1, 5), st.booleans())
def test_the_advice_is_enough_when_it_is_followed(weights, activation, executors, with_images):
    costs = CostTable({("cpu", "a"): Cost(0.1, 0.1, 1.0, weights, activation)})
    with pytest.raises(ConfigError) as caught:
        plan({"cpu": executors}, 1, ["a"], costs, with_images=with_images)
    advice = re.search(r"at least (\S+?MiB)", str(caught.value))
    made = plan({"cpu": executors}, parse_bytes(advice[1]), ["a"], costs, with_images=with_images)
    assert made.pools[0].workspace_bytes >= activation
    assert made.pools[0].workspace_bytes + weights <= made.pools[0].capacity_bytes


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


def test_pools_leave_other_experts_the_workspace_that_these_need():
    costs = table(a=cost(10), b=cost(10, activation=40))
    made = plan({"cpu": 2}, 200 * MIB, ["a"], costs)
    wider = with_workspaces(made, ["a", "b"], costs)
    assert [pool.workspace_bytes // MIB for pool in (*made.pools, *wider.pools)] == [4, 4, 40, 40]
    assert [pool.capacity_bytes for pool in wider.pools] == [pool.capacity_bytes for pool in made.pools]
    assert with_workspaces(wider, ["a"], costs) == made
    with pytest.raises(ConfigError, match=r"'c' .*'cpu0' of 100\.0 MiB"):
        with_workspaces(made, ["a", "c"], table(a=cost(10), c=cost(99, activation=5)))


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
    known = memories({"cuda": GPU, "cpu": CPU}, list(EXPERTS.values()), {"cuda": 2, "cpu": 1})
    assert {id: memory.fixed_bytes for id, memory in known.items()} == {"cuda": 10 * MIB, "cpu": MIB}
    with pytest.raises(ConfigError, match=r"12\.0 MiB .*'a'"):
        plan_of({"cuda": 1}, {"cuda": Box(12 * MIB, each=5 * MIB)})
