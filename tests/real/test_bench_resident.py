"""`coe-bench resident` as a user calls it: precisions of one expert in turn, beside a bare loop of the library."""

from __future__ import annotations

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
