"""A disk that is full for root too."""

from contextlib import contextmanager

import pytest


@contextmanager
def disk_of(size_bytes):
    """Let no file of this process grow beyond a size: the kernel refuses the bytes beyond, as a full disk does."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
