"""The counts of a run, as timetables of verdicts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from lamp import LOGITS, lamp, picture
from tables import with_slow_rows

from coe.cli import inspect as inspect_cli
from coe.core import Failure, FailureKind, Finding, Request, Result, Verdict
from coe.pictures.photographs import Photograph
from coe.results.summary import OutcomeCounts, RunFigures, summarise
from coe.scheduler.demand import Drift
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
    summary = summarise(
        [result("SN10", "B", OK), result("SN2", "A", NG), result("", "A", REVIEW), result("SN2", "B", None)],
        RunFigures("demo"),
    )
    assert list(summary.boards.items()) == [("SN2", OutcomeCounts(ng=1, errors=1)), ("SN10", OutcomeCounts(ok=1))]
    assert list(summary.components.items()) == [
        ("A", OutcomeCounts(ng=1, review=1)),
        ("B", OutcomeCounts(ok=1, errors=1)),
    ]
    assert summary.total == OutcomeCounts(ok=1, ng=1, review=1, errors=1)
    assert summary.total.images == 4
    assert summary.total.good_share == 0.25
    assert summary.verdict is NG


def test_first_pass_yield_is_of_boards_and_good_images_are_no_yield():
    results = [
        *(result("SN1", "A", OK) for _ in range(8)),
        *(result("SN2", "A", verdict) for verdict in (OK, NG)),
        *(result("SN3", "A", verdict) for verdict in (OK, None)),
        result("SN4", "A", OK),
        result("", "A", OK),
    ]
    waiting = [Photograph(Path("x"), "A", "SN4"), Photograph(Path("y"), "A")]
    summary = summarise(results, RunFigures("demo"), waiting)
    assert (summary.boards_ok, summary.boards_decided, summary.board_fpy) == (1, 3, 1 / 3)  # SN4 is not decided yet
    assert summary.total.good_share == 12 / 14
    assert summary.without_serial == 2
    told = summary.to_json()
    assert [told[key] for key in ("board_fpy", "boards_ok", "boards_decided")] == [0.3333, 1, 3]
    assert (told["good_image_share"], told["images_without_serial"]) == (0.8571, 2)
    assert "first_pass_yield" not in told


@pytest.mark.parametrize("serial", ["", "SN1"])
def test_without_a_board_that_is_decided_there_is_no_yield(serial):
    summary = summarise([result(serial, "A", OK)], RunFigures("demo"), [Photograph(Path("x"), "A", serial)])
    assert (summary.boards_decided, summary.board_fpy, summary.to_json()["board_fpy"]) == (0, None, None)
    nothing = summarise([], RunFigures("demo"))
    assert (nothing.total.good_share, nothing.boards, nothing.to_json()["hit_ratio"]) == (None, {}, None)


def test_late_results_and_the_boards_that_they_are_of_are_counted():
    late = [replace(result(serial, "A", OK), late=True) for serial in ("SN10", "SN2", "SN2", "")]
    drift = (Drift("a", 0.25, 0.5),)
    summary = summarise([result("SN3", "A", OK), *late], RunFigures("demo", drift=drift))
    assert (summary.late, summary.late_boards) == (4, ("SN2", "SN10"))
    told = summary.to_json()
    assert (told["late"], told["late_boards"]) == (4, ["SN2", "SN10"])
    assert told["usage_drift"] == [{"expert": "a", "rules": 0.25, "estimated": 0.5}]


def test_warnings_stay_with_a_run_that_goes_on():
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


# A run carries what it was made with


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
    assert made.checksum in report
    assert "temperature: 2.0" in report
    assert "<b>as written" not in report
    assert "\\x0a" not in report, "lines are lines"
    assert "\nboard: lamps  # " in report
