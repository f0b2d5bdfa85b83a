"""`coe-bench scale` as a user calls it. That decisions do not grow is in tests/scenario/test_flat.py."""

from __future__ import annotations

from bench_rows import rows_of


def test_scale_prints_a_line_for_each_size_and_strategy(call) -> None:
    sizes = ("--experts", "40,80", "--requests", "50", "--strategy", "coserve,samba-parallel")
    said = call("scale", *sizes)
    assert said.status == 0
    lines = [line.split() for line in said.out.splitlines()]
    assert [line[:3] for line in lines[1:]] == [
        *(["coserve", "40", "50"], ["coserve", "80", "50"]),
        *(["samba-parallel", "40", "50"], ["samba-parallel", "80", "50"]),
    ]
    points = rows_of(call("scale", *sizes, "--json"))
    assert [(point["strategy"], point["experts"], point["requests"]) for point in points] == [
        *(("coserve", 40, 50), ("coserve", 80, 50)),
        *(("samba-parallel", 40, 50), ("samba-parallel", 80, 50)),
    ]
    for point in points:
        assert 0 < point["most_waiting"] <= 50 + 4
        assert point["switches"] > 0
        assert point["us_per_event"] > 0


def test_images_that_come_one_by_one_hardly_wait(call) -> None:
    sizes = ("--experts", "40", "--requests", "60", "--json")
    at_once, apart = (rows_of(call("scale", *sizes, "--every", every))[0] for every in ("0", "1000"))
    assert apart["most_waiting"] < at_once["most_waiting"]
