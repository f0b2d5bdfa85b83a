"""The devices of a line, the threads of their executors, and the threads that decode its pictures.

An executor of a CPU for which the user names no number of threads gets an equal part of the cores that are free.
Threads of one operator wait for each other, so a thread on a core that other programs use holds up all the others; and
a camera or a display beside the line needs its cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from coe import config
from coe.config import format_bytes
from coe.errors import ConfigError
from coe.helpers import system
from coe.helpers.system import usable_cores
from coe.inspector.settings import inbox_bytes
from coe.runtime.cpu import CpuDevice
from coe.runtime.cuda import torch_driver
from coe.runtime.cuda.collector import give_back
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.runtime.device import Device
from coe.runtime.inputs import Decoding
from coe.store.runnable_kinds import RunnableKind
from coe.store.store_reader import StoreReader

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


MakeDevices = Callable[..., Mapping[str, Device]]
"""Makes a line's devices, by name, from the arguments of `make`."""
MAKERS: Mapping[str, Callable[..., Device]] = {"cpu": CpuDevice, "cuda": CudaDevice}
"""The makers of devices, by the device's name."""


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """The device memory of each GPU, and the host memory of all, in bytes; None means a part of what is free.

    Of a GPU's memory the graphs of each executor may hold `batch_bytes`; None means a quarter for all of them.
    `search_kernels` lets libraries run all their kernels for each graph, to find the quickest, before it is captured.
    """

    memory_bytes: int | None = None
    host_bytes: int | None = None
    search_kernels: bool = True
    batch_bytes: int | None = None


def decoding(memory_bytes: int, given_bytes: int | None = None) -> Decoding:
    """Return how many pictures are decoded at a time, and in how much memory; see `settings.waiting_bytes`.

    Two cores are left to decisions and to an executor, if there are four. On two cores, one thread makes fewer inputs
    than decisions and a quick device take.
    """
    part = inbox_bytes(memory_bytes) // 4 if given_bytes is None else given_bytes
    return Decoding(max(2, usable_cores() - 2), part, part)


def make(
    numbers: Mapping[str, int],
    store: StoreReader,
    known: Mapping[str, RunnableKind],
    threads: Mapping[str, int],
    *,
    gpu: GpuSettings = GpuSettings(),
    say: Callable[[str], None] = lambda sentence: None,
    makers: Mapping[str, Callable[..., Device]] = MAKERS,
) -> dict[str, Device]:
    """Make the devices that `numbers` (of executors) names, with `threads` threads for each executor.

    An executor of a device without `threads` gets an equal part of all cores. `makers` make the devices, by name; that
    of "cuda" makes "cuda:1" too. Each GPU has memories of its own; the host memory for copies is divided equally.
    Raises ConfigError for an unknown device.
    """
    if unknown := [device for device in numbers if device not in makers and not _number(device).isdecimal()]:
        raise ConfigError(f"there is no device '{unknown[0]}'; known: {', '.join(makers)}, and cuda:1 for another GPU")
    gpus = {device: count for device, count in numbers.items() if config.is_gpu(device)}
    made: dict[str, Device] = {}
    for device in numbers:
        if device in gpus:
            made[device] = makers["cuda"](store, known, **_gpu_options(device, gpus, gpu, say))
        else:
            number = threads.get(device) or threads_each(numbers, usable_cores())[device]
            made[device] = makers[device](store, known, number)
    return made


def _number(device: str) -> str:
    """Return the number of a GPU, as in "cuda:1"; "" for every other name."""
    return device.partition(":")[2] if config.is_gpu(device) else ""


def _gpu_options(
    name: str, gpus: Mapping[str, int], settings: GpuSettings, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the arguments of a GPU's device beside all of `gpus` (executors by name), with its driver.

    Raises ConfigError if the GPU is not there, or has too little memory.
    """
    number = _number(name)
    numbered = {"index": int(number)} if number else {}
    driver = torch_driver.driver(search_kernels=settings.search_kernels, **numbered)
    # The memory of an earlier line is free only after torch gives it back.
    give_back(driver)
    usage = driver.usage()
    memory_bytes = int(config.DEVICE_SHARE * usage.free) if settings.memory_bytes is None else settings.memory_bytes
    if memory_bytes > usage.free:
        raise ConfigError(
            f"a device memory of {format_bytes(memory_bytes)} is more than is free on {name} "
            f"({format_bytes(usage.free)} of {format_bytes(usage.total)}); give less --device-memory"
        )
    host_bytes = settings.host_bytes
    if host_bytes is None:
        host_bytes = min(config.parse_bytes(config.HOST_MEMORY), psutil.virtual_memory().available // 2)
    host_bytes //= len(gpus)  # each copy is of use to the GPU that read it alone
    say(
        f"{name}: {format_bytes(memory_bytes)} of {format_bytes(usage.total)} of device memory (its driver and other "
        f"processes hold another {format_bytes(usage.elsewhere)}), {format_bytes(host_bytes)} of host memory for copies"
    )
    own = {"executors": gpus[name], "memory_bytes": memory_bytes, "host_bytes": host_bytes}
    return {"driver": driver, **own, "batch_bytes": settings.batch_bytes, "say": say}
