"""`python -m apps.paper` as a user calls it: figures from rows, sweeps, and runs without scheduling."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from built_once import linked_copy

from apps.paper import __main__ as paper
from apps.paper.prescheduled import repeating
from coe.inspector.line_config import AskedSettings, LineConfig
from coe.scheduler.events import Run
from coe.scheduler.strategies import strategy as named_strategy
from coe.sim import trace_file
from coe.sim.workload import task
from coe.trials.engine_run import all_at_once, measured_run
from coe.trials.recorded import recorded
from coe.trials.rows import Heading
from coe.trials.synthetic import quarter_budget, synthetic_board, synthetic_pictures

SMALL = ("--experts", "4", "--kind", "narrow", "--input", "32", "--requests", "24")


@pytest.fixture(scope="module")
def work(prepared_work, tmp_path_factory):
    """One folder of synthetic weights for all runs here."""
    return linked_copy(prepared_work, tmp_path_factory.mktemp("paper") / "work")


@pytest.mark.slow
def test_figures_are_drawn_from_the_rows_of_a_benchmark_and_by_sweeps(call, tmp_path: Path) -> None:
    small, rows, folder = tmp_path / "tiny.jsonl", tmp_path / "rows.json", tmp_path / "new" / "plots"
    trace_file.write(small, task("A1", requests=60))
    options = ("--task", small, "--device", "uma-m2")
    assert call("sim", *options, "--strategy", "all", "--json", rows).status == 0
    drawn = call("figures", rows, "--out", folder, command=paper)
    swept = call("sweeps", *options, "--out", folder, command=paper)
    assert (drawn.status, swept.status) == (0, 0), drawn.err + swept.err
    assert sorted(path.name for path in folder.iterdir()) == [f"figure-{number}.png" for number in range(13, 19)]
    assert all(path.stat().st_size > 5000 for path in folder.glob("*.png"))
    assert (drawn.err.count("drew "), swept.err.count("drew ")) == (4, 2)


def test_the_figures_of_a_run_on_the_machine_are_rows_too(tmp_path: Path) -> None:
    row = {
        **{"task": "A1", "order": "iid", "device": "cpu=1", "strategy": "coserve", "images_per_s": 2.0, "switches": 3},
        **{"disk_loads": 3, "hit_ratio": 0.5, "p50_s": 1.0, "p99_s": 2.0, "makespan_s": 4.0, "images": 8, "errors": 0},
        **{"scheduling_us_per_request": 1.0, "switch_ms": 5.0, "peak_rss_bytes": 7},
    }
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row]), encoding="utf-8")
    (read,) = paper.rows_at(path)
    assert (read.strategy, read.images_per_s, read.switches, read.machine) == ("coserve", 2.0, 3, None)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "rows.json cannot be read: No such file or directory"),
        ("[{}]", "rows.json does not hold the rows of a benchmark (Field required"),
        ("no JSON", "rows.json does not hold the rows of a benchmark (Invalid JSON"),
    ],
)
def test_a_file_that_holds_no_rows_is_said(call, tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "rows.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    said = call("figures", path, "--out", tmp_path / "out", command=paper)
    assert said.status == 2
    assert sentence in said.words
    assert not (tmp_path / "out").exists()


def test_the_same_commands_again_without_scheduling(work, call):
    where = work / "rows.json"
    status, out, _ = call(
        *("scheduling", *SMALL, "--strategy", "coserve,samba-parallel", "--executors", "cpu=2", "--memory", "200MB"),
        *("--work", work, "--json", where),
        command=paper,
    )
    assert status == 0
    rows = json.loads(where.read_text(encoding="utf-8"))
    assert [row["strategy"] for row in rows] == [
        *("coserve", "coserve (prescheduled)"),
        *("samba-parallel", "samba-parallel (prescheduled)"),
    ]
    for one, again in ((rows[0], rows[1]), (rows[2], rows[3])):
        for same in ("images", "errors", "switches", "disk_loads", "hit_ratio", "device"):
            assert one[same] == again[same]
        assert again["peak_reserved_bytes"] <= again["budget_bytes"]
    sentences = [line for line in out.splitlines() if "µs of scheduling" in line]
    assert [sentence.partition(":")[0] for sentence in sentences] == ["coserve", "samba-parallel"]


def test_prescheduled_runs_the_same_batches_and_finds_the_same(work):
    board, store = synthetic_board(work, kind="narrow", experts=4, input_size=32, seed=0)
    pictures = synthetic_pictures(board, 24, 1)
    line_config = LineConfig(
        board=board,
        store=store,
        asked=AskedSettings(memory_bytes=2 * quarter_budget(board, store), executors={"cpu": 2}, profile=None),
        strategy=named_strategy("coserve"),
        inbox=all_at_once(pictures),
    )
    one = measured_run(line_config, pictures, heading=Heading("t", "o", "s"))
    repeated = replace(line_config, costs=one.costs, make_decider=repeating(one.trace))
    again = measured_run(repeated, pictures, heading=Heading("t", "o", "s"))
    batches = [
        {id: [run.batch for run in _runs(each.trace) if run.executor == id] for id in ("cpu0", "cpu1")}
        for each in (one, again)
    ]
    assert batches[0] == batches[1]
    labels = [
        {f"{a.request.image} {e}": f.label for a in seen.arrivals for e, f in seen.findings[a.request.id].items()}
        for seen in (recorded(one.trace), recorded(again.trace))
    ]
    assert labels[0] == labels[1]
    assert len(labels[0]) == 24


def _runs(trace):
    return [command for _, _, commands in trace for command in commands if isinstance(command, Run)]
