"""The system's copies of files in memory: dropped, so that a read can be timed as the disk gives it."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

_FEW = 0.02
"""A file of which the system keeps this part is still as good as gone."""


def forget(path: Path) -> bool:
    """Make the system drop its copy of a file; say whether it did, so that the next reader needs the disk."""
    try:
        with path.open("rb") as file:
            # What is not yet written cannot be dropped.
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
