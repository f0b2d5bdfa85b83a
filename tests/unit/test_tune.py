"""What a configuration is chosen by: simulated runs with the costs that were measured."""

from __future__ import annotations

import pytest

from coe.errors import ConfigError
from coe.profile import KindProfile, Line
from coe.profiler.tune import Tuner
from coe.rules import Rules
from coe.sim.workload import synthetic
from coe.testing import rules_from

MB = 1_000_000


@pytest.fixture(scope="module")
def board() -> Rules:
    lines = ["board: b", "experts:"]
    lines += [f"  e{i}: {{kind: k, labels: [ok, bad], input: 8, reject: [bad]}}" for i in range(30)]
    lines += ["components:"] + [f"  C{i}: {{count: {30 / (i + 1):.2f}, inspect: e{i}}}" for i in range(30)]
    return rules_from("\n".join(lines) + "\n")


def kind_of(threads: int, *, activation: int = MB, max_batch: int = 4) -> KindProfile:
    return KindProfile(
        kind="k",
        input_size=8,
        device="cpu",
        threads=threads,
        backend="torch",
        precision="fp32",
        batches=(),
        line=Line(per_image_s=0.02 / threads, base_s=0.01, error=0.0),
        max_batch=max_batch,
        weights_bytes=10 * MB,
        activation_bytes=activation,
        workspace_bytes=0,
        load_s=0.05,
    )


def tuner(board: Rules, memory_bytes: int, *, scaling: tuple[float, ...] = (1.0,), **kind: int) -> Tuner:
    return Tuner(
        board=board,
        file_bytes=dict.fromkeys(board.experts, 10 * MB),
        memory_bytes=memory_bytes,
        cores=2,
        kinds_at=lambda threads: {"k": kind_of(threads, **kind)},
        scaling_at=lambda threads: scaling if threads == 1 else (1.0,),
        sample=synthetic(board, task="sample", requests=200, every_s=0.0),
    )


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
