"""A box made of a profile simulates what the profile's own search simulated."""

import pytest
from profiles import MB, kind_profile

from coe.board import rules
from coe.errors import ConfigError
from coe.inspector.profile import Fingerprint, Profile
from coe.inspector.settings import DeviceMemory
from coe.lab.machine import ProfiledMachine, machine_named
from coe.lab.simulated import contender, simulated_run
from coe.lab.workloads.workload import synthetic
from coe.profiler import profile_file
from coe.profiler.site import ProfiledSite
from coe.profiler.tune import Search, Setup
from coe.store.store import Store


@pytest.fixture
def board(tmp_path):
    lines = ["board: b", "experts:"]
    lines += [f"  e{i}: {{kind: k, labels: [ok, bad], input: 8, reject: [bad]}}" for i in range(30)]
    lines += ["components:"] + [f"  C{i}: {{count: {30 - i}, inspect: e{i}}}" for i in range(30)]
    path = tmp_path / "b.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return rules.load(path)


def searched(board, store):
    """A search on two cores, for one executor of both or two of one each."""
    here = Fingerprint(cpu="c", cores=2, memory_bytes=1 << 30, gpu=None, driver=None, libraries={})
    scaling = {"cpu": {1: (1.0, 1.8), 2: (1.0,)}}
    known = {("cpu", number): DeviceMemory(None, 0, 0) for number in (1, 2)}
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
    run = simulated_run(machine, synthetic(board, task="b", requests=300, every_s=0), best, bounded=False)
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
