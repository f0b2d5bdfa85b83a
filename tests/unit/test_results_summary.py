"""The counts of a run, as timetables of verdicts."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lamp import LOGITS, lamp, picture
from tables import with_slow_rows

from coe.cli import inspect as inspect_cli
from coe.cluster.cluster_engine import of_cluster
from coe.core import Failure, FailureKind, Finding, Request, Result, Verdict
from coe.lab.rows import Heading, Latencies, MachineFigures, Row, row, to_json, to_table
from coe.pictures.photographs import Photograph
from coe.results.metrics import Recorder
from coe.results.summary import OutcomeCounts, RunFigures, summarise
from coe.scheduler.demand import Drift
from coe.scheduler.events import Arrived, Evicted, Load, Loaded, Rejected, Reply, Why
from coe.scheduler.plan import PoolSpec
from coe.scheduler.pool import ModelPool
from coe.store.store import Store

OK, NG, REVIEW = Verdict.OK, Verdict.NG, Verdict.REVIEW


def result(serial, component, verdict):
    failure = None if verdict else Failure(FailureKind.IMAGE, "is empty")
    return Result(Request(0, component, "x", serial), verdict, (), 0.0, failure)


@pytest.mark.parametrize(
    ("verdicts", "missing", "expected"),
    [
        ((OK, OK), 0, OK),
        ((OK, REVIEW), 0, REVIEW),
        ((OK, REVIEW, NG), 0, NG),
        ((OK, None), 0, REVIEW),
        ((NG, None), 0, NG),
        ((OK, OK), 1, REVIEW),
        ((), 1, REVIEW),
    ],
)
def test_a_board_is_as_bad_as_its_worst_image(verdicts, missing, expected):
    results = [result("SN1", "R", verdict) for verdict in verdicts]
    summary = summarise(results, RunFigures("demo"), [Photograph(Path("x"), "R", "SN1")] * missing)
    assert summary.boards["SN1"].verdict is expected


def test_boards_and_components_in_natural_order():
    seen = [("SN10", "B", OK), ("SN2", "A", NG), ("", "A", REVIEW), ("SN2", "B", None)]
    summary = summarise([result(*one) for one in seen], RunFigures("demo"))
    assert list(summary.boards.items()) == [("SN2", OutcomeCounts(ng=1, errors=1)), ("SN10", OutcomeCounts(ok=1))]
    components = [("A", OutcomeCounts(ng=1, review=1)), ("B", OutcomeCounts(ok=1, errors=1))]
    assert list(summary.components.items()) == components
    assert summary.total == OutcomeCounts(ok=1, ng=1, review=1, errors=1)
    assert (summary.total.images, summary.total.good_share, summary.verdict) == (4, 0.25, NG)


def test_first_pass_yield_is_of_boards_and_good_images_are_no_yield():
    seen = {"SN1": [OK] * 8, "SN2": [OK, NG], "SN3": [OK, None], "SN4": [OK], "": [OK]}
    results = [result(serial, "A", verdict) for serial, verdicts in seen.items() for verdict in verdicts]
    waiting = [Photograph(Path("x"), "A", "SN4"), Photograph(Path("y"), "A")]
    summary = summarise(results, RunFigures("demo"), waiting)
    assert (summary.boards_ok, summary.boards_decided, summary.board_fpy) == (1, 3, 1 / 3)  # SN4 is not decided yet
    assert (summary.total.good_share, summary.without_serial) == (12 / 14, 2)
    told = summary.to_json()
    assert [told[key] for key in ("board_fpy", "boards_ok", "boards_decided")] == [0.3333, 1, 3]
    assert (told["good_image_share"], told["images_without_serial"]) == (0.8571, 2)


@pytest.mark.parametrize("serial", ["", "SN1"])
def test_without_a_board_that_is_decided_there_is_no_yield(serial):
    summary = summarise([result(serial, "A", OK)], RunFigures("demo"), [Photograph(Path("x"), "A", serial)])
    assert (summary.boards_decided, summary.board_fpy, summary.to_json()["board_fpy"]) == (0, None, None)
    nothing = summarise([], RunFigures("demo"))
    assert (nothing.total.good_share, nothing.boards, nothing.to_json()["hit_ratio"]) == (None, {}, None)


def test_late_results_and_their_boards_are_counted_and_warnings_stay_with_a_run_that_goes_on():
    late = [replace(result(serial, "A", OK), late=True) for serial in ("SN10", "SN2", "SN2", "")]
    drift = (Drift("a", 0.25, 0.5),)
    summary = summarise([result("SN3", "A", OK), *late], RunFigures("demo", drift=drift))
    assert (summary.late, summary.late_boards) == (4, ("SN2", "SN10"))
    told = summary.to_json()
    assert (told["late"], told["late_boards"]) == (4, ["SN2", "SN10"])
    assert told["usage_drift"] == [{"expert": "a", "rules": 0.25, "estimated": 0.5}]
    now = RunFigures("demo", warnings=("nobody would notice",))
    for before in (None, RunFigures("demo", answered=3), RunFigures("demo", answered=3, warnings=now.warnings)):
        figures = now.after(before)
        assert summarise([], figures).to_json()["warnings"] == ["nobody would notice"]


def test_second_looks_are_counted_beside_the_findings_that_were_made():
    def findings(*labels):
        said = tuple(Finding(expert, "bf16", label, 1.0) for expert, label in labels)
        return Result(Request(0, "R", "x"), OK, said, 0.0)

    results = [
        findings(("a", "ok"), ("a@fp32", "bad"), ("b", "ok")),
        findings(("b", "ok"), ("b@fp32", "ok")),
        findings(("a", "ok")),
    ]
    summary = summarise(results, RunFigures("demo", precision="half"))
    assert str(summary.looks) == "2 of 4 findings were run again in fp32, 1 changed"
    row = summary.to_json()
    assert [row[key] for key in ("precision", "findings", "escalated", "changed")] == ["half", 4, 2, 1]


@pytest.mark.parametrize(
    ("good", "bad", "share"),
    with_slow_rows([(20_001, 1, 0.9999), (3, 1, 0.75), (2, 0, 1), (1, 20_001, 0.0001)], fast=3),
)
def test_a_share_in_the_summary_is_one_only_if_all_are_good(good, bad, share):
    results = [result(f"SN{n}", "R", OK if n < good else NG) for n in range(good + bad)]
    summary = summarise(results, RunFigures("demo")).to_json()
    assert summary["board_fpy"] == summary["good_image_share"] == share
    assert summary["components"]["R"]["good_image_share"] == share


def test_serials_and_components_of_several_products_stand_behind_their_names():
    """Boards of two products may carry one serial, and name their components alike."""
    both = [
        replace(each, request=replace(each.request, board=board), late=True)
        for board, each in (("a", result("SN1", "R", OK)), ("b", result("SN1", "R", NG)))
    ]
    summary = summarise(both, RunFigures("a + b"))
    assert summary.boards == {"a/SN1": OutcomeCounts(ok=1), "b/SN1": OutcomeCounts(ng=1)}
    assert summary.components == {"a/R": OutcomeCounts(ok=1), "b/R": OutcomeCounts(ng=1)}
    assert (summary.products, summary.late_boards, summary.boards_ok) == (("a", "b"), ("a/SN1", "b/SN1"), 1)
    assert summary.to_json()["products"] == ["a", "b"]
    alone = summarise(both[:1], RunFigures("a"))
    assert (list(alone.boards), list(alone.components), "products" in alone.to_json()) == (["SN1"], ["R"], False)


BOARD = """
board: lamps  # <b>as written</b>
experts:
  lamp: {kind: onnx, labels: [dark, bright], input: 32}
components:
  L: {inspect: lamp, then: {dark: NG, bright: OK}}
"""


def test_a_run_and_its_report_carry_board_thresholds_and_versions(tmp_path, call):
    (tmp_path / "lamps.yaml").write_text(BOARD, encoding="utf-8")
    thresholds = "board: lamps\nexperts:\n  lamp: {temperature: 2.0}\n"
    (tmp_path / "lamps.calibration.yaml").write_text(thresholds, encoding="utf-8")
    lamp(tmp_path / "lamp.onnx")
    store = Store(tmp_path / "store")
    for source in ("first", "second"):
        made = store.put("lamps/lamp", kind="onnx", labels=["dark", "bright"], input_size=32,
                         file=tmp_path / "lamp.onnx", source=source, outputs=LOGITS)  # fmt: skip
    picture(tmp_path / "images" / "L" / "a.png", 240)
    at = ("--store", store.root, "--memory", "100MB", "--profile", "none", "--out", tmp_path / "run")
    said = call("--board", tmp_path / "lamps.yaml", "--images", tmp_path / "images", *at, command=inspect_cli)
    assert said.status in (0, 1), said.words
    used = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["used"]
    assert (used["rules"], used["calibration"]) == (BOARD, thresholds)
    (expert,) = used["experts"]
    assert (expert["id"], expert["version"], expert["source"]) == ("lamps/lamp", 2, "second")
    assert expert["checksum"] == made.checksum
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert (made.checksum in report, "temperature: 2.0" in report, "<b>as written" in report) == (True, True, False)
    assert "\\x0a" not in report, "lines are lines"
    assert "\nboard: lamps  # " in report


def came(id, **times):
    return Arrived(Request(id, "R", **times))


def refused(id, **times):
    return Rejected(Request(id, "R", **times), Failure(FailureKind.IMAGE, "no picture"))


@pytest.mark.parametrize(
    ("events", "wall_s"),
    [
        # It begins when its first image is handed in; the second was handed in before the first, and decoded after it.
        ([(5.0, came(0, submitted_s=2.0)), (6.0, came(1, submitted_s=1.0)), (9.0, refused(2, submitted_s=8.0))], 8.0),
        # In virtual time it begins when its first image arrives.
        ([(5.0, came(0)), (9.0, refused(1))], 4.0),
        # What is loaded for images to come does not make it longer.
        ([(5.0, came(0)), (6.0, refused(1)), (7.0, Evicted("cpu0", "b")), (9.0, Loaded("cpu0", "a"))], 1.0),
    ],
)
def test_a_run_lasts_from_its_first_image_to_its_last_answer(events, wall_s):
    recorder = Recorder({})
    recorder.observe(None, [], 0.0)
    for now, event in events:
        recorder.observe(event, [], now)
    assert recorder.metrics().wall_s == wall_s


def test_boxes_count_their_stages_and_an_expert_that_went_with_its_device_is_a_switch():
    none = Recorder({}).metrics()
    head = replace(none, images=3, ok=2, ng=1, wall_s=2.0, control_s=0.5)
    boxes = [replace(none, images=4, ok=4, stages=4, switches=2, control_s=0.1, wall_s=9.0, pace=p) for p in (1.0, 1.5)]
    counted = of_cluster(head, boxes)
    assert counted == replace(head, stages=8, switches=4, control_s=0.7, pace=1.5)
    assert of_cluster(head, []) == head
    pool = ModelPool(PoolSpec("cuda0", "cuda", 1000, 0))
    recorder = Recorder({"cuda0": pool})
    pool.plan("a", 10, Why.DEMAND)
    assert pool.reserve("a")
    recorder.observe(None, [Load("cuda0", "a", Why.DEMAND)], 0.0)
    pool.commit("a")
    pool.leave("a")
    pool.release("a")  # the loss of the device was decided on together with the end of the load
    recorder.observe(Loaded("cuda0", "a", 0.5), [], 1.0)
    assert (recorder.metrics().switches, recorder.metrics().switch_s) == (1, 0.5)


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
    return {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}


def reply(id, latency_s):
    return Reply(Result(Request(id, "C"), Verdict.OK, (), latency_s))


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
    assert (both["not inspected"], both["ratio"]) == (["", "3"], ["", "1.20"])
    assert both["peak RSS"] == ["", "3.0 MiB (+1.0 MiB)"]
    assert "device memory" not in both


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.sampled_from([0.0, 0.25, 0.5, 0.99, 1.0]))
def test_quantiles_are_those_of_all_replies(latencies, share):
    seen = Latencies()
    for id, latency_s in enumerate(latencies):
        seen.observe(None, [reply(id, latency_s)], 0.0)
    assert seen.quantile_s(share) == pytest.approx(float(np.quantile(latencies, share)))
    assert min(latencies) <= seen.quantile_s(share) <= max(latencies)
