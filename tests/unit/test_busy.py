"""Busy processes beside a benchmark: they use cores, and none is left, however the benchmark ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from coe.lab.busy import busy_processes


def becomes(fact: Callable[[], bool]) -> bool:
    """Wait until a fact is true, at most 20 s."""
    until = time.monotonic() + 20
    while not fact():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def used_s(pid: int) -> float:
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


def test_processes_are_busy_within_the_block_and_gone_after_it() -> None:
    with busy_processes(2) as pids:
        before = [used_s(pid) for pid in pids]
        assert becomes(lambda: all(used_s(pid) > then for pid, then in zip(pids, before, strict=True)))
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with busy_processes(0) as none:
        assert none == []


def test_they_are_gone_after_an_interrupt() -> None:
    pids: list[int] = []

    def interrupted() -> None:
        with busy_processes(1) as started:
            pids.extend(started)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not psutil.pid_exists(pids[0])


def test_they_are_gone_after_a_benchmark_that_was_killed() -> None:
    program = (
        "from coe.lab.busy import busy_processes\n"
        "with busy_processes(1) as pids:\n    print(pids[0], flush=True)\n    input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as benchmark:
        assert benchmark.stdout is not None
        pid = int(benchmark.stdout.readline())
        benchmark.send_signal(signal.SIGKILL)
    assert becomes(lambda: is_gone(pid))
