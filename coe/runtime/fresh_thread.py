"""Work on a fresh thread that ends with the work, so that OpenMP drops the thread's team.

OpenMP keeps a team of threads for every live thread that has run operators. Once there are more team threads than
cores, even idle ones, libgomp stops waiting actively between operators: a batch of one image took 33 to 45 ms instead
of 25 (ResNet18 on two cores, with the idle team of a main thread that had measured).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def on_fresh_thread(work: Callable[[], T]) -> T:
    """Do `work` on a fresh thread; return what it returns, or raise what it raises."""
    with ThreadPoolExecutor(1, thread_name_prefix="coe-fresh") as pool:
        return pool.submit(work).result()
