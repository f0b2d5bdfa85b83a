"""The list of measurements for a GPU: each command is understood, what succeeded is not run again, time is kept."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import typer.main

from apps import gpu_runs
from apps.gpu_runs import MODULES, STEPS, Step, chosen
from coe.cli.start import MODULES as COMMANDS
from coe.errors import ConfigError


@pytest.mark.parametrize("step", [step for step in STEPS if step.tool not in MODULES], ids=lambda step: step.name)
def test_each_command_is_understood(step: Step) -> None:
    words = step.words
    group = typer.main.get_command(importlib.import_module(COMMANDS[step.tool]).app)
    while hasattr(group, "commands"):
        group = group.commands[words.pop(0)]
    more = ["--json", "figures.json"] if step.measures else []
    group.make_context(step.tool, [*words, *more])


def test_a_command_is_started_whether_or_not_it_is_on_the_path(tmp_path: Path) -> None:
    step = next(step for step in STEPS if step.name == "switch")
    arguments = [*step.arguments(tmp_path / "figures.json")[:3], "--help"]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "coe-bench" in said.stdout


class Stub(Step):
    """A step that runs Python code in place of a command."""

    def arguments(self, figures: Path) -> list[str]:
        return [sys.executable, "-c", self.command, str(figures)]


def ends(pid: int) -> bool:
    """Wait for the end of a process that was killed: the system takes its time. Nobody may be there to bury it."""
    for _ in range(1200):
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.05)
                continue
        return True
    return False


WRITES = "import json, sys; json.dump({'images_per_s': 7}, open(sys.argv[1], 'w')); print('measured')"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [Stub("good", WRITES), Stub("bad", "raise SystemExit(3)"), Stub("long", "import time; time.sleep(600)")]
    monkeypatch.setattr(gpu_runs, "STEPS", listed)
    monkeypatch.setattr(gpu_runs.torch_driver, "is_there", lambda: True)


def test_what_succeeded_is_not_run_again_and_figures_are_kept(
    steps: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del gpu_runs.STEPS[2]
    for _ in range(2):
        with pytest.raises(typer.Exit):
            gpu_runs.gpu_runs(folder=tmp_path, seconds=60)
    lines = (tmp_path / "figures.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": "good", "figures": {"images_per_s": 7}}]
    log = (tmp_path / "log.txt").read_text()
    assert (log.count("measured\n"), log.count("== bad: status 3")) == (1, 2)
    assert "not done: bad; see" in capsys.readouterr().err


def test_a_named_step_is_run_again(steps: None, tmp_path: Path) -> None:
    for _ in range(2):
        gpu_runs.gpu_runs(["good"], folder=tmp_path, seconds=60)
    assert len((tmp_path / "figures.jsonl").read_text().splitlines()) == 2


def test_a_step_that_takes_too_long_is_ended_with_its_children(
    monkeypatch: pytest.MonkeyPatch, steps: None, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    code = (
        "import pathlib, subprocess; child = subprocess.Popen(['sleep', '600']); "
        f"pathlib.Path({str(pid)!r}).write_text(str(child.pid)); child.wait()"
    )
    monkeypatch.setattr(gpu_runs, "STEPS", [Stub("long", code)])
    with pytest.raises(typer.Exit):
        gpu_runs.gpu_runs(folder=tmp_path, seconds=3)
    assert "== long: out of time" in (tmp_path / "log.txt").read_text()
    assert ends(int(pid.read_text()))


def test_steps_that_were_never_tried_come_before_those_that_failed(
    steps: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """However slow a step is, each of the others has its turn."""
    gpu_runs.STEPS[:] = [Stub("slow", "import time; time.sleep(600)", limit_s=2), Stub("bad", "raise SystemExit(3)")]
    gpu_runs.STEPS += [Stub("good", WRITES), Stub("late", WRITES)]
    (tmp_path / "slow.tried").touch()
    with pytest.raises(typer.Exit):
        gpu_runs.gpu_runs(folder=tmp_path, seconds=60)
    ended = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert ended == ["bad: status 3", "good: status 0", "late: status 0", "slow: out of time"]


def test_a_step_waits_for_the_step_that_it_needs(
    steps: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line on experts that are not prepared would run, and give figures of another precision."""
    gpu_runs.STEPS[:] = [Stub("prepare", "raise SystemExit(3)"), Stub("line", WRITES, after="prepare")]
    for names in ([], ["line"], ["prepare", "line"]):
        with pytest.raises(typer.Exit):
            gpu_runs.gpu_runs(names, folder=tmp_path, seconds=60)
        assert "line (after prepare); see" in capsys.readouterr().err
    gpu_runs.STEPS[0] = Stub("prepare", "print('prepared')", measures=False)
    gpu_runs.gpu_runs(folder=tmp_path, seconds=60)
    assert capsys.readouterr().out.split() == ["prepare:", "status", "0,", "0", "s", "line:", "status", "0,", "0", "s"]


def test_steps_that_are_named_run_in_their_order_and_a_rerun_that_fails_is_not_done(
    steps: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_runs.STEPS[:] = [Stub("prepare", "pass", measures=False), Stub("line", WRITES, after="prepare")]
    for name in ("prepare.done", "prepare.tried"):
        (tmp_path / name).touch()
    gpu_runs.gpu_runs(["prepare", "line"], folder=tmp_path, seconds=60)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["prepare", "line"]
    gpu_runs.STEPS[0] = Stub("prepare", "raise SystemExit(3)", measures=False)
    with pytest.raises(typer.Exit):
        gpu_runs.gpu_runs(["prepare"], folder=tmp_path, seconds=60)
    assert not (tmp_path / "prepare.done").exists()


def test_a_step_without_its_figures_has_failed_and_the_others_go_on(
    steps: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_runs.STEPS[:] = [Stub("silent", "pass"), Stub("good", WRITES)]
    with pytest.raises(typer.Exit):
        gpu_runs.gpu_runs(folder=tmp_path, seconds=60)
    assert "not done: silent; see" in capsys.readouterr().err
    assert "silent: its figures cannot be read" in (tmp_path / "log.txt").read_text()
    assert ((tmp_path / "good.done").exists(), (tmp_path / "silent.done").exists()) == (True, False)


def test_each_step_comes_after_those_that_it_needs() -> None:
    names = [step.name for step in STEPS]
    for number, step in enumerate(STEPS):
        assert not step.after or step.after in names[:number]


def test_a_step_that_the_end_of_the_call_cut_was_not_tried(steps: None, tmp_path: Path) -> None:
    gpu_runs.STEPS[:] = [Stub("long", "import time; time.sleep(600)"), Stub("short", "raise SystemExit(3)")]
    with pytest.raises(typer.Exit):
        gpu_runs.gpu_runs(folder=tmp_path, seconds=2)
    assert not list(tmp_path.glob("*.tried"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_step_ends_when_the_runs_are_ended(
    steps: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    pid = tmp_path / "pid"
    code = f"import os, pathlib, time; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)"
    gpu_runs.STEPS[:] = [Stub("long", code)]
    monkeypatch.setattr(sys, "argv", ["gpu_runs", "--out", str(tmp_path / "out")])
    runs = os.fork()
    if not runs:
        try:
            gpu_runs.main()
        except SystemExit as end:
            os._exit(end.code)  # type: ignore[arg-type]
        os._exit(99)
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.05)
    while psutil.Process(runs).status() != psutil.STATUS_SLEEPING:  # it waits for the step, which it knows by then
        time.sleep(0.01)
    os.kill(runs, number)
    assert os.waitstatus_to_exitcode(os.waitpid(runs, 0)[1]) == 128 + number
    assert ends(int(pid.read_text()))


def test_without_a_gpu_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_runs.torch_driver, "is_there", lambda: False)
    with pytest.raises(ConfigError, match="there is no GPU"):
        gpu_runs.gpu_runs(folder=tmp_path / "out", seconds=60)
    assert not (tmp_path / "out").exists()


def test_an_unknown_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="no step 'A-line-mixd'; did you mean 'A-line-mixed'"):
        chosen(["A-line-mixd"])
    assert [step.name for step in chosen(["switch", "tests"])] == ["tests", "switch"]


def test_a_folder_that_cannot_be_is_refused_before_a_step_runs(steps: None, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--out.*file/out"):
        gpu_runs.gpu_runs(["good"], folder=tmp_path / "file" / "out", seconds=60)
