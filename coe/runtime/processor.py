"""Features of the processor that torch does not report, and the threads that operators use."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from coe.helpers.system import give_memory_back, processor_features

T = TypeVar("T")

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


def within_limit(threads: int) -> int:
    """Return `threads`, or what `OMP_THREAD_LIMIT` allows if that is fewer.

    oneDNN divides products in bf16 among the threads that torch was told of. If OpenMP gives fewer, parts that nobody
    computed are added: results are wrong, without an error (torch 2.11 on a processor with AMX).
    """
    limit = os.environ.get("OMP_THREAD_LIMIT", "")
    return min(threads, int(limit)) if limit.isdecimal() and int(limit) else threads


def bound_threads(number: int) -> None:
    """Let the calling thread's operators use `number` threads from now on, or as many as `OMP_THREAD_LIMIT` allows."""
    # `get_num_threads` also fixes the number. A thread that never called it inherits, with its first operator, the
    # last value that any thread set.
    if torch.get_num_threads() != within_limit(number):
        torch.set_num_threads(within_limit(number))


def trainer_threads(asked: int) -> int:
    """Return the threads with which a training may compute: `asked`, or all cores for 0, within the limit."""
    return within_limit(asked or os.cpu_count() or 1)


@functools.cache
def has_bf16() -> bool:
    """Tell whether the processor calculates in bf16; if it does not, torch would convert number by number."""
    return not _BF16_FLAGS.isdisjoint(processor_features())


def on_fresh_thread(work: Callable[[], T]) -> T:
    """Do `work` on a fresh thread that ends with it, so that OpenMP drops the thread's team; return what it returns.

    OpenMP keeps a team of threads for every live thread that has run operators. Once there are more team threads than
    cores, even idle ones, libgomp stops waiting actively between operators: a batch of one image took 33 to 45 ms
    instead of 25 (ResNet18 on two cores, with the idle team of a main thread that had measured).
    """
    with ThreadPoolExecutor(1, thread_name_prefix="coe-fresh") as pool:
        try:
            return pool.submit(work).result()
        finally:
            pool.submit(give_memory_back)  # the end of its heap: once the thread has ended nobody can
