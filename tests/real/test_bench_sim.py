"""`coe-bench sim` as a user calls it: what comes out, and what is said of what is wrong."""

import json
from pathlib import Path

import pytest
from bench_rows import rows_of

from coe.lab.contenders import all_contenders
from coe.lab.workloads import trace_file
from coe.lab.workloads.workload import task

BOX = """\
about: "a box"
disk: [1GB/s, "made up"]
memories:
  host: {size: [MEMORY, "made up"], reserved: [1MB, "made up"]}
kinds:
  resnet101: &kind {input: [224, "made up"], weights: [100MB, "made up"], open_ms: [50, "made up"]}
  yolov5m: *kind
  yolov5l: *kind
devices:
  cpu:
    memory: host
    scaling: [[1.0], "made up"]
    kinds:
      resnet101: &cost
        per_image_ms: [10, "made up"]
        base_ms: [5, "made up"]
        activation: [1MB, "made up"]
        max_batch: [4, "made up"]
      yolov5m: *cost
      yolov5l: *cost
configurations:
  best: {executors: [{cpu: 2}, "made up"]}
  paper-default: {executors: [{cpu: 2}, "made up"], expert_share: [{cpu: 0.75}, "made up"]}
"""


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run everything in a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A trace of the first 150 requests of A1."""
    path = tmp_path / "small.jsonl"
    trace_file.write(path, task("A1", requests=150))
    return path


# What comes out


def test_results_that_are_due_are_counted_where_they_are_late(call) -> None:
    times = ("--images", "800", "--within", "20s", "--max-wait", "5min")
    said = call("sim", "--strategy", "coserve,line", *times, "--json", "-")
    coserve, line = json.loads(said.out)
    assert 0 < line["late"] < coserve["late"] < coserve["images"]


def test_mixed_runs_stand_next_to_those_in_fp32_and_what_was_chosen_is_said(call) -> None:
    precisions = ("--precision", "fp32,mixed", "--doubtful", "0", "--images", "600")
    said = call("sim", "--strategy", "late-binding", *precisions, "--json", "-")
    plain, mixed = rows_of(said)
    assert (plain["strategy"], mixed["strategy"]) == ("late-binding", "late-binding mixed")
    assert mixed["images_per_s"] > plain["images_per_s"]
    assert "precision mixed: 372 in q8" in said.err
    assert "the 372 experts take" in said.err


def test_rows_as_json_go_to_standard_output_and_the_table_out_of_the_way(call, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    trace_file.write(few, task("A1", requests=60))
    said = call("sim", "--task", few, "--strategy", "all", "--device", "numa-rtx3080ti,uma-m2", "--json", "-")
    rows = rows_of(said)
    strategies = [row["strategy"] for row in rows if row["device"] == "uma-m2"]
    assert len(rows) == 2 * len(all_contenders())
    assert {"samba", "samba-fifo", "samba-parallel", "coserve", "coserve-paper-default", "coserve-none"} < set(
        strategies
    )
    assert strategies == [row["strategy"] for row in rows if row["device"] == "numa-rtx3080ti"]
    for row in rows:
        assert (row["task"], row["order"], row["images"], row["errors"]) == ("A1", "iid", 60, 0)
        assert row["switches"] >= row["lower_bound_switches"]
        assert row["makespan_s"] >= row["lower_bound_makespan_s"]
    assert "coserve-paper-default" in said.err
    assert "task A1, order iid" in said.words


def test_rows_as_json_go_to_a_file(call, small: Path, tmp_path: Path) -> None:
    said = call("sim", "--task", small, "--strategy", "coserve", "--json", tmp_path / "rows.json")
    assert said.status == 0
    assert "images/s" in said.out
    (row,) = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert row["strategy"] == "coserve"


@pytest.mark.slow
def test_a_row_for_every_task_order_tail_box_and_strategy(call, small: Path) -> None:
    said = call("sim", "--task", f"A1, {small}", "--strategy", "coserve", "--device", "uma-m2", "--json", "-")
    assert [(row["task"], row["order"], row["images"]) for row in rows_of(said)] == [
        ("A1", "iid", 2500),
        ("A1", "iid", 150),
    ]
    said = call(*("sim", "--order", "all", "--tail", "board, steep", "--strategy", "coserve-em-ra", "--json", "-"))
    assert [(row["task"], row["order"]) for row in rows_of(said)] == [
        *(("A1", "iid"), ("A1 steep", "iid")),
        *(("A1", "boards"), ("A1 steep", "boards")),
    ]


def test_a_task_that_was_saved_is_the_same_task(call, tmp_path: Path) -> None:
    where = tmp_path / "day.jsonl"
    options = ("--strategy", "samba,coserve", "--json", "-")
    drawn = ("--order", "boards", "--tail", "steep", "--images", "600")
    saved = rows_of(call("sim", *drawn, "--save-task", where, *options))
    again = rows_of(call("sim", "--task", where, *options))
    measured = {"scheduling_us_per_request": 0}
    assert [row | measured for row in saved] == [row | measured for row in again]
    assert again[0]["order"] == "boards"
    assert again[0]["task"] == "A1 steep"


def test_another_seed_is_another_run(call) -> None:
    options = ("--strategy", "coserve", "--device", "uma-m2", "--images", "300", "--json", "-")
    one, other = (rows_of(call("sim", *options, "--seed", seed))[0] for seed in (0, 1))
    assert one["makespan_s"] != other["makespan_s"]


def test_a_box_of_ones_own(call, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "box.yaml"
    path.write_text(BOX.replace("MEMORY", "1GB"), encoding="utf-8")
    (row,) = rows_of(call("sim", "--task", small, "--device", path, "--strategy", "samba", "--json", "-"))
    assert row["device"] == "box.yaml"


def test_what_happened_when_is_a_chrome_trace(call, small: Path, tmp_path: Path) -> None:
    where = tmp_path / "run.json"
    assert call("sim", "--task", small, "--strategy", "coserve", "--trace", where).status == 0
    events = json.loads(where.read_text(encoding="utf-8"))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M" and "name" in event["args"]}
    assert any("cuda0" in name for name in names)
    assert any("disk" in name for name in names)
    assert len([event for event in events if event["ph"] == "X"]) > 100


def test_each_run_has_a_trace_of_its_own_whatever_its_task_is_called(call, small: Path, tmp_path: Path) -> None:
    text = small.read_text(encoding="utf-8")
    assert '"task": "A1"' in text
    small.write_text(text.replace('"task": "A1"', '"task": "line 3/left"', 1), encoding="utf-8")
    said = call("sim", "--task", small, "--strategy", "coserve,samba", "--trace", tmp_path / "run.json")
    assert said.status == 0, said.err
    assert sorted(path.name for path in tmp_path.glob("run*")) == [
        "run-line-3-left-iid-numa-rtx3080ti-coserve.json",
        "run-line-3-left-iid-numa-rtx3080ti-samba.json",
    ]
    for path in tmp_path.glob("run*"):
        json.loads(path.read_text(encoding="utf-8"))


# What is wrong


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("MEMORY", "102MB", "preset 'box.yaml', device 'cpu': a pool of 48.2 MiB, one of 2 in memory 'host', does not"),
        ("  paper-default: ", "  cosy: ", "paper-default"),
    ],
)
def test_a_box_that_will_not_do_is_said(call, small: Path, tmp_path: Path, old: str, new: str, sentence: str) -> None:
    path = tmp_path / "box.yaml"
    assert old in BOX
    path.write_text(BOX.replace(old, new, 1).replace("MEMORY", "1GB"), encoding="utf-8")
    said = call("sim", "--task", small, "--device", "box.yaml", "--json", "-")
    assert said.status == 2
    assert sentence in said.words
    assert len(said.err.splitlines()) == 1
    assert said.out == ""


def test_names_of_earlier_versions_are_understood(call, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "box.yaml"
    path.write_text(BOX.replace("  paper-default: ", "  casual: ").replace("MEMORY", "1GB"), encoding="utf-8")
    said = call("sim", "--task", small, "--device", path, "--strategy", "samba,coserve-casual", "--json", "-")
    assert [row["strategy"] for row in json.loads(said.out)] == ["samba", "coserve-paper-default"]


def test_seeds_of_a_board_differ_and_repeat(call) -> None:
    drawn = ("sim", "--board", "A", "--images", "60", "--strategy", "coserve,samba", "--device", "uma-m2")
    box = ("--seeds", "3", "--seed", "4", "--json", "-")
    rows = rows_of(call(*drawn, *box))
    assert [(row["seed"], row["strategy"]) for row in rows] == [
        (seed, name) for seed in (4, 5, 6) for name in ("coserve", "samba")
    ]
    assert rows_of(call(*drawn, "--seed", "5", "--json", "-"))[0]["makespan_s"] == rows[2]["makespan_s"]
    assert len({row["makespan_s"] for row in rows[::2]}) == 3


@pytest.mark.parametrize(
    "words",
    [
        ("--seeds", "2", "--trace", "a.json"),
        ("--seeds", "2", "--save-task", "a.jsonl"),
        ("--seeds", "2", "--boxes", "2"),
        ("--board", "A", "--task", "A2"),
        ("--board", "A", "--device", "none.json"),
        ("--board", "none.yaml"),
    ],
)
def test_what_seeds_and_boards_exclude_is_refused(call, words: tuple[str, ...]) -> None:
    assert call("sim", *words).status == 2
