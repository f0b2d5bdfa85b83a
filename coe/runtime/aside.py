"""Work on a thread of its own that ends with it, so that OpenMP forgets that it ever ran.

OpenMP keeps a team of threads for every thread that has run operators, as long as that one lives. With more of them
than cores, even if all but one team are idle, libgomp stops waiting actively between operators: a batch of one image
took 33 to 45 ms instead of 25 (ResNet18 on two cores, beside the idle team of a main thread that had measured).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def aside(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises."""
    with ThreadPoolExecutor(1, thread_name_prefix="coe-aside") as pool:
        return pool.submit(work).result()
