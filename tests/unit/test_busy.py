"""Busy processes beside a benchmark: they use cores, and none is left, however the benchmark ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest

from coe.lab.busy import busy_processes


def is_gone(pid: int, within_s: float = 20.0) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_processes_are_busy_within_the_block_and_gone_after_it() -> None:
    with busy_processes(2) as pids:
        before = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids]
        until = time.monotonic() + 20
        while time.monotonic() < until:
            used = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids]
            if all(now > then for now, then in zip(used, before, strict=True)):
                break
            time.sleep(0.05)
        else:
            pytest.fail("the processes do nothing")
    assert not any(psutil.pid_exists(pid) for pid in pids)


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
    assert is_gone(pid)


def test_no_process_is_no_process() -> None:
    with busy_processes(0) as pids:
        assert pids == []
