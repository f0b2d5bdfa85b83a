"""The commands of `coe-bench` as a user calls them: what comes out, and what is said of what is wrong."""

import pytest
from bench_rows import rows_of

from coe.lab.simulated import all_contenders


@pytest.mark.slow
def test_each_precision_stands_beside_fp32_and_int8_beside_the_bare_loop(work, call):
    said = call(
        *("resident", "--kind", "narrow:32", "--precision", "fp32,mixed", "--images", "4", "--repeats", "1"),
        *("--work", work, "--json", "-"),
    )  # fmt: skip
    exact, mixed = rows_of(said)
    assert (exact["precision"], exact["variants"], exact["images_over_fp32"]) == ("fp32", ["fp32"], 1.0)
    assert mixed["images_over_fp32"] == pytest.approx(exact["line_ms"] / mixed["line_ms"])
    for row in (exact, mixed):
        assert row["line_ms"] >= row["device_ms"] > 0
        # What is quickest depends on the machine.
        assert (row["bare_ms"] is not None) == ("int8" in row["variants"])
    assert "device/bare" in said.err


def test_scale_prints_a_line_for_each_size_and_strategy(call):
    sizes = ("--experts", "40,80", "--requests", "50", "--strategy", "coserve,samba-parallel")
    said = call("scale", *sizes)
    assert said.status == 0
    lines = [line.split() for line in said.out.splitlines()]
    assert [line[:3] for line in lines[1:]] == [
        *(["coserve", "40", "50"], ["coserve", "80", "50"]),
        *(["samba-parallel", "40", "50"], ["samba-parallel", "80", "50"]),
    ]
    points = rows_of(call("scale", *sizes, "--json", "-"))
    assert [(point["strategy"], point["experts"], point["requests"]) for point in points] == [
        *(("coserve", 40, 50), ("coserve", 80, 50)),
        *(("samba-parallel", 40, 50), ("samba-parallel", 80, 50)),
    ]
    for point in points:
        assert 0 < point["most_waiting"] <= 50 + 4
        assert point["switches"] > 0
        assert point["us_per_event"] > 0


def test_images_that_come_one_by_one_hardly_wait(call):
    sizes = ("--experts", "40", "--requests", "60", "--json", "-")
    at_once, apart = (rows_of(call("scale", *sizes, "--every", every))[0] for every in ("0", "1000"))
    assert apart["most_waiting"] < at_once["most_waiting"]


SMALL_BOXES = ("sim", "--images", "100", "--strategy", "late-binding")


def test_there_is_a_row_for_each_number_of_boxes_and_mishap_and_boards_come_in_equal_parts(call):
    rows = rows_of(call(*SMALL_BOXES, "--boxes", "2,3", "--mishap", "none,lost", "--json", "-"))
    assert [(row["boxes"], row["mishap"]) for row in rows] == [
        (boxes, mishap) for boxes in (2, 3) for mishap in ("none", "lost")
    ]
    for row in rows:
        assert (row["images"], row["errors"]) == (100, 0)
        assert 0 < row["of_bound"] <= 1.05
        assert (row["experts_moved"] is None) == (row["mishap"] == "none")
    said = call(*SMALL_BOXES, "--boxes", "2", "--boards", "A,B")
    assert said.status == 0, said.err
    assert "2 boards" in said.out


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch, tmp_path):
    """Run everything in a folder of its own."""
    monkeypatch.chdir(tmp_path)


def test_mixed_runs_stand_next_to_those_in_fp32_and_what_was_chosen_is_said(call):
    precisions = ("--precision", "fp32,mixed", "--doubtful", "0", "--images", "200")
    said = call("sim", "--strategy", "late-binding", *precisions, "--json", "-")
    plain, mixed = rows_of(said)
    assert (plain["strategy"], mixed["strategy"]) == ("late-binding", "late-binding mixed")
    assert mixed["images_per_s"] > plain["images_per_s"]
    assert ("precision mixed: 372 in q8" in said.err, "the 372 experts take" in said.err) == (True, True)


@pytest.mark.slow
def test_rows_as_json_go_to_standard_output_and_the_table_out_of_the_way(call, tmp_path):
    said = call("sim", "--images", "20", "--strategy", "all", "--device", "numa-rtx3080ti,uma-m2", "--json", "-")
    rows = rows_of(said)
    strategies = [row["strategy"] for row in rows if row["device"] == "uma-m2"]
    assert len(rows) == 2 * len(all_contenders())
    assert {"samba", "samba-fifo", "samba-parallel", "coserve", "coserve-paper-default", "coserve-none"} < set(
        strategies
    )
    assert strategies == [row["strategy"] for row in rows if row["device"] == "numa-rtx3080ti"]
    for row in rows:
        assert (row["task"], row["order"], row["images"], row["errors"]) == ("A1", "iid", 20, 0)
        assert row["switches"] >= row["lower_bound_switches"]
        assert row["makespan_s"] >= row["lower_bound_makespan_s"]
    assert ("coserve-paper-default" in said.err, "task A1, order iid" in said.words) == (True, True)


@pytest.mark.slow
def test_a_row_for_every_task_order_tail_box_and_strategy(call):
    said = call("sim", "--task", "A1, B1", "--strategy", "coserve", "--device", "uma-m2", "--json", "-")
    assert [(row["task"], row["order"], row["images"]) for row in rows_of(said)] == [
        ("A1", "iid", 2500),
        ("B1", "iid", 2500),
    ]
    said = call(*("sim", "--order", "all", "--tail", "board, steep", "--strategy", "coserve-em-ra", "--json", "-"))
    assert [(row["task"], row["order"]) for row in rows_of(said)] == [
        *(("A1", "iid"), ("A1 steep", "iid")),
        *(("A1", "boards"), ("A1 steep", "boards")),
    ]


def test_seeds_of_a_board_differ_and_repeat(call):
    drawn = ("sim", "--board", "A", "--images", "60", "--strategy", "coserve,samba", "--device", "uma-m2")
    box = ("--seeds", "3", "--seed", "4", "--json", "-")
    rows = rows_of(call(*drawn, *box))
    assert [(row["seed"], row["strategy"]) for row in rows] == [
        (seed, name) for seed in (4, 5, 6) for name in ("coserve", "samba")
    ]
    assert rows_of(call(*drawn, "--seed", "5", "--json", "-"))[0]["makespan_s"] == rows[2]["makespan_s"]
    assert len({row["makespan_s"] for row in rows[::2]}) == 3


# `coe-bench switch` as a user calls it, on a small network: what it measures, and what it leaves behind


SWITCH = ("switch", "--kind", "narrow", "--input", "32")
VARIANTS = ["as trained", "fp32", "int8"]


@pytest.mark.usefixtures("disk_is_waited_for")
@pytest.mark.slow
def test_every_variant_stands_beside_the_plain_limits_of_the_same_run(work, call):
    rows = rows_of(said := call(*SWITCH, "--repeats", "1", "--work", work, "--json", "-"))
    assert [(row["kind"], row["variant"]) for row in rows] == [("narrow", variant) for variant in VARIANTS]
    sizes = [row["bytes"] for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] < 0.3 * sizes[1]
    for row in rows:
        assert row["fp32_bytes"] == sizes[0]
        for time in (
            "read_warm_s",
            "load_warm_s",
            "read_warm_cpu_s",
            "load_warm_cpu_s",
            "ready_s",
            "copy_s",
            "eager_s",
        ):
            assert row[time] > 0
        # Where the system does not forget a file on request, nothing is said of a cold one.
        assert (row["read_cold_s"] is None) == (row["load_cold_s"] is None)
    # The table goes where it does not get into the way of the JSON.
    assert "eager" in said.err


@pytest.mark.usefixtures("disk_is_waited_for")
def test_loads_and_evictions_in_turn_leave_no_descriptor_open(work, call):
    options = ("--variant", "fp32", "--cycles", "8", "--experts", "4", "--work", work, "--json", "-")
    (row,) = rows_of(call(*SWITCH, *options))
    assert (row["kind"], row["variant"], row["cycles"], row["experts"]) == ("narrow", "fp32", 8, 4)
    assert row["descriptors_after"] == row["descriptors_before"] > 0
    assert "rss_slope_bytes" in row
