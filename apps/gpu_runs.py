"""All measurements that need a GPU, one command after another: `python -m apps.gpu_runs --out build/gpu`.

A step that has succeeded is not run again, and one that has failed comes after those that were never tried, so little
time at a time is enough. `docs/gpu.md` says what must hold. `log.txt` gets what all steps print,
`figures.jsonl` a line of figures for each step that has some.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import typer

from coe.cli.common import application, err, out, run
from coe.errors import ConfigError, did_you_mean
from coe.runtime.cuda import torch_driver

app = application("All measurements that need a GPU.")
MODULES = ("pytest", "apps.demo.build", "apps.deeppcb.images")
"""What is run by `python -m`."""
BOX = "--executors cuda=2 --memory 8GB --device-memory 12GB --host-memory 16GB --disk-bandwidth 530MB/s"
"""The budgets of the box of docs/results.md; the machine may have more."""
UNSEARCHED = "--no-search-kernels"
"""For all lines but one of a board: cuDNN's search for kernels is estimated to take minutes at each start."""
EVERY_4_MS = "--rate 250 --requests 15000 --settling 7500"
"""A minute; the cold start, 30 s, is left out of the latencies."""
A_TASK = "--rate 250 --requests 2500"
"""As many images as the paper's task A1. Where each switch reads 170 MB, they take a minute or more."""


@dataclass(frozen=True, slots=True)
class Step:
    """A command, as `bench switch ...` for `coe-bench switch ...`; `measures` if it takes `--json`.

    It is ended after `limit_s` seconds, so that a slow step leaves time to the others. It waits for the step `after`:
    on experts that are not prepared a line would run, and its figures would be those of another precision.
    """

    name: str
    command: str
    measures: bool = True
    limit_s: float = 300
    after: str = ""

    @property
    def tool(self) -> str:
        """The first word: a command of CoE, or one of `MODULES`."""
        return self.command.split()[0]

    @property
    def words(self) -> list[str]:
        """The words behind it."""
        return self.command.split()[1:]

    def arguments(self, figures: Path) -> list[str]:
        """Return what to run; the commands need not be on the path."""
        if self.tool in MODULES:
            return [sys.executable, "-m", *self.command.split()]
        code = f"import sys; from coe.cli.start import {self.tool}; sys.argv[0] = 'coe-{self.tool}'; {self.tool}()"
        return [sys.executable, "-c", code, *self.words, *(("--json", str(figures)) if self.measures else ())]


def of_board(board: str) -> list[Step]:
    """Return the steps on a board of random weights: one strategy and one precision each."""
    store = f"--board {board} --store build/paper"
    searched = f"bench run {store} {BOX}"
    line = f"{searched} {UNSEARCHED}"
    runs = {
        "line-mixed": f"{line} --strategy late-binding --precision mixed {EVERY_4_MS}",
        "line-mixed-backlog": f"{line} --strategy late-binding --precision mixed --requests 10000",
        # The eager baseline constructs an expert for each switch: half a second an image.
        "samba-eager": f"{line} --strategy samba-eager --precision fp32 --requests 250",
        "line-mixed-searched": f"{searched} --strategy late-binding --precision mixed {EVERY_4_MS}",
        "coserve-mixed": f"{line} --strategy coserve --precision mixed {EVERY_4_MS}",
        "coserve-mixed-backlog": f"{line} --strategy coserve --precision mixed --requests 10000",
        "line-fp32": f"{line} --strategy late-binding --precision fp32 {A_TASK}",
        "coserve-fp32": f"{line} --strategy coserve --precision fp32 {A_TASK}",
        "samba-fp32": f"{line} --strategy samba --precision fp32 --requests 1000",
    }
    return [
        Step(f"{board}-synth", f"experts synth {store} --files 1", measures=False),
        # Without fp16: in mixed precision a line chooses q8 wherever that agrees, and preparing takes a third less.
        Step(
            f"{board}-prepare",
            f"experts prepare {store} --variants fp32,q8",
            measures=False,
            limit_s=540,
            after=f"{board}-synth",
        ),
        *(Step(f"{board}-{name}", command, after=f"{board}-prepare") for name, command in runs.items()),
    ]


STEPS = [
    Step("tests", "pytest -q -W default -m gpu tests/gpu", measures=False),
    Step("switch", "bench switch --device cuda --kind resnet101,yolov5m,yolov5l --variant fp32,fp16,q8"),
    *of_board("A"),
    Step("delta", "bench switch --device cuda --kind resnet101 --variant q8,delta"),
    Step("cycles", "bench switch --device cuda --kind resnet101 --variant q8 --cycles 10000 --experts 40"),
    Step("switch-640", "bench switch --device cuda --kind yolov5m,yolov5l --variant fp32,q8 --input 640"),
    *of_board("B"),
    Step(
        "A-profile",
        "profile --board A --store build/paper --memory 8GB --device-memory 12GB --host-memory 16GB "
        "--out build/gpu-profile.json",
        measures=False,
        after="A-prepare",
    ),
    Step("demo-build", "apps.demo.build --images build/demo/images --store store", measures=False),
    Step(
        "demo-prepare",
        "experts prepare --board demo --store store --images build/demo/images --variants fp32,q8",
        measures=False,
        after="demo-build",
    ),
    Step(
        "demo-verdicts",
        "bench run --board demo --store store --images build/demo/images --executors cuda=2 --strategy late-binding "
        "--precision fp32,mixed --requests 10000",
        after="demo-prepare",
    ),
    Step("deeppcb-images", "apps.deeppcb.images", measures=False),
    Step(
        "deeppcb-prepare",
        "experts prepare --board deeppcb_golden --store store --variants fp32,q8 "
        "--images build/deeppcb/test/images.csv",
        measures=False,
        after="deeppcb-images",
    ),
    Step(
        "deeppcb-verdicts",
        "bench run --board deeppcb_golden --store store --images build/deeppcb/test/images.csv "
        "--executors cuda=2 --memory 1GB --strategy late-binding --precision fp32,mixed --requests 1000",
        after="deeppcb-prepare",
    ),
]


def chosen(names: Sequence[str]) -> list[Step]:
    """Return the steps of these names, in the order of the list; all, if there are none. Raises ConfigError."""
    known = [step.name for step in STEPS]
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no step '{name}'{did_you_mean(name, known)}; --list shows them")
    return [step for step in STEPS if not names or step.name in names]


def _next(left: Sequence[Step], folder: Path) -> Step | None:
    """Return the next step whose `after` has succeeded: those that were never tried come first."""
    waiting = {step.name for step in left}
    ready = [
        step
        for step in left
        if not step.after or (step.after not in waiting and (folder / f"{step.after}.done").exists())
    ]
    return min(ready, key=lambda step: (folder / f"{step.name}.tried").exists(), default=None)


def take(step: Step, folder: Path, left_s: float) -> bool:
    """Run a step and log it; return whether it succeeded in time. A step that only `left_s` ended was not tried."""
    with tempfile.TemporaryDirectory() as work, (folder / "log.txt").open("a", encoding="utf-8") as log:
        figures = Path(work) / "figures.json"
        log.write(f"\n== {step.name}: {step.command}\n")
        log.flush()
        (folder / f"{step.name}.done").unlink(missing_ok=True)
        began = time.monotonic()
        status = _status(step.arguments(figures), log, min(left_s, step.limit_s))
        ended = "out of time" if status is None else f"status {status}"
        took_s = time.monotonic() - began
        log.write(f"== {step.name}: {ended}, {took_s:.0f} s\n")
        out.print(f"{step.name}: {ended}, {took_s:.0f} s", soft_wrap=True)
        if status is not None or step.limit_s <= left_s:
            (folder / f"{step.name}.tried").touch()
        if status != 0:
            return False
        if step.measures:
            try:
                entry = {"step": step.name, "figures": json.loads(figures.read_text(encoding="utf-8"))}
            except (OSError, ValueError) as error:
                log.write(f"== {step.name}: its figures cannot be read: {error}\n")
                return False
            with (folder / "figures.jsonl").open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(entry) + "\n")
    (folder / f"{step.name}.done").touch()
    return True


def _status(arguments: Sequence[str], log: IO[str], limit_s: float) -> int | None:
    """Run a process and return its status, or None after `limit_s` seconds; then its children are ended, too."""
    with subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, start_new_session=True) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


@app.command()
def gpu_runs(
    names: Annotated[
        list[str] | None, typer.Argument(help="Steps, also if they have succeeded. Default: all that have not.")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the log and the figures.")] = Path("build/gpu"),
    seconds: Annotated[
        float, typer.Option(min=1, help="Begin no step after so many seconds, and end the step under way.")
    ] = 3600,
    listed: Annotated[bool, typer.Option("--list", help="Show the steps and their commands; run none.")] = False,
) -> None:
    """Run steps in their order. Exit status 1 if a step failed or had no time.

    Example: python -m apps.gpu_runs --out build/gpu --seconds 570
    """
    steps = chosen(names or [])
    if listed:
        for step in steps:
            out.print(f"{step.name}: {step.command}", soft_wrap=True)
        return
    if not torch_driver.is_there():  # all its tests would be skipped, and so succeed
        raise ConfigError(
            "there is no GPU that torch can use here (torch.cuda.is_available() says so); run it on a box with one"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log.txt").open("a").close()
    except OSError as error:
        raise ConfigError(f"--out: {folder} cannot be a folder for the log: {error.strerror or error}") from None
    ends = time.monotonic() + seconds
    left = [step for step in steps if names or not (folder / f"{step.name}.done").exists()]
    undone: list[str] = []
    while (step := _next(left, folder)) is not None and (left_s := ends - time.monotonic()) > 0:
        left.remove(step)
        if not take(step, folder, left_s):
            undone.append(step.name)
    undone += [f"{step.name} (after {step.after})" if step.after else step.name for step in left]
    if undone:
        err.print(f"not done: {', '.join(undone)}; see {folder / 'log.txt'}", soft_wrap=True)
        raise typer.Exit(1)


def main() -> None:
    """Run `python -m apps.gpu_runs`."""
    # A step's processes have a session of their own: they must not go on when this one is ended.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda given, _: sys.exit(128 + given))
    run(app)


if __name__ == "__main__":
    main()
