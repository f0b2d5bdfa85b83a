"""Rows as JSON and as a table, the same columns for both worlds."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.core import Request, Result, Verdict
from coe.lab.rows import Heading, Latencies, MachineFigures, Row, row, to_json, to_table
from coe.results.metrics import Recorder
from coe.scheduler.events import Reply

COLUMNS = [
    *("task", "order", "device", "strategy"),
    *("images_per_s", "switches", "disk_loads", "hit_ratio", "p50_s", "p99_s", "makespan_s"),
    *("scheduling_us_per_request", "lower_bound_switches", "lower_bound_makespan_s"),
]
LATER = ["in_order_switches", "speculated", "speculated_wasted"]
ROW = Row(
    *("A1", "iid", "uma-m2", "coserve"),
    **{"images": 2500, "errors": 0, "images_per_s": 16.0, "switches": 1300, "disk_loads": 300, "hit_ratio": 0.875},
    **{"p50_s": 1.5, "p99_s": 120.0, "makespan_s": 156.25, "scheduling_us_per_request": 32.0},
    **{"lower_bound_switches": 240, "lower_bound_makespan_s": 120.0},
)
FIGURES = MachineFigures(
    **{"switch_ms": 12.0, "read_ms": 10.0, "switch_ratio": 1.2, "control_share": 0.01, "cpu_ms_per_image": 2.5},
    **{"peak_reserved_bytes": 1 << 20, "budget_bytes": 2 << 20, "peak_rss_bytes": 3 << 20, "rss_growth_bytes": 1 << 20},
)


def cells(table):
    """The cells below each heading."""
    return {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}


def reply(id, latency_s):
    return Reply(Result(Request(id, "C"), Verdict.OK, (), latency_s))


# JSON


def test_json_has_the_columns_in_their_order_and_a_run_without_images_divides_by_nothing():
    unbounded = replace(ROW, lower_bound_switches=None, lower_bound_makespan_s=None)
    plain, measured, without = json.loads(to_json([ROW, replace(ROW, machine=FIGURES), unbounded]))
    assert list(plain) == list(without) == [*COLUMNS, *LATER, "images", "errors"]
    assert list(measured)[: len(plain)] == list(plain)
    assert (measured["peak_rss_bytes"], measured["peak_device_bytes"]) == (3 << 20, None)
    assert not {"machine"} & {*plain, *measured}
    assert {name: plain[name] for name in COLUMNS} == {name: getattr(ROW, name) for name in COLUMNS}
    assert without["lower_bound_switches"] is without["lower_bound_makespan_s"] is None
    assert json.loads(to_json([])) == []
    empty = row(Heading("t", "o", "s"), "d", Recorder({}).metrics(), Latencies())
    assert (empty.images, empty.images_per_s, empty.scheduling_us_per_request, empty.hit_ratio) == (0, 0.0, 0.0, 1.0)
    assert empty.p99_s == 0.0


# Table


def test_what_all_rows_have_in_common_is_the_title_and_columns_without_figures_are_left_out():
    table = to_table([ROW, replace(ROW, strategy="samba", task="B1")])
    assert table.title == "order iid, device uma-m2"
    assert cells(table) == {"task": ["A1", "B1"], "strategy": ["coserve", "samba"]} | {
        heading: [figure] * 2
        for heading, figure in [
            *(("images/s", "16.00"), ("switches", "1,300"), ("at least", "240"), ("from disk", "300")),
            *(("hit ratio", "87.5%"), ("p50", "1.50 s"), ("p99", "120.00 s"), ("makespan", "156.2 s")),
            *(("at least ", "120.0 s"), ("scheduling", "32 µs")),
        ]
    }
    rows = [ROW, replace(ROW, strategy="samba", switches=99)]
    flat, upright = to_table(rows), to_table(rows, upright=True)
    assert flat.title == upright.title
    lines = [list(cells(flat)), *map(list, zip(*cells(flat).values(), strict=True))]
    turned = [list(cells(upright)), *map(list, zip(*cells(upright).values(), strict=True))]
    assert [list(line) for line in zip(*lines, strict=True)] == turned
    assert turned[0] == ["strategy", "coserve", "samba"]
    assert [column.justify for column in upright.columns] == ["left", "right", "right"]
    unbounded = replace(ROW, lower_bound_switches=None, lower_bound_makespan_s=None)
    assert not {"at least", "at least ", "not inspected", "switch"} & set(cells(to_table([unbounded])))
    both = cells(to_table([ROW, replace(unbounded, errors=3, machine=FIGURES)]))
    assert both["at least"] == ["240", ""]
    # A bound of nothing is a figure, and an empty word keeps its column.
    assert cells(to_table([replace(ROW, lower_bound_switches=0, switches=0)]))["at least"] == ["0"]
    assert cells(to_table([replace(ROW, order=""), ROW]))["order"] == ["", "iid"]
    assert both["not inspected"] == ["", "3"]
    assert both["ratio"] == ["", "1.20"]
    assert both["peak RSS"] == ["", "3.0 MiB (+1.0 MiB)"]
    assert "device memory" not in both


# Latencies


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.sampled_from([0.0, 0.25, 0.5, 0.99, 1.0]))
def test_quantiles_are_those_of_all_replies(latencies, share):
    seen = Latencies()
    for id, latency_s in enumerate(latencies):
        seen.observe(None, [reply(id, latency_s)], 0.0)
    assert seen.quantile_s(share) == pytest.approx(float(np.quantile(latencies, share)))
    assert min(latencies) <= seen.quantile_s(share) <= max(latencies)
