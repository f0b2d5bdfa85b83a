"""How many threads each executor of a CPU gets if the user names no number: an equal part of the cores that are free.

Threads of one operator wait for each other, so a thread on a core that other programs use holds up all the others; and
a camera or a display beside the line needs its cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import psutil

from coe import config, system


def free_cores(over_s: float = config.CORES_WATCHED_S) -> int:
    """Watch the cores that this process may use for `over_s` seconds; return how many other processes leave free.

    What this process uses counts as free. At least one core is free, and cores that are used a little count as free.
    """
    process = psutil.Process()
    used_s = _used_s(process)
    shares = psutil.cpu_percent(interval=over_s, percpu=True)
    own = (_used_s(process) - used_s) / over_s
    usable = system.usable_cores()
    # Without the numbers of the cores that this process may use, the mean of all cores has to do.
    mine = process.cpu_affinity() if hasattr(process, "cpu_affinity") else []
    busy = [shares[core] for core in mine if core < len(shares)] or shares
    elsewhere = max(0.0, sum(busy) / 100 * usable / len(busy) - own)
    return min(usable, max(1, round(usable - elsewhere)))


def threads_each(executors: Mapping[str, int], cores: int) -> dict[str, int]:
    """Return the threads of each executor, by device, for `executors` by device that share `cores`.

    Each executor of a GPU keeps a core busy, too, with the work before and after its batches.
    """
    left = max(1, cores - executors.get("cuda", 0))
    return {device: max(1, left // count) for device, count in executors.items() if device != "cuda"}


def chosen_threads(
    executors: Mapping[str, int], given: Mapping[str, int], cores: int | None, say: Callable[[str], None]
) -> dict[str, int]:
    """Return the threads of each executor, by device: the `given` number, else a part of the free cores.

    `cores` are those to share out; None means the cores that are free now. `say` is told if that is not all of them.
    """
    if all(device in given or device == "cuda" for device in executors):
        return dict(given)
    cores = free_cores() if cores is None else cores
    chosen = threads_each(executors, cores)
    if cores < (usable := system.usable_cores()):
        each = ", ".join(f"{number} for each executor of {device}" for device, number in chosen.items())
        say(f"other programs leave {cores} of {usable} cores free; threads: {each}")
    return {**chosen, **given}


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
