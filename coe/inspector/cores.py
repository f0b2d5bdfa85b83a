"""How many threads each executor of a CPU gets if the user names no number: an equal part of the cores that are free.

Threads of one operator wait for each other, so a thread on a core that other programs use holds up all the others; and
a camera or a display beside the line needs its cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import psutil

from coe import config, system

_looks: list[tuple[int, float]] = []
"""The last look of this process, if there was one: how many cores were free, at a time of the monotonic clock."""


def free_cores(over_s: float = config.CORES_WATCHED_S) -> int:
    """Watch the cores that this process may use for `over_s` seconds; return how many other processes leave free.

    What this process uses counts as free. At least one core is free, and cores that are used a little count as free.
    If the system does not tell what cores do, all are free.
    """
    usable = system.usable_cores()
    try:
        process = psutil.Process()
        used_s = _used_s(process)
        shares = psutil.cpu_percent(interval=over_s, percpu=True)
        own = (_used_s(process) - used_s) / over_s
    except (OSError, psutil.Error):
        return usable
    # In a container, the numbers of cores may not be those of the list.
    mine = [shares[core] for core in system.core_numbers() if core < len(shares)] or shares
    if not mine:
        return usable
    # A quota of a few cores is not used up by what other programs do on the many cores of the machine.
    idle = sum(1 - share / 100 for share in mine) + own
    return min(usable, max(1, round(idle)))


def threads_each(executors: Mapping[str, int], cores: int) -> dict[str, int]:
    """Return the threads of each executor, by device, for `executors` by device that share `cores`.

    Each executor of a GPU keeps a core busy, too, with the work before and after its batches.
    """
    left = max(1, cores - sum(count for device, count in executors.items() if config.is_gpu(device)))
    return {device: max(1, left // count) for device, count in executors.items() if not config.is_gpu(device)}


def choose_threads(
    executors: Mapping[str, int], given: Mapping[str, int], cores: int | None, say: Callable[[str], None]
) -> dict[str, int]:
    """Return the threads of each executor, by device: the `given` number, else a part of the free cores.

    `cores` are those to share out; None means the cores that are free now. `say` is told if that is not all of them.
    """
    if all(device in given or config.is_gpu(device) for device in executors):
        return dict(given)
    cores = _free_cores_lately() if cores is None else cores
    chosen = threads_each(executors, cores)
    if cores < (usable := system.usable_cores()):
        each = ", ".join(f"{number} for each executor of {device}" for device, number in chosen.items())
        say(f"other programs leave {cores} of {usable} cores free; threads: {each}")
    return {**chosen, **given}


def _free_cores_lately() -> int:
    """Return how many cores are free, by a look that is not old: a program that opens many lines looks once."""
    if not _looks or time.monotonic() - _looks[0][1] > config.CORES_TRUSTED_S:
        _looks[:] = [(free_cores(), time.monotonic())]
    return _looks[0][0]


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
