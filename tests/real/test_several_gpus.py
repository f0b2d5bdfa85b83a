"""Several GPUs in one box, each a fake one with memory of its own: all take part, each within its budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_gpu import FEW, FakeDriver
from thread_boxes import same

from coe import Inspector, Picture
from coe.core import Result
from coe.errors import ConfigError, DeviceLost
from coe.runtime.cuda import torch_driver, worker

OPTIONS = {"memory": "200MB", "device_memory": "520MB", "host_memory": "100MB"}
GPUS = {**OPTIONS, "executors": "cuda:0=2,cuda:1=2,cpu=2"}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[FakeDriver]:
    """Two fake GPUs in the place of the machine's."""
    monkeypatch.setattr(worker, "SIZES", FEW)
    fakes = [FakeDriver(), FakeDriver()]

    def driver(*, search_kernels: bool = True, index: int = 0) -> FakeDriver:
        return fakes[index]

    monkeypatch.setattr(torch_driver, "driver", driver)
    return fakes


@pytest.mark.parametrize("strategy", ["late-binding", pytest.param("coserve", marks=pytest.mark.slow)])
def test_experts_lie_on_all_gpus_each_within_its_budget_and_results_are_those_of_a_processor(
    tiny: tuple[Path, Path], pictures: list[Picture], alone: dict[str, Result], gpus: list[FakeDriver], strategy: str
) -> None:
    sentences: list[str] = []
    with Inspector(tiny[0], store=tiny[1], strategy=strategy, say=sentences.append, profile=None, **GPUS) as line:
        assert line.ready(60)
        plan = line.plan
        same({result.request.image: result for result in line.stream(pictures)}, alone)
    assert {executor.device for executor in plan.executors} == {"cuda:0", "cuda:1", "cpu"}
    assert [executor.device for executor in plan.executors].count("cuda:1") == 2
    assert all(0 < gpu.peak <= 520e6 for gpu in gpus)
    assert [any(line.startswith(f"cuda:{n}: ") for line in sentences) for n in (0, 1)] == [True, True]
    assert plan.cache is not None
    assert plan.cache.capacity_bytes == 100e6


def test_a_gpu_that_is_lost_leaves_its_work_to_the_other(
    tiny: tuple[Path, Path], pictures: list[Picture], alone: dict[str, Result], gpus: list[FakeDriver]
) -> None:
    options = {**OPTIONS, "executors": "cuda:0=1,cuda:1=1", "strategy": "late-binding", "profile": None}
    with Inspector(tiny[0], store=tiny[1], **options) as line:  # type: ignore[arg-type]
        assert line.ready(60)
        gpus[1].troubles["run x"] = [DeviceLost("it fell off the bus")]
        same({result.request.image: result for result in line.stream(pictures)}, alone)
    assert not gpus[0].lost


@pytest.mark.parametrize(
    ("executors", "sentence"),
    [
        ("cuda:0=1,cuda=1", "names a GPU with a number and one without; write cuda:0 beside cuda:0"),
        ("cuda:one=1", "there is no device 'cuda:one'; known: cpu, cuda, and cuda:1 for another GPU"),
        ("cpu:1=1", "there is no device 'cpu:1'"),
    ],
)
def test_names_of_gpus_that_mean_nothing_are_refused(
    tiny: tuple[Path, Path], executors: str, sentence: str, gpus: list[FakeDriver]
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Inspector(tiny[0], store=tiny[1], executors=executors, profile=None)


def test_a_gpu_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_driver.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch_driver.torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="there is no cuda:2 here; torch can use 2: cuda:0 to cuda:1"):
        torch_driver.driver(index=2)
