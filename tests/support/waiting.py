"""Waiting for what another thread or process does."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

PATIENCE_S = 60.0


def eventually(condition, what="it"):
    """Wait until a condition holds; fail after a minute, which a busy machine does not need."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"{what} did not come true in {PATIENCE_S:g} s"
        time.sleep(0.005)


class Halt:
    """A place in the work of one thread, where it halts once: another thread must wait meanwhile."""

    def __init__(self):
        self._here, self._go_on = threading.Event(), threading.Event()

    def __call__(self, *args):
        self._here.set()
        assert self._go_on.wait(PATIENCE_S)

    def holds_up(self, first, other):
        """Check that work of another thread ends only once the work that halts here may go on."""
        with ThreadPoolExecutor(2) as threads:
            halted = threads.submit(first)
            assert self._here.wait(PATIENCE_S)
            held_up = threads.submit(other)
            ended_early = wait([held_up], 0.1).done
            self._go_on.set()
            assert not ended_early
            halted.result(PATIENCE_S)
            held_up.result(PATIENCE_S)
