"""Features that not every operating system has. No other module asks which system this is.

Each function looks for the feature that it needs, and has an answer without it. Windows has no `fcntl`, no `resource`,
no `/proc`, no C library that can be called by name, and no descriptor of a folder.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath

import psutil

# Files

OPEN_FLAGS = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))
"""Flags for `os.open`: opening a pipe does not wait for its other end, and reading does not translate line ends."""

_REPLACES_OPEN_FILES = os.name != "nt"
_TRIES, _PAUSE_S = 40, 0.025
_FEW = 0.02
"""A file counts as dropped from memory if the system keeps no more than this share of it there."""


def replace(source: Path, target: Path) -> None:
    """Rename a file to `target`, which it replaces; raises OSError.

    Windows refuses this while any process has `target` open. Our readers keep a file open only for a moment, so the
    rename is tried again for a second.
    """
    tries = 1 if _REPLACES_OPEN_FILES else _TRIES
    while True:
        tries -= 1
        try:
            source.replace(target)
            return
        except PermissionError:
            if not tries:
                raise
            time.sleep(_PAUSE_S)


def save_names(folder: Path) -> None:
    """Write the names in a folder to the disk, if the system can open a folder; raises OSError."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def forget_file(path: Path) -> bool:
    """Make the system drop its copy of a file in memory; return whether it did: then the next reader needs the disk."""
    try:
        with path.open("rb") as file:
            # The system does not drop what it has not yet written.
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapping:
                return _share_in_memory(mapping) <= _FEW
    except (OSError, ValueError, AttributeError):
        # An empty file, or a system without such calls.
        return False


def _share_in_memory(mapping: mmap.mmap) -> float:
    pages = -(-len(mapping) // mmap.PAGESIZE)
    present = (ctypes.c_ubyte * pages)()
    start = ctypes.c_char.from_buffer(mapping)
    failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(mapping)), present)
    # The mapping cannot be closed while its buffer is borrowed.
    del start
    return 1.0 if failed else sum(page & 1 for page in present) / pages


# Memory

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")

# A block is smaller than what glibc maps separately (128 KiB at first); a thread's heap is no larger than _HEAP_BYTES.
_BLOCK_BYTES = 64 << 10
_HEAP_BYTES = 64 << 20


def private_memory(size: int) -> mmap.mmap:
    """Return `size` bytes of private memory, page-aligned and zero; raises OSError."""
    if hasattr(mmap, "MAP_PRIVATE"):
        # Without it the memory would be shared with a forked child.
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)


@cache
def memory_resizes() -> bool:
    """Return whether memory of `private_memory` can be resized in place.

    macOS cannot. Memory that is shared with a child can only shrink: its further pages would belong to no file.
    """
    if not hasattr(mmap, "MAP_PRIVATE") and os.name != "nt":
        return False
    memory = private_memory(mmap.PAGESIZE)
    try:
        memory.resize(2 * mmap.PAGESIZE)
    except (SystemError, AttributeError, ValueError, OSError):
        return False
    return True


def peak_resident_bytes() -> int:
    """Return the largest resident memory of this process so far, or its present size if the system does not tell."""
    try:
        import resource
    except ImportError:
        memory = psutil.Process().memory_info()
        return int(getattr(memory, "peak_wset", memory.rss))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else 1024 * peak


def forget_peak() -> bool:
    """Let `peak_since_forgotten` count from now on; return whether the system can do that (Linux can)."""
    try:
        _CLEAR_REFS.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def peak_since_forgotten() -> int:
    """Return the largest resident memory since `forget_peak`, in bytes; raises OSError, ValueError."""
    text = _STATUS.read_text(encoding="ascii", errors="replace")
    if (line := re.search(r"^VmHWM:\s*(\d+) kB$", text, re.MULTILINE)) is None:
        raise ValueError(f"{_STATUS} does not give the highest resident set")
    return 1024 * int(line[1])


def give_memory_back() -> None:
    """Return freed memory to the system, with the end of the calling thread's heap; glibc would keep it for later."""
    if (libc := _allocator()) is not None:
        _drop_top(libc)
        libc.malloc_trim(0)


def _drop_top(libc: ctypes.CDLL) -> None:
    """Drop the pages of the free memory at the end of the calling thread's heap, which `malloc_trim` leaves there.

    Only glibc knows where that is, so blocks are taken from it, of half the size each time; each size twice, because a
    hole may be large enough for the first. Blocks are shrunk to a page before they are freed: glibc would take the size
    of one that it maps apart as the least that it maps from then on. Smaller ones the thread would keep, so that its
    heap could not shrink, and would take further addresses with each call.
    """
    blocks, size = [], _HEAP_BYTES // 2
    while size >= _BLOCK_BYTES:
        for block in filter(None, (libc.malloc(size), libc.malloc(size))):
            start = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
            whole = (block + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(whole), mmap.MADV_DONTNEED)
            blocks.append(block)
        size //= 2
    for block in blocks:
        libc.free(libc.realloc(block, mmap.PAGESIZE) or block)


@contextmanager
def heap_taken() -> Iterator[None]:
    """Hold all free memory of the calling thread's heap, so that the memory of a batch makes the process grow.

    glibc gives each thread a heap whose top it does not give back to the system (`malloc_trim` does so for the first
    thread only): a batch that reuses the memory of the last batch would seem to need none. With another C library
    nothing is held.
    """
    if (libc := _allocator()) is None:
        yield
        return
    blocks = [libc.malloc(_BLOCK_BYTES) for _ in range(2 * _HEAP_BYTES // _BLOCK_BYTES)]
    try:
        yield
    finally:
        for block in blocks:
            libc.free(block)


def _allocator() -> ctypes.CDLL | None:
    """Return the C library if it gives memory back on request (glibc); else None."""
    libc = _libc()
    if libc is None or not hasattr(libc, "malloc_trim"):
        return None
    libc.malloc.restype = libc.realloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    return libc


@cache
def _libc() -> ctypes.CDLL | None:
    """Return the C library of this process; None on a system that needs its file's name for that (Windows)."""
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):
        return None


# Processor, GPU and process

_OWN_SCHEDULING = Path("/proc/thread-self/schedstat")
_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_CPUINFO, _NVIDIA = Path("/proc/cpuinfo"), Path("/proc/driver/nvidia")


def waited_for_processor_s() -> float:
    """Return how long the calling thread could have run so far, and other work had its processor; 0 if unknown."""
    try:
        return int(_OWN_SCHEDULING.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def processor_name() -> str:
    """Return the processor's name for its model."""
    return _field(_CPUINFO, "model name") or platform.processor() or platform.machine()


def processor_features() -> frozenset[str]:
    """Return the processor's features as Linux names them; none if the system does not list them."""
    return frozenset((_field(_CPUINFO, "flags") or _field(_CPUINFO, "Features") or "").split())


def gpu_is_here() -> bool:
    """Return whether the system shows an NVIDIA GPU to this process."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def gpu_name() -> str | None:
    """Return the model name of the first GPU; None if its driver does not tell."""
    names = (_field(path, "Model") for path in sorted(_NVIDIA.glob("gpus/*/information")))
    return next((name for name in names if name), None)


def gpu_driver() -> str | None:
    """Return the version of the GPU's driver; None if it does not tell."""
    return _field(_NVIDIA / "version", "NVRM version")


def usable_cores() -> int:
    """Return how many cores this process may use: those that it may run on, and no more than its container's quota.

    A quota of 2.5 cores counts as 2: threads that wait for each other would all wait for a thread that is held up.
    """
    quota = min(map(_quota_of, _own_groups("cpu")), default=math.inf)
    return max(1, int(min(len(core_numbers()) or os.cpu_count() or 1, quota)))


def core_numbers() -> list[int]:
    """Return the numbers of the cores that this process may run on; none if the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    process = psutil.Process()
    return list(process.cpu_affinity() or ()) if hasattr(process, "cpu_affinity") else []


def usable_memory() -> int:
    """Return how many bytes of memory this process may use: the machine's, and no more than its container's limit."""
    limits = [psutil.virtual_memory().total]
    for group in _own_groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # "max" is no limit
                limits.append(int((group / name).read_text(encoding="ascii")))
    return min(limits)


def _own_groups(controller: str) -> Iterator[Path]:
    """Yield the control groups of this process that may have limits of a controller (Linux)."""
    try:
        lines = _OWN_GROUPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        # A container may see its group as the root, whatever the path says; limits hold for all groups below.
        path = PurePosixPath(group.lstrip("/"))
        root = _GROUPS / controller if controllers else _GROUPS
        yield from (root / above for above in (path, *path.parents))


def _quota_of(group: Path) -> float:
    """Return the quota of a control group, by the second version of their files or the first."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = " ".join((group / name).read_text(encoding="ascii") for name in names).split()
            if quota.isdecimal() and int(period) > 0:  # else "max", or -1
                return int(quota) / int(period)
    return math.inf


def open_descriptors() -> int:
    """Return the number of open descriptors of this process, or of handles on Windows."""
    process = psutil.Process()
    return process.num_fds() if hasattr(process, "num_fds") else process.num_handles()  # type: ignore[attr-defined]


def raise_descriptor_limit(wanted: int) -> int:
    """Let this process have `wanted` open descriptors, or as many as the system allows; return how many it may have.

    Windows has no such limit, and 8192 is what its C library counts to.
    """
    try:
        import resource
    except ImportError:
        return 8192
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    aim = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if aim > soft:
        with suppress(ValueError, OSError):  # macOS may allow less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
            return aim
    return soft


def _field(path: Path, name: str) -> str | None:
    """Return the value of the first line `name: value` of a file; None if there is no such line or file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    line = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
    return line[1].strip() if line else None
