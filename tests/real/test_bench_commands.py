"""`coe-bench resident`, `scale` and `sim --boxes` as a user calls them."""

import pytest
from bench_rows import rows_of


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


def test_an_input_size_that_is_none_is_refused(call):
    said = call("resident", "--kind", "yolov5n:big")
    assert said.status == 2
    assert "yolov5n:big" in said.words


# `coe-bench scale` as a user calls it


def test_scale_prints_a_line_for_each_size_and_strategy(call) -> None:
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


def test_images_that_come_one_by_one_hardly_wait(call) -> None:
    sizes = ("--experts", "40", "--requests", "60", "--json", "-")
    at_once, apart = (rows_of(call("scale", *sizes, "--every", every))[0] for every in ("0", "1000"))
    assert apart["most_waiting"] < at_once["most_waiting"]


# `coe-bench sim --boxes` as a user calls it


SMALL_BOXES = ("sim", "--images", "100", "--strategy", "late-binding")


def test_there_is_a_row_for_each_number_of_boxes_and_mishap(call) -> None:
    rows = rows_of(call(*SMALL_BOXES, "--boxes", "2,3", "--mishap", "none,lost", "--json", "-"))
    assert [(row["boxes"], row["mishap"]) for row in rows] == [
        (boxes, mishap) for boxes in (2, 3) for mishap in ("none", "lost")
    ]
    for row in rows:
        assert (row["images"], row["errors"]) == (100, 0)
        assert 0 < row["of_bound"] <= 1.05
        assert (row["experts_moved"] is None) == (row["mishap"] == "none")


def test_boards_come_in_equal_parts(call) -> None:
    said = call(*SMALL_BOXES, "--boxes", "2", "--boards", "A,B")
    assert said.status == 0, said.err
    assert "2 boards" in said.out
