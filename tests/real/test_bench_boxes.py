"""`coe-bench sim --boxes` and `coe-bench scale --boxes` as a user calls them."""

from __future__ import annotations

import json

import pytest

SMALL = ("sim", "--images", "100", "--strategy", "late-binding")


def rows_of(said) -> list[dict[str, object]]:
    assert said.status == 0, said.err
    rows = json.loads(said.out)
    assert isinstance(rows, list)
    return rows


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--boxes", "0"), "'0' is not a number of boxes from 1 to 1,024"),
        (("--boxes", "many"), "'many' is not a number of boxes"),
        (("--boxes", "1", "--mishap", "lost"), "give at least 2 boxes"),
        (("--boxes", "2", "--expert-placement", "hsah"), "--expert-placement: there is no 'hsah'"),
        (("--boxes", "2", "--mishap", "fire"), "--mishap: there is no 'fire'"),
        (("--boxes", "2", "--network", "fast"), "write a latency, a bandwidth and a size"),
        (("--boxes", "2", "--network", "fast,1GB/s,1MB"), "'fast' is not a time"),
        (("--boxes", "2", "--boards", "A,A"), "names a board twice"),
        (("--boxes", "2", "--boards", "A", "--order", "boards"), "--order is for tasks"),
        (("--boxes", "2", "--cold"), "--cold is for one box"),
        (("--boxes", "2", "--plot", "out"), "--plot is for one box"),
        (("--boards", "A"), "--boards is for several boxes, and there is no --boxes"),
        (("--expert-placement", "hash"), "--expert-placement is for several boxes"),
    ],
)
def test_what_is_wrong_is_said(call, options: tuple[str, ...], message: str) -> None:
    said = call(*SMALL, *options)
    assert said.status != 0
    assert message in " ".join(said.err.split())


def test_the_head_of_many_boxes_is_measured(call) -> None:
    sizes = ("--experts", "200", "--requests", "500", "--every", "1", "--boxes", "8")
    (point,) = rows_of(call("scale", *sizes, "--json"))
    assert (point["experts"], point["boxes"], point["images"]) == (200, 8, 500)
    assert point["stages"] >= 500
    assert point["decisions_per_s"] > 0
    assert "200" in call("scale", *sizes).out
    assert "add --every" in call("scale", *sizes[:4], "--boxes", "8").err
    assert "leave out --strategy" in call("scale", *sizes, "--strategy", "coserve").err
