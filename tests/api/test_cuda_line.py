"""Whole lines with a fake GPU among their devices: verdicts, tiers, and a GPU that is lost while images come."""

import threading
from copy import copy
from dataclasses import replace

import pytest
from fake_gpu import FEW, FakeDriver
from thread_boxes import same
from waiting import eventually

from coe import Inspector
from coe.core import Verdict
from coe.errors import ConfigError, DeviceLost
from coe.runtime.cuda import torch_driver, worker
from coe.scheduler.events import Evict, Fill, Filled, Load
from coe.testing import Experiment

GPU = {"executors": "cuda=2", "memory": "200MB", "device_memory": "520MB", "host_memory": "100MB"}
BOTH = GPU | {"executors": "cuda=1,cpu=1"}


@pytest.fixture(scope="module")
def costs(tiny):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_driver, "driver", FakeDriver)
        patch.setattr(worker, "SIZES", FEW)
        with Inspector(tiny[0], store=tiny[1], **BOTH) as line:
            return line.costs


@pytest.mark.slow
def test_a_gpu_has_two_batches_under_way_and_a_copy_lane_and_a_cpu_has_neither(driver, tiny, costs):
    board, store = tiny
    with Inspector(board, store=store, experiment=Experiment(costs=costs), **BOTH) as line:
        depths = {executor.device: executor.depth for executor in line.plan.executors}
        names = {executor.id: executor.device for executor in line.plan.executors}
        threads = {thread.name for thread in threading.enumerate()}
    assert (depths, {name for name in threads if "lane" in name}) == ({"cuda": 2, "cpu": 1}, {"coe-lane-cuda"})
    assert "coe-disk" in threads
    answering = {name.removeprefix("coe-answers-") for name in threads if name.startswith("coe-answers-")}
    assert [names[name] for name in answering] == ["cuda"]


def test_what_leaves_a_small_device_comes_back_from_host_memory(driver, tiny, pictures, costs):
    board, store = tiny
    sentences = []
    # Room for one of the large experts beside what runs.
    own = GPU | {"executors": "cuda=1", "device_memory": "70MB"}
    with Inspector(
        board, store=store, experiment=Experiment(keep_trace=True, costs=costs), say=sentences.append, **own
    ) as line:
        # An idle disk fills host memory; a stream from the start may keep the disk busy to its end.
        eventually(lambda: any(isinstance(event, Filled) for _, event, _ in list(line.trace)))
        # Twice, so that what has left is needed again whatever the strategy does to avoid it.
        for _ in range(2):
            assert {result.error for result in line.stream(pictures[:16])} == {None}
        capacity = line.plan.pools[0].capacity_bytes
    commands = [command for _, _, some in line.trace for command in some]
    loads = [one for one in commands if isinstance(one, Load)]
    assert capacity < 3 * 4e6
    assert any(one.keep_copy for one in commands if isinstance(one, Evict | Load))
    assert any(one.source == "host" for one in loads)
    reads = sum(one.source == "disk" for one in loads)
    assert any(isinstance(one, Fill) for one in commands)
    assert reads <= 4 + 1
    sentences = [sentence for sentence in sentences if not sentence.startswith("warning: ")]
    assert sentences[0].startswith("cuda: 66.8 MiB of 4.00 GiB of device memory (its driver and other processes hold")
    assert "hold another 100.0 MiB)" in sentences[0]
    assert line.plan.cache.demotes


@pytest.fixture(scope="module")
def expected(tiny, costs, pictures):
    with Inspector(tiny[0], store=tiny[1], experiment=Experiment(costs=costs), memory="80MB") as line:
        return {result.request.image: result.verdict for result in line.stream(pictures[:16])}


def test_a_gpu_that_is_lost_leaves_its_work_to_the_cpu(driver, tiny, pictures, expected, costs):
    board, store = tiny
    # A batch runs where it ends first: on the GPU, if the processor is far slower.
    costs = copy(costs)
    costs.by_variant = {
        key: replace(cost, per_image_s=100 * cost.per_image_s) if key[0] == "cpu" else cost
        for key, cost in costs.by_variant.items()
    }
    with Inspector(board, store=store, experiment=Experiment(costs=costs), **BOTH) as line:
        driver.troubles["run x"] = [DeviceLost("it fell off the bus")]
        found = {result.request.image: result.verdict for result in line.stream(pictures[:16])}
    assert found == expected
    assert driver.lost


@pytest.mark.slow
def test_a_line_after_another_may_have_most_of_the_gpu_again(tiny, pictures, costs, monkeypatch):
    # As large as one line, its context and a little; what the first one held is kept by the allocator until asked for.
    driver = FakeDriver(total=700 << 20)
    monkeypatch.setattr(torch_driver, "driver", lambda search_kernels: driver)
    board, store = tiny
    for _ in range(2):
        with Inspector(board, store=store, experiment=Experiment(costs=costs), **GPU) as line:
            assert {result.error for result in line.stream(pictures[:2])} == {None}


@pytest.mark.slow
def test_mixed_precision_on_a_gpu_is_q8(driver, tiny, prepared_tiny, pictures):
    board, store = tiny[0], prepared_tiny[1]
    # Each of two networks in two variants is measured.
    options = GPU | {"device_memory": "600MB"}
    with Inspector(board, store=store, precision="mixed", experiment=Experiment(label_floor=0.0), **options) as line:
        assert {expert.variant for expert in line.rules.experts.values()} >= {"q8"}
        results = list(line.stream(pictures[:6]))
    assert {result.error for result in results} == {None}
    assert {finding.variant for result in results for finding in result.findings} >= {"q8"}
    assert {result.verdict for result in results} <= set(Verdict)


@pytest.mark.parametrize(("memory", "said"), [("9GiB", r"9\.00 GiB.*on cuda"), ("60MB", "--device-memory")])
def test_what_cannot_be_is_said_before_anything_starts(driver, tiny, memory, said):
    with pytest.raises(ConfigError, match=said):
        Inspector(tiny[0], store=tiny[1], **{**GPU, "device_memory": memory})


def test_without_a_gpu_the_sentence_says_what_to_do_instead(tiny):
    board, store = tiny
    if torch_driver.torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match="--executors cpu=1"):
        Inspector(board, store=store, **GPU)


GPUS = {**GPU, "executors": "cuda:0=2,cuda:1=2,cpu=2"}


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setattr(worker, "SIZES", FEW)
    fakes = [FakeDriver(), FakeDriver()]

    def driver(*, search_kernels=True, index=0):
        return fakes[index]

    monkeypatch.setattr(torch_driver, "driver", driver)
    return fakes


@pytest.mark.parametrize("strategy", ["late-binding", pytest.param("coserve", marks=pytest.mark.slow)])
def test_experts_lie_on_all_gpus_each_within_its_budget_and_results_are_those_of_a_processor(
    tiny, pictures, alone, gpus, strategy
):
    sentences = []
    with Inspector(tiny[0], store=tiny[1], strategy=strategy, say=sentences.append, profile=None, **GPUS) as line:
        assert line.ready(60)
        plan = line.plan
        same({result.request.image: result for result in line.stream(pictures)}, alone)
    assert {executor.device for executor in plan.executors} == {"cuda:0", "cuda:1", "cpu"}
    assert [executor.device for executor in plan.executors].count("cuda:1") == 2
    assert all(0 < gpu.peak <= 520e6 for gpu in gpus)
    assert [any(line.startswith(f"cuda:{n}: ") for line in sentences) for n in (0, 1)] == [True, True]
    assert plan.cache.capacity_bytes == 100e6


@pytest.mark.parametrize(
    ("executors", "names"),
    [("cuda:0=1,cuda=1", "cuda:0"), ("cuda:one=1", "'cuda:one'.*cuda:1"), ("cpu:1=1", "'cpu:1'")],
)
def test_names_of_gpus_that_mean_nothing_are_refused(tiny, executors, names, gpus):
    with pytest.raises(ConfigError, match=names):
        Inspector(tiny[0], store=tiny[1], executors=executors, profile=None)


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch_driver.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch_driver.torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="there is no cuda:2 here; torch can use 2: cuda:0 to cuda:1"):
        torch_driver.driver(index=2)
