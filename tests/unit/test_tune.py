"""What a configuration is chosen by: simulated runs with the costs that were measured."""

import pytest
from common_trunk import BOARD
from profiles import MB, kind_profile

from coe.errors import ConfigError
from coe.inspector.profile import Fingerprint, Profile
from coe.inspector.settings import DeviceMemory
from coe.profiler.configurations import paper_default
from coe.profiler.site import LookedAt, ProfiledSite
from coe.profiler.tune import Search, Setup
from coe.runtime.cuda.probe import GraphMemory
from coe.runtime.trial import whole_pages
from coe.scheduler.policies.coserve import COSERVE
from coe.scheduler.strategies import LATE_BINDING
from coe.store.store import Store
from coe.testing import rules_from


@pytest.fixture(scope="module")
def board():
    lines = ["board: b", "experts:"]
    lines += [f"  e{i}: {{kind: k, labels: [ok, bad], input: 8, reject: [bad]}}" for i in range(30)]
    lines += ["components:"] + [f"  C{i}: {{count: {30 / (i + 1):.2f}, inspect: e{i}}}" for i in range(30)]
    return rules_from("\n".join(lines) + "\n")


def kind_of(device, threads, *, activation=MB, max_batch=4, decode_s=0, base_s=0.001):
    more = {"device": device, "max_batch": max_batch, "decode_s": decode_s}
    if device == "cuda":
        return kind_profile(threads, per_image_s=0.001, base_s=base_s, activation_bytes=0, copy_s=0.001, **more)
    return kind_profile(threads, per_image_s=0.02 / threads, activation_bytes=activation, **more)


def looked_at(gpu_bytes=100 * MB, host_bytes=150 * MB):
    known = {("cpu", number): DeviceMemory(None, 0, 0) for number in range(1, 9)}
    known |= {("cuda", number): DeviceMemory(gpu_bytes, host_bytes, 20 * MB * number) for number in range(1, 9)}
    return {(*key, None): LookedAt(memory) for key, memory in known.items()}


class Graphs(dict):
    """Looks at a GPU of 480 MB: the graphs of an executor hold 5 MB for each image, what else it holds takes 10 MB."""

    def __contains__(self, key):
        return True

    def __missing__(self, key):
        device, number, batch_bytes = key
        if device == "cpu":
            return LookedAt(DeviceMemory(None, 0, 0))
        if batch_bytes is None:
            batch_bytes = 120 * MB // number
        most = max(size for size in (1, 2, 4, 8, 16, 32) if size == 1 or 5 * MB * size <= batch_bytes)
        graphs = {f"e{expert}": GraphMemory(8, most, 5 * MB * most, 0) for expert in range(30)}
        return LookedAt(DeviceMemory(480 * MB, 0, number * (10 + 5 * most) * MB), graphs)


def search(board, memory_bytes, *, scaling=(1.0,), gpu=(), cores=2, memories=None, strategy=LATE_BINDING, **kind):
    """`gpu` is how fast executors of a GPU are together; there is none if it is empty. Nothing is in the store."""
    measured = [("cpu", cores), ("cpu", 1), ("cuda", 1)]
    known = Profile(
        made="",
        machine=Fingerprint.here(),
        kinds=tuple(kind_of(device, threads, **kind) for device, threads in measured),
        scaling={"cuda": {1: gpu}, "cpu": {cores: (1.0,), 1: scaling}},
    )
    site = ProfiledSite(
        board,
        Store("nowhere"),
        [],
        memory_bytes,
        strategy=strategy,
        looked_at=looked_at() if memories is None else memories,
    )
    return Search(site, known, cores, [cores, 1], 200)


def choose(board, memory_bytes, *, gpu=(), cores=2, **facts):
    most = {**({"cuda": len(gpu)} if gpu else {}), "cpu": cores}
    return search(board, memory_bytes, gpu=gpu, cores=cores, **facts).choose(most)


def test_a_small_useful_batch_is_set_aside_and_a_large_one_weighed_against_experts(board):
    choice = choose(board, 100 * MB)[0]
    assert choice.windows == ()
    assert choice.chosen.workspace_bytes == {"cpu": 4 * MB}
    # Of 100 MB images under way have an eighth.
    assert choice.chosen.loaded_experts == 8
    assert "limited computing power" in " ".join(choice.chosen.reasons)
    assert choice.chosen.images_per_s >= choice.chosen.casual_images_per_s
    choice = choose(board, 200 * MB, activation=10 * MB, max_batch=16)[0]
    assert choice.windows
    assert choice.chosen.images_per_s == max(point.images_per_s for point in choice.windows)
    assert 1 <= choice.chosen.loaded_experts <= 20
    assert choice.chosen.images_per_s >= choice.chosen.casual_images_per_s * 0.99


def test_executors_are_added_while_they_help_each_with_a_core(board):
    helped = choose(board, 200 * MB, scaling=(1.0, 2.0))[0]
    assert (helped.chosen.executors, helped.chosen.threads) == ({"cpu": 2}, {"cpu": 1})
    alone = choose(board, 200 * MB, scaling=(1.0, 1.0))[0]
    assert (alone.chosen.executors, alone.chosen.threads) == ({"cpu": 1}, {"cpu": 2})
    assert [point.executors for point in alone.executors] == [{"cpu": 1}, {"cpu": 2}]
    choices = choose(board, 200 * MB, gpu=(1.0, 2.0, 3.0), scaling=(1.0, 2.0), cores=2)
    assert all(sum(choice.chosen.executors.values()) <= 2 for choice in choices)


def test_sample_runs_are_of_the_strategy_that_will_run(board):
    late, coserve = (
        choose(board, 150 * MB, activation=10 * MB, max_batch=16, scaling=(1.0, 2.0), strategy=strategy)[0]
        for strategy in (LATE_BINDING, COSERVE)
    )
    assert (late.strategy, coserve.strategy) == ("late-binding", "coserve")
    assert late.chosen.images_per_s > coserve.chosen.images_per_s


def test_what_is_too_small_for_one_expert_is_said_and_such_a_gpu_is_left_out(board):
    with pytest.raises(ConfigError, match="does not hold expert"):
        choose(board, 10 * MB)
    best = choose(board, 200 * MB, gpu=(1.0, 2.0), memories=looked_at(gpu_bytes=25 * MB))[0]
    assert best.chosen.executors == {"cpu": 1}
    assert "0 executors on cuda: 1 do not fit" in best.chosen.reasons[0]


def test_executors_of_a_gpu_are_added_first_which_sets_aside_what_batches_take(board):
    scaling = {"gpu": (1.0, 1.6, 1.6, 1.6), "scaling": (1.0, 2.0, 3.0, 3.0)}
    best = choose(board, 500 * MB, **scaling, cores=8, memories=looked_at(gpu_bytes=500 * MB))[0]
    assert best.chosen.executors["cuda"] == 2
    tried = [point.executors for point in best.executors]
    assert tried[:3] == [{"cuda": 1}, {"cuda": 2}, {"cuda": 3}]
    assert all(point == {"cuda": 2, "cpu": number} for number, point in enumerate(tried[3:], 1))
    assert best.chosen.images_per_s == max(point.images_per_s for point in best.executors)
    choices = choose(board, 100 * MB, gpu=(1.0,), cores=2)
    alone = next(choice.chosen for choice in choices if choice.chosen.executors == {"cuda": 1})
    assert (alone.threads, alone.workspace_bytes) == ({}, {})
    # Of 100 MB an executor holds 20; experts of 10 MB take whole pages.
    assert alone.loaded_experts == 7
    both = next(choice.chosen for choice in choices if choice.chosen.executors == {"cuda": 1, "cpu": 1})
    # One core is the GPU's.
    assert (both.threads, both.workspace_bytes) == ({"cpu": 1}, {"cpu": 4 * MB})
    assert both.loaded_experts == 16


def test_the_memory_of_a_gpu_is_split_by_decaying_windows_where_batches_would_have_more_than_is_set_aside(board):
    """The paper's figure 18: with more loaded experts throughput rises until batches lack memory."""

    def chosen(max_batch, number=2, **more):
        given = {"gpu": (1.0, 1.8), "cores": 4, "memories": Graphs(), "max_batch": max_batch, "base_s": 0.02} | more
        choices = choose(board, 200 * MB, **given)
        return next(choice for choice in choices if choice.chosen.executors == {"cuda": number})

    usual = chosen(8)
    assert (usual.windows, usual.chosen.workspace_bytes) == ((), {})
    assert "limited computing power" in " ".join(usual.chosen.reasons)
    searched = chosen(32)
    assert [point.upper for point in searched.windows][:2] == [15, 28]
    speeds = {point.upper: point.images_per_s for point in searched.windows}
    assert searched.chosen.images_per_s == max(speeds.values()) >= searched.chosen.casual_images_per_s
    # 480 MB less the experts, half of it for each executor, which holds 10 MB more than graphs.
    assert searched.chosen.workspace_bytes["cuda"] >= 80 * MB
    assert searched.chosen.loaded_experts >= max(speeds, key=speeds.get)
    # What a split leaves unused by graphs is for experts.
    split = Setup(search(board, 200 * MB, gpu=(1.0, 1.8), cores=4, memories=Graphs()), {"cuda": 2}).beside(200 * MB)
    assert 80 * MB <= split.batch_bytes < 160 * MB
    assert Setup(search(board, 200 * MB, gpu=(1.0,), memories=Graphs()), {"cuda": 2}).beside(460 * MB) is None


def test_a_gpu_waits_for_images_that_are_decoded_slower_than_it_runs_them(board):
    def per_image_s(executors, decode_s):
        known = search(board, 200 * MB, gpu=(1.0, 1.5), cores=4, decode_s=decode_s)
        return Setup(known, executors).costs("cuda", "e0").per_image_s

    assert per_image_s({"cuda": 1}, 0.002) == 0.001
    assert per_image_s({"cuda": 1}, 0.02) == 0.005
    # Two are 1.5 times as fast, and have as many images.
    assert per_image_s({"cuda": 2}, 0.02) == pytest.approx(0.0075)


def test_experts_that_share_a_body_are_counted_as_a_line_counts_them(shared_trunk, prepared_trunk):
    """Three of four experts share a third of their bytes; nothing else differs."""
    trunk = rules_from(BOARD)
    kind = kind_of("cpu", 1).model_copy(update={"kind": "narrow", "input_size": 32, "weights_bytes": 13_900_000})
    known = Profile(made="", machine=Fingerprint.here(), kinds=(kind,), scaling={"cpu": {1: (1.0,)}})

    def setup_of(store):
        site = ProfiledSite(trunk, Store(store), [], 100 * MB, looked_at=looked_at())
        return Setup(Search(site, known, 1, [1], 20), {"cpu": 1})

    shared, whole = setup_of(shared_trunk), setup_of(prepared_trunk)
    for expert in "abd":
        manifest = Store(shared_trunk).manifest(f"trunk/{expert}").variants["fp32"]
        assert shared.costs("cpu", expert).weights_bytes == whole_pages(manifest.bytes)
    assert shared.mean_bytes < 0.9 * whole.mean_bytes
    assert shared.chosen({}).loaded_experts > whole.chosen({}).loaded_experts
    assert paper_default(trunk, Store(shared_trunk), 60 * MB).loaded_experts >= (
        paper_default(trunk, Store(prepared_trunk), 60 * MB).loaded_experts
    )
