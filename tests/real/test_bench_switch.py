"""`coe-bench switch` as a user calls it, on a small network: what it measures, and what it leaves behind."""

import pytest
from bench_rows import rows_of

pytestmark = pytest.mark.usefixtures("disk_is_waited_for")

SMALL = ("switch", "--kind", "narrow", "--input", "32")
VARIANTS = ["as trained", "fp32", "int8"]


def test_every_variant_stands_beside_the_plain_limits_of_the_same_run(work, call):
    rows = rows_of(said := call(*SMALL, "--repeats", "1", "--work", work, "--json", "-"))
    assert [(row["kind"], row["variant"]) for row in rows] == [("narrow", variant) for variant in VARIANTS]
    sizes = [row["bytes"] for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] < 0.3 * sizes[1]
    for row in rows:
        assert row["fp32_bytes"] == sizes[0]
        for time in ("read_warm_s", "load_warm_s", "ready_s", "copy_s", "eager_s"):
            assert row[time] > 0
        # Where the system does not forget a file on request, nothing is said of a cold one.
        assert (row["read_cold_s"] is None) == (row["load_cold_s"] is None)
    # The table goes where it does not get into the way of the JSON.
    assert "eager" in said.err


def test_loads_and_evictions_in_turn_leave_no_descriptor_open(work, call):
    options = ("--variant", "fp32", "--cycles", "8", "--experts", "4", "--work", work, "--json", "-")
    (row,) = rows_of(call(*SMALL, *options))
    assert (row["kind"], row["variant"], row["cycles"], row["experts"]) == ("narrow", "fp32", 8, 4)
    assert row["descriptors_after"] == row["descriptors_before"] > 0
    assert "rss_slope_bytes" in row


def test_an_expert_in_int8_is_compared_with_a_session_of_the_library_itself(work, call):
    rows = rows_of(call(*SMALL, "--variant", "int8", "--repeats", "1", "--work", work, "--json", "-"))
    trained, small = rows
    assert (trained["variant"], small["variant"]) == ("as trained", "int8")
    assert small["bytes"] < 0.3 * trained["bytes"]
    for time in ("read_warm_s", "load_warm_s", "read_warm_cpu_s", "load_warm_cpu_s"):
        assert small[time] > 0
