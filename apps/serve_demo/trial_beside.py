"""Measures what a trial of an expert on stored boards costs the running line: images/s with it and without, in turn.

    python -m apps.serve_demo.trial_beside

The service is one of its own, with its own processes. A trial inspects its stored boards again, as if each expert were
new, while the line inspects boards that all wait for it, so that it never rests. The trial stands still in every second
stretch of that time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from itertools import cycle, islice, pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from coe.board import rules
from coe.pictures import finding
from coe.serve.benchmark.processes import Stamp
from coe.serve.benchmark.running import BenchmarkPicture, Client, Service, made, running
from coe.serve.creation import Wanted
from coe.serve.database import board_rows
from coe.serve.enums import Process

TIMEOUT_S = 3600.0
LOOK_S = 0.2


def hand_in(service: Service, pictures: Sequence[BenchmarkPicture], boards: int, parts: int) -> list[int]:
    """Hand in boards of so many parts each; return their ids."""
    taken = cycle(pictures)
    return [service.hand_in(f"beside-{time.time_ns()}", list(islice(taken, parts))) for _ in range(boards)]


class Trial:
    """A trial of all experts of the recipe on the stored boards."""

    def __init__(self, service: Service, experts: Sequence[str], boards: int) -> None:
        self._engineer: Client = service.client("engineer")
        asked = {"recipe": service.recipe, "inspect": True, "anew": list(experts), "boards": boards}
        body = json.dumps(asked).encode()
        answer = self._engineer.send("POST", "/api/v1/trials", body, **{"Content-Type": "application/json"})
        self._path = f"/api/v1/trials/{answer.data['trial']}"
        while not self.inspected:
            time.sleep(LOOK_S)
        gate = service.processes[Process.GATE]
        self.process = next(child for child in gate.children() if "spawn_main" in " ".join(child.cmdline()))

    @property
    def inspected(self) -> int:
        """How many images it has inspected."""
        counted = self._engineer.send("GET", self._path).data
        assert counted["state"] in ("asked", "running"), counted
        return int(counted["inspected"])


def measure(service: Service, trial: Trial, pictures: Sequence[BenchmarkPicture], given: argparse.Namespace) -> None:
    """Let the line inspect what waits, and print images/s with the trial and without it."""
    with service.worker_stopped(), service.stopped(trial.process):
        ids = hand_in(service, pictures, given.boards, given.parts)
    time.sleep(2 * given.stretch)  # a line that begins loads its experts
    before, cpu_before = trial.inspected, _cpu_s(trial.process)
    edges = [time.time()]
    while not _is_decided(service, ids[-1]):
        if len(edges) % 2:
            time.sleep(given.stretch)
        else:
            with service.stopped(trial.process):
                time.sleep(given.stretch)
        edges.append(time.time())
    beside, cpu_s = trial.inspected - before, _cpu_s(trial.process) - cpu_before
    found = [moment_s for what, moment_s, _ in service.stamps() if what is Stamp.FOUND]
    speeds = [sum(begin <= at < end for at in found) / (end - begin) for begin, end in pairwise(edges[:-1])]
    ratios = [with_it / without for with_it, without in zip(speeds[::2], speeds[1::2], strict=False)]
    took_s = sum(end - begin for begin, end in pairwise(edges)) / 2
    print("images/s of the line, with the trial and without:", " ".join(f"{one:.0f}" for one in speeds))
    print(f"with / without, by pairs: {' '.join(f'{one:.2f}' for one in ratios)}; median {median(ratios):.2f}")
    print(f"the trial beside it: {beside / took_s:.1f} images/s, {cpu_s / took_s:.2f} cores of {os.cpu_count()}")


def _is_decided(service: Service, id: int) -> bool:
    with service.database.reading() as connection:
        one = board_rows.get(connection, id)
    return one is not None and one.verdict is not None


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def main() -> None:
    """Make the service, store boards, and measure."""
    parser = argparse.ArgumentParser(description="Measure what a trial of an expert costs the running line.")
    parser.add_argument("--board", default="first_look")
    parser.add_argument("--images", type=Path, default=Path("build/first-look/images"))
    parser.add_argument("--store", type=Path, default=Path("store"))
    parser.add_argument("--memory", default="25MB", help="of the line; a trial takes as much as the config says")
    parser.add_argument("--stored", type=int, default=500, help="boards that the trial inspects")
    parser.add_argument("--boards", type=int, default=500, help="boards that wait for the line")
    parser.add_argument("--parts", type=int, default=12, help="parts of a board")
    parser.add_argument("--stretch", type=float, default=2.0, help="seconds with the trial, and without it, in turn")
    given = parser.parse_args()
    board = rules.load(given.board)
    found, _ = finding.find(given.images, board.components)
    pictures = [BenchmarkPicture(one.path, one.component) for one in found if one.failure is None]
    with TemporaryDirectory() as folder:
        made(Path(folder, "service"), Wanted(given.board, given.store, given.memory, ("apps.demo",)))
        with running(Path(folder, "service")) as service:
            service.wait_for(hand_in(service, pictures, given.stored, given.parts), TIMEOUT_S)
            measure(service, Trial(service, list(board.experts), given.stored), pictures, given)


if __name__ == "__main__":
    main()
