"""Measurements for a GPU: each command is understood, what succeeded is not run again, no step outlives them."""

import importlib
import re
import shlex
import subprocess
import time

import pages
import psutil
import pytest
import typer.main

from coe.cli.start import MODULES

MAKE = ["make", "--no-print-directory", "-kf", "apps/gpu_runs.mk"]
SHOWN = subprocess.run([*MAKE, "-n", "OUT=no/such"], cwd=pages.ROOT, capture_output=True, text=True, check=True).stdout
STEPS = re.compile(r"^(?!==)\S+$", re.MULTILINE)
COMMANDS = re.findall(r"""coe-(\w+)"; \w+\(\)' (.*?) >> no/such/log.txt""", SHOWN)


@pytest.mark.parametrize(("tool", "arguments"), COMMANDS)
def test_each_command_is_understood(tool, arguments):
    words = shlex.split(arguments)
    group = typer.main.get_command(importlib.import_module(MODULES[tool]).app)
    while hasattr(group, "commands"):
        group = group.commands[words.pop(0)]
    group.make_context(tool, words)


def made(folder, code, *steps):
    """Make the steps with a shell script in the place of Python."""
    stub = folder / "python"
    stub.write_text(f"#!/bin/sh\n{code}\n", encoding="ascii")
    stub.chmod(0o755)
    words = [*MAKE, f"OUT={folder}", f"PYTHON={stub}", *steps]
    return subprocess.Popen(words, cwd=pages.ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_what_succeeded_is_not_run_again_and_a_step_waits_for_the_one_it_needs(tmp_path):
    fails = 'case "$*" in *cycles*|*synth*board\\ A*) exit 3;; esac'
    first, _ = made(tmp_path, fails).communicate()
    assert [name in first.split() for name in ("A-synth", "A-line-mixed", "B-line-mixed")] == [True, False, True]
    for name in ("A-synth.done", "B-samba-fp32.done", "B-samba-fp32.tried"):
        (tmp_path / name).unlink(missing_ok=True)
    again = made(tmp_path, fails, "A-prepare", "all")
    assert STEPS.findall(again.communicate()[0]) == ["A-synth", "B-samba-fp32", "cycles"]  # never tried, then failed
    named = made(tmp_path, "", "A-prepare")
    assert STEPS.findall(named.communicate()[0]) == ["A-synth", "A-prepare"]
    assert (again.returncode, named.returncode) == (2, 0)


def test_without_a_gpu_nothing_is_run(tmp_path):
    made(tmp_path, "", "A-synth").communicate()
    (tmp_path / "A-synth.tried").unlink()
    runs = made(tmp_path, "exit 1")
    assert "there is no GPU" in runs.communicate()[0]
    assert runs.returncode == 2
    assert not list(tmp_path.glob("*.tried"))


def test_a_step_ends_with_the_runs_and_was_not_tried(tmp_path):
    runs = made(tmp_path, f'case "$*" in *pytest*) echo $$ > {tmp_path}/pid; exec sleep 600;; esac', "tests")
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text()):
        assert runs.poll() is None
        time.sleep(0.02)
    step = psutil.Process(int(pid.read_text()))
    runs.terminate()
    runs.communicate()
    assert runs.returncode != 0
    psutil.wait_procs([step], timeout=60)
    assert not step.is_running() or step.status() == psutil.STATUS_ZOMBIE
    assert not (tmp_path / "tests.tried").exists()
