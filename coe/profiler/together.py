"""How much faster several executors are than one: they share caches, memory and, for all we know, cores."""

from __future__ import annotations

import statistics
import threading
import time

from coe import assembly, kinds
from coe.core import Expert
from coe.store import Store

_BATCH = 2
_ROUNDS = 5


def together(expert: Expert, store: Store, executors: int, threads: int) -> float:
    """Return the speed of `executors` workers of `threads` threads each, in units of one of them alone.

    Each runs batches of its own copy of one expert's kind, all at once, on threads that end.
    """
    if executors == 1:
        return 1.0
    alone_s, all_s = _round_s(expert, store, 1, threads), _round_s(expert, store, executors, threads)
    return min(float(executors), executors * alone_s / all_s)


def _round_s(expert: Expert, store: Store, executors: int, threads: int) -> float:
    """Return the median seconds of a batch while so many run."""
    ready, times = threading.Barrier(executors), list[float]()

    def work() -> None:
        device = assembly.devices(
            {"cpu": executors}, store, {expert.kind: kinds.resolve(expert.kind)}, {"cpu": threads}
        )
        with device["cpu"].trial(expert) as trial:
            trial.batch_s(_BATCH)
            ready.wait()
            own = []
            for _ in range(_ROUNDS):
                began = time.perf_counter()
                trial.batch_s(_BATCH)
                own.append(time.perf_counter() - began)
            times.append(statistics.median(own))

    workers = [threading.Thread(target=work, name=f"coe-together-{index}") for index in range(executors)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return statistics.mean(times)
