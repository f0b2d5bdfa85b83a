"""`coe-bench sim --boxes` and `coe-bench scale --boxes` as a user calls them."""

from __future__ import annotations

from bench_rows import rows_of

SMALL = ("sim", "--images", "100", "--strategy", "late-binding")


def test_there_is_a_row_for_each_number_of_boxes_placement_and_mishap(call) -> None:
    rows = rows_of(
        call(*SMALL, "--boxes", "2,3", "--expert-placement", "homes,hash", "--mishap", "none,lost", "--json", "-")
    )
    assert [(row["boxes"], row["placement"], row["mishap"]) for row in rows] == [
        (boxes, placement, mishap) for boxes in (2, 3) for placement in ("homes", "hash") for mishap in ("none", "lost")
    ]
    for row in rows:
        assert (row["images"], row["errors"]) == (100, 0)
        assert 0 < row["of_bound"] <= 1.05
        assert (row["experts_moved"] is None) == (row["mishap"] == "none")


def test_boards_come_in_equal_parts(call) -> None:
    said = call(*SMALL, "--boxes", "2", "--boards", "A,B", "--network", "1ms,100MB/s,1MB")
    assert said.status == 0, said.err
    assert "2 boards" in said.out


def test_the_head_of_many_boxes_is_measured(call) -> None:
    sizes = ("--experts", "200", "--requests", "500", "--every", "1", "--boxes", "8")
    (point,) = rows_of(call("scale", *sizes, "--json"))
    assert (point["experts"], point["boxes"], point["images"]) == (200, 8, 500)
    assert point["stages"] >= 500
    assert point["decisions_per_s"] > 0
    assert "200" in call("scale", *sizes).out
