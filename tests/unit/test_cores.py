"""The threads of executors of a CPU: the user's number, else a part of the cores that other programs leave free."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from coe.helpers import system
from coe.inspector import line_devices
from coe.inspector.line_devices import choose_threads, free_cores, threads_each


class Machine:
    """A machine of some cores, each busy for a share of the time; this process uses so many of them."""

    def __init__(self, shares, own=0.0):
        self.shares, self.own, self.used_s = shares, own, 0.0

    def watch(self, interval, percpu):
        self.used_s += self.own * interval
        return [100 * share for share in self.shares]

    def process(self):
        return self

    def cpu_times(self):
        return SimpleNamespace(user=self.used_s, system=0.0)


@pytest.mark.parametrize(
    ("shares", "own", "usable", "free"),
    [
        ([0.0, 0.0], 0.0, 2, 2),
        ([0.2, 0.1], 0.0, 2, 2),
        ([1.0, 0.1], 0.0, 2, 1),
        ([1.0, 1.0], 0.0, 2, 1),
        ([1.0, 1.0], 1.0, 2, 1),
        ([1.0, 1.0], 2.0, 2, 2),
        ([1.0] * 5 + [0.05] * 11, 0.0, 16, 10),
        ([0.5, 0.5], 3.0, 2, 2),
        # A container with a quota on a large machine has it as long as so many cores are idle.
        *[
            ([1.0] * busy + [0.0] * (64 - busy), 0.0, 4, free)
            for busy, free in [(0, 4), (32, 4), (59, 4), (61, 3), (64, 1)]
        ],
    ],
)
def test_cores_that_other_programs_use_are_not_free(monkeypatch, shares, own, usable, free):
    machine = Machine(shares, own)
    monkeypatch.setattr(psutil, "Process", machine.process)
    monkeypatch.setattr(psutil, "cpu_percent", machine.watch)
    monkeypatch.setattr(system, "usable_cores", lambda: usable)
    monkeypatch.setattr(system, "core_numbers", lambda: list(range(len(shares))))
    assert free_cores(0.5) == free


@pytest.mark.parametrize("tells", [lambda **_: [], lambda **_: (_ for _ in ()).throw(PermissionError("/proc/stat"))])
def test_where_the_system_does_not_tell_what_cores_do_all_are_free(monkeypatch, tells):
    monkeypatch.setattr(psutil, "cpu_percent", tells)
    assert free_cores(0.5) == system.usable_cores()


def test_executors_get_equal_parts_or_the_users_number_and_fewer_cores_are_said(monkeypatch):
    assert threads_each({"cpu": 1}, 16) == {"cpu": 16}
    assert threads_each({"cpu": 3}, 16) == {"cpu": 5}
    assert threads_each({"cuda": 2, "cpu": 1}, 16) == {"cpu": 14}
    assert threads_each({"cuda": 2, "cpu": 4}, 2) == {"cpu": 1}
    monkeypatch.setattr(system, "usable_cores", lambda: 4)
    said = []
    for given, free, threads in (({"cpu": 7}, 1, 7), ({}, 4, 4)):
        assert choose_threads({"cpu": 1}, given, free, said.append) == {"cpu": threads}
        assert not said
    assert choose_threads({"cpu": 1}, {}, 3, said.append) == {"cpu": 3}
    assert said == ["other programs leave 3 of 4 cores free; threads: 3 for each executor of cpu"]
    assert free_cores(0.05) >= 1, "a look at this machine finds a core"


def test_many_lines_that_open_one_after_another_look_once(monkeypatch):
    looks = []
    monkeypatch.setattr(line_devices, "_looks", [])
    monkeypatch.setattr(line_devices, "free_cores", lambda: looks.append(0.0) or 3)
    monkeypatch.setattr(system, "usable_cores", lambda: 4)
    now = iter([100.0, 101.0, 110.0, 110.1, 111.0])
    monkeypatch.setattr(line_devices.time, "monotonic", lambda: next(now))
    for opened in range(4):
        assert choose_threads({"cpu": 1}, {}, None, lambda sentence: None) == {"cpu": 3}
        assert len(looks) == (1 if opened < 3 else 2)


# Commands keep one heap for all threads, unless the environment names another number


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
