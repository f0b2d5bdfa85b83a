"""`coe-profile` on a small board with real weights files, and a line that uses what it found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from coe import config, profile
from coe.benchmark.synthetic import synthetic_board, synthetic_pictures
from coe.cli import bench as bench_command
from coe.cli import profile as profile_command
from coe.inspector import Inspector
from coe.profiler import calibrate, confirm


@pytest.fixture(autouse=True)
def quickly(monkeypatch) -> None:
    monkeypatch.setattr(calibrate, "QUICK", calibrate.Effort(kind_s=0.3, other_ways=False, confirm_images=8))
    monkeypatch.setattr(calibrate, "SAMPLE_REQUESTS", 60)
    monkeypatch.setattr(calibrate, "_CONFIRM_S", 0.0)
    monkeypatch.setattr(confirm, "_LONG_ENOUGH_S", 1e-9)


def run(monkeypatch, *arguments: str, command: ModuleType = profile_command) -> int:
    monkeypatch.setattr(sys, "argv", ["coe", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> tuple[Path, Path]:
    """A board of four ResNet18 experts of 32 pixels, and their store."""
    folder = tmp_path_factory.mktemp("bench")
    path, store = synthetic_board(folder, kind="resnet18", experts=4, input_size=32, seed=0)
    return path, store.root


def test_a_machine_is_calibrated_and_lines_use_it_by_themselves(bench, tmp_path, monkeypatch, capsys) -> None:
    board, store = bench
    place = tmp_path / "data" / "profile.json"
    monkeypatch.setenv(config.PROFILE_VARIABLE, str(place))
    assert run(monkeypatch, "--board", str(board), "--store", str(store), "--memory", "150MB", "--quick") == 0
    said = capsys.readouterr()
    known = profile.load(place)
    (name,) = known.boards
    chosen = known.boards[name].chosen
    assert {kind.kind for kind in known.kinds} == {"resnet18"}
    assert chosen.images_per_s >= 0.98 * chosen.casual_images_per_s > 0
    assert chosen.sample_images == 8
    assert "resnet18 32 px" in said.out
    assert place.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in place.parent.iterdir()) == ["profile.json", "profile.png"]

    sentences: list[str] = []
    with Inspector(board, store=store, say=sentences.append) as line:
        results = list(line.stream(synthetic_pictures(board, 12, seed=1)))
        used, plan = line.memory_bytes, line.plan
    assert not any("measuring" in sentence for sentence in sentences)
    assert sentences[0].startswith("using this machine's profile of ")
    assert [result.error for result in results] == [None] * 12
    assert used == 150_000_000
    assert len(plan.executors) == sum(chosen.executors.values())
    assert {pool.workspace_bytes for pool in plan.pools} == set(chosen.workspace_bytes.values())

    assert run(monkeypatch, "--show") == 0
    shown = capsys.readouterr().out
    assert f"board {name}" in shown
    assert "memory score" in shown
    assert "the process grew by" in shown

    # What the bench calls by name is what was chosen, beside the casual split, on the same images.
    rows = tmp_path / "rows.json"
    names = "coserve-casual,coserve-profile"
    synthetic = ("--work", str(board.parent), "--kind", "resnet18", "--experts", "4", "--input", "32")
    bench_run = ("run", *synthetic, "--requests", "6", "--repeat", "2", "--strategy", names, "--json", str(rows))
    assert run(monkeypatch, *bench_run, command=bench_command) == 0
    casual, tuned = json.loads(rows.read_text())
    assert (casual["strategy"], tuned["strategy"]) == ("coserve-casual", "coserve-profile")
    assert casual["device"] == "cpu=1"
    assert tuned["device"] == f"cpu={chosen.executors['cpu']}"
    assert casual["budget_bytes"] == tuned["budget_bytes"] == 150_000_000
    assert run(monkeypatch, *bench_run, "--memory", "149MB", command=bench_command) == 2
    assert "was profiled under 143.1 MiB, not 142.1 MiB" in capsys.readouterr().err


def test_sample_runs_may_take_place_on_the_machine(bench, tmp_path, monkeypatch, capsys) -> None:
    board, store = bench
    place = tmp_path / "profile.json"
    arguments = ("--board", str(board), "--memory", "150MB", "--quick", "--on-machine", "--out", str(place))
    assert run(monkeypatch, *arguments, "--store", str(store)) == 0
    (known,) = profile.load(place).boards.values()
    assert known.executors
    assert all(point.measured for point in known.executors)
    said = capsys.readouterr().err
    percents = [int(line.partition("%")[0]) for line in said.splitlines() if line.strip()[:1].isdigit() and "%" in line]
    assert percents[0] == 0
    assert percents == sorted(set(percents))
    assert percents[-1] < 100
    assert run(monkeypatch, *arguments, "--store", str(tmp_path / "empty")) == 2
    assert "nothing can run on the machine: 4 of 4 experts have no weights" in capsys.readouterr().err


def test_an_interrupted_calibration_goes_on_where_it_was(bench, tmp_path, monkeypatch, capsys) -> None:
    board, store = bench
    place = tmp_path / "profile.json"
    arguments = ("--board", str(board), "--store", str(store), "--memory", "150MB", "--quick", "--out", str(place))

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(calibrate, "confirm", interrupted)
        assert run(patch, *arguments) == 130
    assert not place.exists()
    measured: list[str] = []
    monkeypatch.setattr(calibrate, "measure", lambda expert, *a, **o: measured.append(expert.kind))
    capsys.readouterr()
    assert run(monkeypatch, *arguments) == 0
    assert measured == []
    assert "going on with a calibration that was interrupted" in capsys.readouterr().err
    assert place.exists()


def test_a_board_without_weights_is_measured_with_random_ones_and_says_so(bench, tmp_path, monkeypatch, capsys) -> None:
    board, _ = bench
    place, empty = tmp_path / "profile.json", tmp_path / "store"
    arguments = ("--board", str(board), "--store", str(empty), "--memory", "150MB", "--quick", "--out", str(place))
    assert run(monkeypatch, *arguments) == 0
    said = capsys.readouterr()
    assert "measured with random weights" in said.err
    assert "not confirmed on the machine: 4 of 4 experts have no weights" in said.out
    assert profile.load(place).boards


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "which board?"),
        (("--board", "nowhere"), "no board file"),
        (("--board", "{board}", "--memory", "1MB"), "does not hold expert"),
        (("--board", "{board}", "--out", "{folder}"), "cannot be written"),
        (("--show",), "there is no profile at"),
        (("--board", "{board}", "--images", "{folder}"), "holds no image"),
    ],
)
def test_what_cannot_work_ends_in_a_sentence(bench, tmp_path, monkeypatch, capsys, arguments, sentence) -> None:
    board, store = bench
    filled = [argument.format(board=board, folder=tmp_path) for argument in arguments]
    if "--out" not in filled:
        filled += ["--out", str(tmp_path / "p.json")]
    assert run(monkeypatch, *filled, "--store", str(store), "--quick") == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "p.json").exists()
