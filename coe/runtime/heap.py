"""What is free on the heap of the calling thread, taken for a while: then what a batch needs makes the process grow.

glibc gives each thread a heap whose top it does not give back to the system (`malloc_trim` does so for the first thread
only): a batch that finds what the last one left there would seem to need nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

# Less than what is mapped apart (128 KiB at first), and in all what one heap has at most.
_BLOCK_BYTES = 64 << 10
_HEAP_BYTES = 64 << 20


@contextmanager
def heap_taken() -> Iterator[None]:
    """Hold as much of the calling thread's heap as may be free; what is not in memory yet stays out of it."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(ctypes.c_size_t(_BLOCK_BYTES)) for _ in range(2 * _HEAP_BYTES // _BLOCK_BYTES)]
    try:
        yield
    finally:
        for block in blocks:
            libc.free(block)
