"""Commands keep one heap for all threads, unless the environment names another number."""

import os
import platform
import subprocess
import sys

import pytest

HEAPS = """
import ctypes, sys, threading
from coe.cli.start import use_one_heap
use_one_heap()
libc, together = ctypes.CDLL(None), threading.Barrier(4)
libc.fopen.restype = ctypes.c_void_p
def work():
    kept = [bytes(1000) for _ in range(100)]
    together.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
stream = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, ctypes.c_void_p(stream)); libc.fclose(ctypes.c_void_p(stream))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives each thread a heap")
@pytest.mark.parametrize(("asked", "one"), [(None, True), ("3", False)])
def test_threads_share_a_heap(tmp_path, asked, one):
    env = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    env |= {} if asked is None else {"MALLOC_ARENA_MAX": asked}
    subprocess.run([sys.executable, "-c", HEAPS, str(tmp_path / "heaps")], check=True, env=env)
    assert ((tmp_path / "heaps").read_text().count("<heap nr=") == 1) is one
