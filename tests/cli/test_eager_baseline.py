"""Experts loaded and run eagerly, on the CPU and on a fake GPU: they say what ours say."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_gpu import FakeDriver

from coe import Inspector
from coe.errors import ConfigError, DeviceFull, DeviceLost, StoreError
from coe.lab import eager_baseline
from coe.lab.eager_baseline import EagerDevice
from coe.runtime.cpu import CpuDevice
from coe.scheduler.events import Load
from coe.store import kinds
from coe.store import store as stores
from coe.store.kinds import ExpertInput
from coe.testing import Experiment

GPU = {"executors": "cuda=2", "memory": "200MB", "device_memory": "290MB", "host_memory": "100MB"}
EAGER = {"experiment": Experiment(make_devices=eager_baseline.devices), "profile": None}
SMALL = ("run", "--experts", "4", "--kind", "narrow", "--input", "32", "--requests", "24")


def known(found):
    return {expert.kind: kinds.resolve(expert.kind) for expert in found.experts.values()}


def on_cpu(board):
    return EagerDevice(board[1], known(board[0]), 1)


def on_gpu(board, driver=None):
    return EagerDevice(board[1], known(board[0]), 1, driver or FakeDriver(), memory_bytes=1 << 30, host_bytes=1 << 30)


def judge(device, expert):
    chance = np.random.default_rng(5)
    size = expert.input_size
    images = [ExpertInput(chance.integers(0, 255, (3, size, size), dtype=np.uint8), size, size) for _ in range(3)]
    return device.run("one", "pool", expert, images)


@pytest.mark.parametrize("id", ["body-a", "joint"])
@pytest.mark.parametrize("make", [on_cpu, on_gpu])
def test_it_says_what_our_device_says(board, make, id):
    expert = board[0].experts[id]
    ours, theirs = CpuDevice(board[1], known(board[0]), 1), make(board)
    for device in (ours, theirs):
        device.load("pool", expert)
    for one, other in zip(judge(ours, expert), judge(theirs, expert), strict=True):
        assert (one.label, len(one.boxes)) == (other.label, len(other.boxes))
        assert np.allclose(one.score, other.score, atol=1e-3)
        assert all(np.allclose(a.score, b.score, atol=1e-3) for a, b in zip(one.boxes, other.boxes, strict=True))
    # What it runs on is there from its load to its eviction.
    theirs.evict("pool", expert)
    with pytest.raises(KeyError):
        judge(theirs, expert)


@pytest.mark.slow
def test_verdicts_of_a_line_with_a_gpu_are_ours_too(driver, tiny, inspect_all, pictures):
    found = inspect_all(pictures[:16], memory="80MB", profile=None)
    # Room for two of the three large experts, so that one that left comes back from its copy in host memory.
    small = GPU | {"device_memory": "156MB"}
    eager = EAGER | {"experiment": replace(EAGER["experiment"], keep_trace=True)}
    with Inspector(tiny[0], store=tiny[1], **small, **eager) as line:
        for _ in range(2):
            results = list(line.stream(pictures[:16]))
            assert {result.request.image: result.verdict for result in results} == {
                name: one.verdict for name, one in found.items()
            }
        capacity = sum(pool.capacity_bytes for pool in line.plan.pools)
    loads = [one for _, _, commands in line.trace for one in commands if isinstance(one, Load)]
    assert any(one.source == "host" for one in loads)
    # What torch keeps for each executor is not the pools'.
    assert capacity == pytest.approx(156e6 - 2 * (64 << 20), abs=4)


def test_a_copy_in_host_memory_saves_the_disk(board, monkeypatch):
    device, expert = on_gpu(board), board[0].experts["body-a"]
    device.load("pool", expert, keep_copy=True)
    expected = judge(device, expert)
    device.evict("pool", expert)
    reads = []
    monkeypatch.setattr(stores, "load", lambda store, weights: reads.append(weights) or {})
    device.load("pool", expert)
    assert judge(device, expert) == expected
    # What left a copy when it went down comes up from that.
    device.forget(expert.id)
    device.evict("pool", expert, keep_copy=True)
    device.load("pool", expert)
    assert judge(device, expert) == expected
    assert reads == []
    device.evict("pool", expert)
    device.forget(expert.id)
    with pytest.raises(StoreError, match="import the expert again"):
        device.load("pool", expert)
    assert reads == [expert.weights]


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), DeviceFull),
        (RuntimeError("CUDA error: unspecified launch failure"), DeviceLost),
    ],
)
def test_errors_of_a_gpu_are_ours(board, monkeypatch, error, meant):
    def fail(*arguments):
        raise error

    device, expert = on_gpu(board), board[0].experts["body-a"]
    device.load("pool", expert)
    with monkeypatch.context() as patch:
        patch.setattr(type(kinds.resolve("narrow")), "forward", fail)
        with pytest.raises(meant):
            judge(device, expert)
        with pytest.raises(ConfigError if meant is DeviceFull else meant):
            device.measure(expert)
    device.evict("pool", expert)
    monkeypatch.setattr(torch.nn.Module, "to", fail)
    with pytest.raises(meant):
        device.load("pool", expert)


class Keeping(FakeDriver):
    """Keeps what batches took until it is trimmed, as torch's allocator does."""

    def batch(self, images):
        self.trim()
        self.block = type("Block", (), {})()
        self.reserve(self.block, 3_000_000 + images * 10_000_000)

    def trim(self):
        self.block = None
        super().trim()


def test_what_batches_hold_of_a_gpu_is_seen_in_what_is_reserved(board, monkeypatch):
    driver, expert = Keeping(), board[0].experts["body-a"]
    kind = type(kinds.resolve("narrow"))
    forward = kind.forward

    def greedy(self, module, images):
        driver.batch(len(images))
        return forward(self, module, images)

    monkeypatch.setattr(kind, "forward", greedy)
    cost = on_gpu(board, driver).measure(expert)
    assert cost.batch_bytes(1) == pytest.approx(13_000_000, rel=0.01)
    assert cost.batch_bytes(4) >= 43_000_000 * 0.99
    assert cost.weights_bytes >= board[1].manifest(expert.weights).bytes
    assert cost.copy_s > 0
    assert cost.load_s > 0


def test_what_opens_its_own_files_or_is_of_another_network_is_refused(board):
    with pytest.raises(ConfigError, match="'onnx'"):
        EagerDevice(board[1], {"onnx": kinds.resolve("onnx")}, 1)
    expert = replace(board[0].experts["body-a"], labels=("ok", "bad", "worse"))
    with pytest.raises(StoreError, match="ok, bad, worse"):
        on_cpu(board).load("pool", expert)


def test_the_eager_baseline_stands_beside_ours(work, call):
    where = work / "rows.json"
    said = call(*SMALL, "--strategy", "samba-eager,samba", "--predict", "--work", work, "--json", where)
    assert said.status == 0
    rows = json.loads(where.read_text(encoding="utf-8"))
    ways = [row for row in rows if "(" not in row["strategy"]]
    assert [row["strategy"] for row in rows] == [
        *("samba-eager", "samba-eager (predicted)"),
        *("samba", "samba (predicted)"),
    ]
    assert [(row["images"], row["errors"]) for row in ways] == [(24, 0), (24, 0)]
    assert all(row["switches"] == row["disk_loads"] > 0 for row in ways)
    assert all(row["peak_reserved_bytes"] <= row["budget_bytes"] for row in ways)
    assert "samba: labels equal to those of samba-eager on 24 of 24 images (100.00%)" in " ".join(said.out.split())
    assert " x the images/s of samba-eager" in said.out
