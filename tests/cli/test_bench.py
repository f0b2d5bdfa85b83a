"""The benchmark command on small synthetic boards: real weights files, a real budget."""

import gc
import json
import re
from pathlib import Path

import pytest
from bench_rows import rows_of
from built_once import linked_copy
from tables import with_slow_rows

from coe.board import rules
from coe.errors import ConfigError
from coe.inspector.line_options import LineOptions
from coe.inspector.measuring import stored
from coe.lab.cli.bench_run import variants
from coe.lab.measured_run import all_at_once, measured_run, recorded
from coe.lab.rows import Heading
from coe.lab.workloads.synthetic import quarter_budget, synthetic_board, synthetic_pictures
from coe.profiler import remembered_device
from coe.profiler.measure import MeasuredExpert, Target, measure
from coe.runtime.cuda import torch_driver
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.store import kinds
from coe.store.store import Store

SMALL = ("--experts", "4", "--kind", "narrow", "--input", "32", "--requests", "24")


@pytest.mark.serial  # it looks at what the process grew by
def test_strategies_are_measured_side_by_side(synthetic_work, tmp_path, call):
    work = linked_copy(synthetic_work, tmp_path / "work")
    status, out, err = call("run", *SMALL, "--strategy", "coserve,samba", "--work", work, "--json", "-")
    assert status == 0
    rows = json.loads(out)
    assert [row["strategy"] for row in rows] == ["coserve", "samba"]
    for row in rows:
        assert (row["task"], row["order"], row["device"]) == ("4 x narrow", "iid", "cpu=1")
        assert (row["images"], row["errors"]) == (24, 0)
        assert 0 < row["peak_reserved_bytes"] <= row["budget_bytes"]
        assert row["switches"] == row["disk_loads"] > 0
        assert row["switch_ratio"] > 0
        assert 0 < row["p50_s"] <= row["p99_s"] <= row["makespan_s"]
        assert 0 < row["rss_growth_bytes"] < row["peak_rss_bytes"]
    assert rows[0]["switches"] <= rows[1]["switches"]
    # The table goes where it does not get into the way of the JSON.
    assert "4 x narrow" in err


def test_a_board_needs_no_images(tiny, tmp_path, call):
    board, store = tiny
    rows = tmp_path / "rows.json"
    small = ("--requests", "6", "--memory", "18MB")
    assert call("run", "--board", board, "--store", store, *small, "--json", rows).status == 0
    (row,) = json.loads(rows.read_text(encoding="utf-8"))
    assert (row["task"], row["order"], row["images"], row["errors"]) == ("tiny", "iid", 6, 0)


@pytest.mark.slow
def test_the_precision_stands_beside_the_strategy_and_second_looks_are_counted(work, call):
    mixed = ("--precision", "fp32,mixed", "--label-floor", "0.99", "--work", work)
    status, out, _ = call(
        "run", *SMALL, *mixed, "--strategy", "coserve", "--memory", "200MB", "--json", work / "mixed.json"
    )
    assert status == 0
    assert [row["strategy"] for row in json.loads((work / "mixed.json").read_text())] == ["coserve", "coserve mixed"]
    assert "coserve mixed: labels equal to those in fp32 on 24 of 24 images (100.00%)" in " ".join(out.split())
    assert re.search(r"coserve mixed: \d+ of 24 findings were run again in fp32, 0 changed", " ".join(out.split()))
    # A budget for little more than one expert does not hold one beside what q8 is converted into: others are chosen.
    assert call("run", *SMALL, *mixed).status == 0


HEADING = Heading("t", "o", "s")


def config_of(board, store, pictures, strategy):
    """A line of one executor, whose memory holds a quarter of the experts, with room for all pictures at once."""
    budget = quarter_budget(board, store)
    return LineOptions.of(board, store=store, memory=budget, profile=None, strategy=strategy, **all_at_once(pictures))


@pytest.mark.slow
def test_a_slow_disk_bounds_loads_and_is_known_to_the_costs(work):
    board, store = synthetic_board(work, kind="narrow", experts=4, input_size=32, seed=0)
    size = stored(store.manifest(f"{board.stem}/e0"), "fp32").bytes
    pictures = synthetic_pictures(board, 8, 0)
    line_options = config_of(board, store, pictures, "samba").but(disk_bandwidth=10 * size)
    one = measured_run(line_options, pictures, heading=HEADING)
    assert one.line_run.metrics.switches > 1
    assert one.line_run.metrics.switch_s >= 0.1 * one.line_run.metrics.switches
    assert one.line_run.metrics.wall_s >= one.line_run.metrics.switch_s
    assert one.line_run.costs("cpu", "e0").load_s >= 0.1
    assert one.row.machine.switch_ms >= one.row.machine.read_ms * 0.99


def test_a_kind_that_the_user_allows_is_compared(tmp_path, call):
    small = ("--experts", "2", "--input", "32", "--requests", "4", "--memory", "18MB", "--work", tmp_path)
    kind = ("--kind", "apps.demo.small:Small")
    refused = call("run", *kind, *small)
    assert refused.status == 2
    assert "--allow-kind apps" in " ".join(refused.err.split())
    rows = tmp_path / "rows.json"
    assert call("run", *kind, "--allow-kind", "apps", *small, "--json", rows).status == 0
    (row,) = json.loads(rows.read_text(encoding="utf-8"))
    assert (row["images"], row["errors"]) == (4, 0)


def test_images_come_at_their_rate_whatever_the_line_does(work):
    board, store = synthetic_board(work, kind="narrow", experts=4, input_size=32, seed=0)
    pictures = synthetic_pictures(board, 20, 0)
    one = measured_run(config_of(board, store, pictures, "coserve"), pictures, heading=HEADING, images_per_s=50)
    seen = recorded(one.line_run.trace)
    assert [arrival.request.id for arrival in seen.arrivals] == list(range(20))
    assert seen.arrivals[0].at_s == 0.0
    # They cannot come early, but on a busy machine the first may be decoded late.
    assert seen.arrivals[-1].at_s >= 19 / 50 - 0.3
    assert one.row.makespan_s >= seen.arrivals[-1].at_s


def test_kinds_that_open_their_own_files_are_refused_and_experts_made_in_what_each_device_runs():
    with pytest.raises(ConfigError, match="experts of kind 'onnx' open their own files"):
        remembered_device.HostOnlyDevice(
            Store(Path("nowhere")), {"onnx": object()}, 1, remembered=remembered_device.RememberedOutputs()
        )
    made = {executors: variants(executors, ["mixed"]) for executors in ("cpu=1", "cuda=2", "cuda:0=1,cuda:1=1,cpu=1")}
    assert list(made.values()) == [["fp32", "int8"], ["fp32", "fp16", "q8"], ["fp32", "int8", "fp16", "q8"]]


@pytest.mark.parametrize("form", with_slow_rows(["jpeg", "array"], fast=1))
def test_the_command_measures_the_host_alone(prepared_work, tmp_path, call, form):
    work = linked_copy(prepared_work, tmp_path / "work")
    said = call(
        "run", *SMALL, "--host-only", "--form", form, "--work", work, "--strategy", "late-binding", "--json", "-"
    )
    assert said.status == 0
    (row,) = json.loads(said.out)
    assert (row["images"], row["errors"]) == (24, 0)
    assert row["cpu_ms_per_image"] > 0
    assert row["images_per_s"] > 0


SMALL_GPU = ("switch", "--device", "cuda", "--kind", "narrow", "--input", "32", "--variant", "q8")


def test_switches_on_a_gpu_stand_beside_the_plain_copy_and_leave_no_device_memory_behind(driver, work, call):
    (row,) = rows_of(said := call(*SMALL_GPU, "--repeats", "1", "--work", work, "--json", "-"))
    assert (row["kind"], row["variant"]) == ("narrow", "q8")
    assert all(row[time] > 0 for time in ("read_s", "copy_s", "plain_copy_s", "activate_s", "ready_s"))
    assert row["batch_s"].keys() == row["switched_s"].keys() == {"1", "4", "8", "16"}
    assert "another x4" in said.err
    (row,) = rows_of(call(*SMALL_GPU, "--cycles", "8", "--experts", "4", "--work", work, "--json", "-"))
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
        assert call(*SMALL_GPU, "--repeats", "1", "--work", tmp_path, "--json", "-").status == 0
    finally:
        gc.enable()
    assert seen == [0]


def test_a_kind_is_measured_on_a_gpu_for_the_profile(driver, tiny):
    expert, store = rules.load(tiny[0]).experts["body-a"], Store(tiny[1])
    subject = MeasuredExpert(expert, kinds.resolve("narrow"), store, Target("cuda", 1))
    found = measure(subject, sizes=(1, 2, 4), limit_s=2.0)
    assert (found.device, found.kind, found.precision) == ("cuda", "narrow", "fp32")
    assert (found.copy_s > 0, found.load_s > 0) == (True, True)
    # What batches hold is held for good, and counted there.
    assert (found.activation_bytes, found.workspace_bytes, driver.reserved) == (0, 0, 0)


def test_without_a_gpu_it_is_said(call, monkeypatch):
    monkeypatch.setattr(torch_driver, "is_there", lambda: False)
    said = call(*SMALL_GPU).words
    assert ("no GPU" in said, "--device cpu" in said) == (True, True)


def test_what_a_gpu_does_not_run_is_refused_before_it_is_made(driver, call):
    said = call(*SMALL_GPU[:-1], "q8,int8")
    assert (said.status, "cuda runs fp32, fp16, q8" in said.words) == (2, True)
