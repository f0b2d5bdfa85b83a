"""Lines that are opened in several threads, or beside one that runs: measuring does not take the one for the other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coe import Inspector, Picture
from coe.core import Verdict
from coe.runtime import cpu, trial
from coe.runtime.trial import MeasuredOnce

LINES = 3
MEMORY = "17MB"
"""Enough for each line, and far less than what all of them grow by."""


@pytest.fixture
def measured(measures_itself: None, monkeypatch: pytest.MonkeyPatch) -> MeasuredOnce:
    """What nobody has measured yet."""
    fresh = MeasuredOnce()
    monkeypatch.setattr(cpu.CpuDevice.__init__, "__kwdefaults__", {"measured": fresh})
    return fresh


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all batches whose memory is measured, in order."""
    sizes: list[int] = []
    measure = trial.Trial.batch_bytes

    def count(self: trial.Trial, images: int) -> int:
        sizes.append(images)
        return measure(self, images)

    monkeypatch.setattr(trial.Trial, "batch_bytes", count)
    return sizes


def test_lines_of_one_board_that_open_at_once_measure_once(
    tiny: tuple[Path, Path], pictures: list[Picture], measured: MeasuredOnce, batches: list[int]
) -> None:
    board, store = tiny

    def inspect(_: int) -> list[Verdict | None]:
        with Inspector(board, store=store, memory=MEMORY) as line:
            return [result.verdict for result in line.stream(pictures[:3])]

    with ThreadPoolExecutor(LINES) as pool:
        verdicts = list(pool.map(inspect, range(LINES)))
    assert all(len(each) == 3 and None not in each for each in verdicts)
    # Two networks, each with one image and with several.
    assert len(batches) == 4
    assert repr(measured) == "<MeasuredOnce 2 results>"


@pytest.mark.slow
def test_a_line_opens_while_another_runs(
    tiny: tuple[Path, Path], pictures: list[Picture], measured: MeasuredOnce
) -> None:
    board, store = tiny
    ended = threading.Event()

    def endless() -> Iterator[Picture]:
        for picture in itertools.cycle(pictures):
            if ended.is_set():
                return
            yield picture

    with Inspector(board, store=store, memory=MEMORY, inbox=4) as busy, ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: sum(result.error is None for result in busy.stream(endless())))
        try:
            measured._results.clear()
            with Inspector(board, store=store, memory=MEMORY) as line:
                assert all(result.error is None for result in line.stream(pictures[:3]))
        finally:
            ended.set()
        assert running.result() > 0
