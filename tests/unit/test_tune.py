"""What a configuration is chosen by: simulated runs with the costs that were measured."""

from __future__ import annotations

import pytest

from coe.board.rules import Rules
from coe.errors import ConfigError
from coe.inspector.profile import KindProfile
from coe.profiler.memories import Seen
from coe.profiler.setup import Basis, Setup
from coe.profiler.tune import Tuner
from coe.runtime.fit import Line
from coe.sim.workload import synthetic
from coe.testing import rules_from

MB = 1_000_000


@pytest.fixture(scope="module")
def board() -> Rules:
    lines = ["board: b", "experts:"]
    lines += [f"  e{i}: {{kind: k, labels: [ok, bad], input: 8, reject: [bad]}}" for i in range(30)]
    lines += ["components:"] + [f"  C{i}: {{count: {30 / (i + 1):.2f}, inspect: e{i}}}" for i in range(30)]
    return rules_from("\n".join(lines) + "\n")


def kind_of(device: str, threads: int, *, activation: int = MB, max_batch: int = 4, decode_s: float = 0) -> KindProfile:
    on_gpu = device == "cuda"
    return KindProfile(
        kind="k",
        input_size=8,
        device=device,
        threads=threads,
        backend="torch",
        precision="fp32",
        batches=(),
        line=Line(per_image_s=0.001 if on_gpu else 0.02 / threads, base_s=0.001 if on_gpu else 0.01, error=0.0),
        max_batch=max_batch,
        weights_bytes=10 * MB,
        activation_bytes=0 if on_gpu else activation,
        workspace_bytes=0,
        load_s=0.05,
        copy_s=0.001 if on_gpu else 0,
        decode_s=decode_s,
    )


def seen(executors, gpu_bytes: int = 100 * MB, host_bytes: int = 150 * MB):
    """A GPU whose executors hold 20 MB each."""
    known = {"cpu": Seen(None, 0, 0), "cuda": Seen(gpu_bytes, host_bytes, 20 * MB * executors.get("cuda", 0))}
    return {device: known[device] for device in executors}


def tuner(
    board: Rules,
    memory_bytes: int,
    *,
    scaling: tuple[float, ...] = (1.0,),
    gpu: tuple[float, ...] = (),
    cores: int = 2,
    memories=seen,
    **kind: int,
) -> Tuner:
    """`gpu` is how fast executors of a GPU are together; there is none if it is empty."""
    basis = Basis(
        board=board,
        file_bytes=dict.fromkeys(board.experts, 10 * MB),
        memory_bytes=memory_bytes,
        cores=cores,
        threads=[cores, 1],
        kinds_at=lambda device, threads: {"k": kind_of(device, threads, **kind)},
        scaling_at=lambda device, threads: gpu if device == "cuda" else scaling if threads == 1 else (1.0,),
        memories=memories,
        sample=synthetic(board, task="sample", requests=200, every_s=0.0),
    )
    return Tuner(basis, {**({"cuda": len(gpu)} if gpu else {}), "cpu": cores})


def test_a_small_useful_batch_is_set_aside_and_nothing_is_searched(board: Rules) -> None:
    choice = tuner(board, 100 * MB).choose()[0]
    assert choice.windows == ()
    assert choice.chosen.workspace_bytes == {"cpu": 4 * MB}
    # Of 100 MB images under way have an eighth.
    assert choice.chosen.loaded_experts == 8
    assert "limited computing power" in " ".join(choice.chosen.reasons)
    assert choice.chosen.images_per_s >= choice.chosen.casual_images_per_s


def test_a_large_useful_batch_is_weighed_against_experts(board: Rules) -> None:
    choice = tuner(board, 200 * MB, activation=10 * MB, max_batch=16).choose()[0]
    assert choice.windows
    assert choice.chosen.images_per_s == max(point.images_per_s for point in choice.windows)
    assert 1 <= choice.chosen.loaded_experts <= 20
    assert choice.chosen.images_per_s >= choice.chosen.casual_images_per_s * 0.99


def test_executors_are_added_while_they_help(board: Rules) -> None:
    helped = tuner(board, 200 * MB, scaling=(1.0, 2.0)).choose()[0]
    assert (helped.chosen.executors, helped.chosen.threads) == ({"cpu": 2}, {"cpu": 1})
    alone = tuner(board, 200 * MB, scaling=(1.0, 1.0)).choose()[0]
    assert (alone.chosen.executors, alone.chosen.threads) == ({"cpu": 1}, {"cpu": 2})
    assert [point.executors for point in alone.points] == [{"cpu": 1}, {"cpu": 2}]


def test_a_machine_too_small_for_one_expert_is_said_to_be(board: Rules) -> None:
    with pytest.raises(ConfigError, match="does not hold expert"):
        tuner(board, 10 * MB).choose()


def test_executors_of_a_gpu_are_added_first_then_those_of_the_cpu(board: Rules) -> None:
    def roomy(executors):
        return seen(executors, gpu_bytes=500 * MB)

    scaling = {"gpu": (1.0, 1.6, 1.6, 1.6), "scaling": (1.0, 2.0, 3.0, 3.0)}
    best = tuner(board, 500 * MB, **scaling, cores=8, memories=roomy).choose()[0]
    assert best.chosen.executors["cuda"] == 2
    tried = [point.executors for point in best.points]
    assert tried[:3] == [{"cuda": 1}, {"cuda": 2}, {"cuda": 3}]
    assert all(point == {"cuda": 2, "cpu": number} for number, point in enumerate(tried[3:], 1))
    assert best.chosen.images_per_s == max(point.images_per_s for point in best.points)


def test_a_gpu_sets_aside_what_batches_take_and_the_split_is_that_of_the_cpu(board: Rules) -> None:
    choices = tuner(board, 100 * MB, gpu=(1.0,), cores=2).choose()
    alone = next(choice.chosen for choice in choices if choice.chosen.executors == {"cuda": 1})
    assert (alone.threads, alone.workspace_bytes) == ({}, {})
    # Of 100 MB an executor holds 20.
    assert alone.loaded_experts == 8
    both = next(choice.chosen for choice in choices if choice.chosen.executors == {"cuda": 1, "cpu": 1})
    # One core is the GPU's.
    assert (both.threads, both.workspace_bytes) == ({"cpu": 1}, {"cpu": 4 * MB})
    assert both.loaded_experts == 16


def test_each_executor_has_a_core(board: Rules) -> None:
    choices = tuner(board, 200 * MB, gpu=(1.0, 2.0, 3.0), scaling=(1.0, 2.0), cores=2).choose()
    assert all(sum(choice.chosen.executors.values()) <= 2 for choice in choices)


def test_a_gpu_too_small_is_left_out(board: Rules) -> None:
    def small(executors):
        return seen(executors, gpu_bytes=25 * MB)

    best = tuner(board, 200 * MB, gpu=(1.0, 2.0), memories=small).choose()[0]
    assert best.chosen.executors == {"cpu": 1}
    assert "0 executor(s) on cuda: 1 do not fit" in best.chosen.reasons[0]


def test_a_gpu_waits_for_images_that_are_decoded_slower_than_it_runs_them(board: Rules) -> None:
    def per_image_s(executors, decode_s):
        basis = tuner(board, 200 * MB, gpu=(1.0, 1.5), cores=4, decode_s=decode_s)._basis
        return Setup(basis, executors).costs("cuda", "e0").per_image_s

    assert per_image_s({"cuda": 1}, 0.002) == 0.001
    assert per_image_s({"cuda": 1}, 0.02) == 0.005
    # Two are 1.5 times as fast, and have as many images.
    assert per_image_s({"cuda": 2}, 0.02) == pytest.approx(0.0075)
