"""How much faster several executors are than one: they share caches, memory and, for all we know, cores."""

from __future__ import annotations

import statistics
import threading
from concurrent.futures import ThreadPoolExecutor

from coe import assembly
from coe.core import Expert
from coe.kinds import Kind
from coe.store import Store

_BATCH = 2
_ROUNDS = 5


def together(expert: Expert, kind: Kind, store: Store, executors: int, threads: int) -> float:
    """Return the speed of `executors` workers of `threads` threads each, in units of one of them alone.

    Each runs batches of its own copy of one expert, all at once, on threads that end. Raises StoreError.
    """
    if executors == 1:
        return 1.0
    alone_s, all_s = _batch_s(expert, kind, store, 1, threads), _batch_s(expert, kind, store, executors, threads)
    return min(float(executors), executors * alone_s / all_s)


def _batch_s(expert: Expert, kind: Kind, store: Store, executors: int, threads: int) -> float:
    """Return the seconds of a batch while so many run."""
    ready = threading.Barrier(executors)

    def work(_: int) -> float:
        device = assembly.devices({"cpu": executors}, store, {expert.kind: kind}, {"cpu": threads})["cpu"]
        try:
            with device.trial(expert) as trial:
                trial.batch_s(_BATCH)
                ready.wait()
                return statistics.median(trial.batch_s(_BATCH) for _ in range(_ROUNDS))
        except BaseException:
            # The others would wait for this one for ever.
            ready.abort()
            raise

    with ThreadPoolExecutor(executors, thread_name_prefix="coe-together") as pool:
        return statistics.mean(pool.map(work, range(executors)))
