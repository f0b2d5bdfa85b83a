"""The benchmark command on small synthetic boards: real weights files, a real budget."""

import json
import re

import pytest
import torch
from built_once import linked_copy

from coe.inspector.line_options import LineOptions
from coe.inspector.measuring import stored
from coe.lab.measured_run import all_at_once, measured_run, recorded
from coe.lab.rows import Heading
from coe.lab.workloads.synthetic import quarter_budget, synthetic_board, synthetic_pictures
from coe.profiler import line_run

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


def test_what_an_earlier_run_left_on_a_gpu_is_not_this_ones(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", calls.append)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", (5, 7).__getitem__)
    line_run.forget_device_peak()
    assert calls == ["empty", 0, 1]
    assert line_run.device_peak_bytes() == 12
