"""Processes that keep cores busy beside a benchmark, as other programs on a factory box do. None outlives it.

A process ends when the pipe to its parent closes, so it ends however the parent ends.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_BUSY = """
import os, sys, threading
def end():
    sys.stdin.buffer.read()
    os._exit(0)
threading.Thread(target=end, daemon=True).start()
sys.stdout.write("busy\\n")
sys.stdout.flush()
while True:
    sum(range(100000))
"""
_END_S = 5.0
"""How long a process may take to end by itself."""


@contextmanager
def busy_processes(number: int) -> Iterator[list[int]]:
    """Keep `number` processes busy within the block, each on one core; yield their process ids."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(number):
            # In a session of its own, so that Ctrl-C reaches the benchmark alone, which then ends it.
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BUSY],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            started.append(process)
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
        for process in started:
            # Also closes the pipes.
            process.communicate(timeout=_END_S)
