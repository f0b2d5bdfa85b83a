"""`coe-bench switch --device cuda` on a fake GPU: its figures are none, but they are all there."""

import gc

import pytest
from bench_rows import rows_of

from coe.board import rules
from coe.lab.cli.bench_run import variants
from coe.profiler.measure import MeasuredExpert, Target, measure
from coe.runtime.cuda import torch_driver
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.store import kinds
from coe.store.store import Store

SMALL = ("switch", "--device", "cuda", "--kind", "narrow", "--input", "32", "--variant", "q8")


def test_switches_on_a_gpu_stand_beside_the_plain_copy(driver, work, call):
    (row,) = rows_of(said := call(*SMALL, "--repeats", "1", "--work", work, "--json", "-"))
    assert (row["kind"], row["variant"]) == ("narrow", "q8")
    assert all(row[time] > 0 for time in ("read_s", "copy_s", "plain_copy_s", "activate_s", "ready_s"))
    assert row["batch_s"].keys() == row["switched_s"].keys() == {"1", "4", "8", "16"}
    assert "another x4" in said.err


def test_switches_in_turn_leave_no_device_memory_behind(driver, work, call):
    (row,) = rows_of(call(*SMALL, "--cycles", "8", "--experts", "4", "--work", work, "--json", "-"))
    assert row["reserved_after"] == row["reserved_before"] > 0
    assert row["peak_reserved"] <= row["budget"]


@pytest.mark.slow
def test_a_line_opens_with_nothing_left_of_what_was_measured_before(driver, tmp_path, call, monkeypatch):
    seen = []
    prepare = CudaDevice.prepare

    def watched(self, *arguments):
        seen.append(driver.reserved)
        return prepare(self, *arguments)

    monkeypatch.setattr(CudaDevice, "prepare", watched)
    gc.disable()
    try:
        assert call(*SMALL, "--repeats", "1", "--work", tmp_path, "--json", "-").status == 0
    finally:
        gc.enable()
    assert seen == [0]


def test_a_kind_is_measured_on_a_gpu_for_the_profile(driver, tmp_path, tiny):
    board, store = tiny
    expert = rules.load(board).experts["body-a"]
    found = measure(
        MeasuredExpert(expert, kinds.resolve("narrow"), Store(store), Target("cuda", 1)), sizes=(1, 2, 4), limit_s=2.0
    )
    assert (found.device, found.kind, found.precision) == ("cuda", "narrow", "fp32")
    assert found.copy_s > 0
    assert found.load_s > 0
    # What batches hold is held for good, and counted there.
    assert (found.activation_bytes, found.workspace_bytes) == (0, 0)
    assert driver.reserved == 0


def test_without_a_gpu_it_is_said(call):
    if torch_driver.is_there():
        pytest.skip("there is a GPU")
    said = call(*SMALL).words
    assert "there is no GPU that torch can use" in said
    assert "--device cpu" in said
    assert "--device: there is no 'cud'; did you mean 'cuda'" in call("switch", "--device", "cud").words


def test_what_a_gpu_does_not_run_is_refused_before_it_is_made(driver, call):
    said = call(*SMALL[:-1], "q8,int8")
    assert (said.status, "cuda runs fp32, fp16, q8" in said.words) == (2, True)


def test_experts_are_made_in_what_each_device_runs():
    made = {executors: variants(executors, ["mixed"]) for executors in ("cpu=1", "cuda=2", "cuda:0=1,cuda:1=1,cpu=1")}
    assert list(made.values()) == [["fp32", "int8"], ["fp32", "fp16", "q8"], ["fp32", "int8", "fp16", "q8"]]
