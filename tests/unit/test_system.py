"""What the system offers is used where it is there; where it is not, the rest goes on."""

from __future__ import annotations

import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from coe.helpers import system
from coe.inspector import line_devices
from coe.inspector.line_devices import choose_threads, free_cores, threads_each


@pytest.fixture
def windows(monkeypatch):
    pauses = []
    monkeypatch.setattr(system, "_REPLACES_OPEN_FILES", False)
    monkeypatch.setattr(system.time, "sleep", pauses.append)
    return pauses


def refusing(times, monkeypatch):
    really, left = Path.replace, [times]

    def replace(self, target):
        if left[0]:
            left[0] -= 1
            raise PermissionError(13, "Access is denied")
        return really(self, target)

    monkeypatch.setattr(Path, "replace", replace)


def test_a_file_that_a_reader_has_open_is_replaced_a_moment_later_or_an_error_after_a_second(
    tmp_path, windows, monkeypatch
):
    (tmp_path / "new").write_text("new", encoding="utf-8")
    (tmp_path / "old").write_text("old", encoding="utf-8")
    refusing(3, monkeypatch)
    system.replace(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_text(encoding="utf-8") == "new"
    assert len(windows) == 3
    windows.clear()
    refusing(1000, monkeypatch)
    with pytest.raises(PermissionError):
        system.replace(tmp_path / "new", tmp_path / "old")
    assert sum(windows) == pytest.approx(1.0, abs=0.1)
    monkeypatch.setattr(system, "_REPLACES_OPEN_FILES", True)
    monkeypatch.setattr(system.time, "sleep", lambda _: pytest.fail("nothing to wait for"))
    refusing(1000, monkeypatch)
    with pytest.raises(PermissionError):
        system.replace(tmp_path / "new", tmp_path / "old")


def test_memory_is_private_and_can_be_resized(monkeypatch):
    for _ in range(2):
        memory = system.private_memory(mmap.PAGESIZE)
        memory[:3] = b"abc"
        memory.resize(2 * mmap.PAGESIZE)
        assert memory[:3] == b"abc"
        monkeypatch.delattr(mmap, "MAP_PRIVATE", raising=False)


def test_the_peak_is_what_the_process_has_at_least(monkeypatch):
    now = psutil.Process().memory_info().rss
    assert now / 2 < system.peak_resident_bytes() < 100 * now
    assert (1 <= system.usable_cores() <= (os.cpu_count() or 1), system.open_descriptors() > 0) == (True, True)
    monkeypatch.setitem(sys.modules, "resource", None)
    assert now / 2 < system.peak_resident_bytes() < 100 * now


HEAP_OF_A_THREAD = """
import ctypes, mmap, threading
from pathlib import Path
from coe.helpers import system
libc, size, page = ctypes.CDLL(None), 16 * mmap.PAGESIZE, mmap.PAGESIZE
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def pages(blocks):
    present, count = ctypes.create_string_buffer(size // page), 0
    for block in blocks:
        start = -(-block // page) * page
        count += libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size - page), present) == 0 and sum(present.raw)
    return count

def work():
    system.give_memory_back()
    big = libc.malloc(8 << 20)
    print(big % page == 16)  # mapped apart, as before: its header alone comes before it
    libc.free(libc.malloc(20 << 20))  # from now on glibc keeps the end of a heap up to twice that
    blocks, _ = [0] * 40, pages([big])  # all that Python allocates: it would lie behind the blocks
    libc.free(big)
    for number in range(40):
        blocks[number] = libc.malloc(size)
        ctypes.memset(blocks[number], 1, size)
    taken = pages(blocks)
    for block in blocks:
        libc.free(block)
    system.give_memory_back()
    print(pages(blocks) < taken / 10)
    sizes = []
    for number in range(20):
        system.give_memory_back()
        blocks += [libc.malloc(24) for _ in range(7)]  # what lives on, in the smallest blocks that are free
        sizes.append(int(Path("/proc/self/statm").read_text().split()[0]))
    print((sizes[-1] - sizes[9]) * page < 16 << 20)  # the process takes no further addresses

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives each thread a heap")
def test_a_threads_heap_gives_back_its_end_and_glibc_goes_on_as_before():
    env = {name: value for name, value in os.environ.items() if "MALLOC" not in name and name != "GLIBC_TUNABLES"}
    ended = subprocess.run(
        [sys.executable, "-c", HEAP_OF_A_THREAD], check=True, env=env, capture_output=True, text=True
    )
    assert ended.stdout.split() == ["True"] * 3


@pytest.mark.parametrize(("text", "waited_s"), [("4787 1500000000 2\n", 1.5), ("0 0", 0), ("", 0), (None, 0)])
def test_waits_for_a_processor_are_what_the_system_tells(text, waited_s, tmp_path, monkeypatch):
    monkeypatch.setattr(system, "_OWN_SCHEDULING", tmp_path / "schedstat")
    if text is not None:
        (tmp_path / "schedstat").write_text(text, encoding="ascii")
    assert system.waited_for_processor_s() == waited_s


def test_the_limit_of_descriptors_is_raised_as_far_as_it_goes(monkeypatch):
    resource = pytest.importorskip("resource")
    limit, refusing = (256, 1024), False

    def raised(_, new):
        nonlocal limit
        if refusing:
            raise ValueError("not allowed to raise maximum limit")
        limit = new

    monkeypatch.setattr(resource, "getrlimit", lambda _: limit)
    monkeypatch.setattr(resource, "setrlimit", raised)
    assert system.raise_descriptor_limit(100) == 256
    assert system.raise_descriptor_limit(500) == 500
    assert system.raise_descriptor_limit(5000) == 1024
    assert limit == (1024, 1024)
    limit, refusing = (256, resource.RLIM_INFINITY), True
    assert system.raise_descriptor_limit(5000) == 256
    limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert system.raise_descriptor_limit(5000) == 5000


@pytest.fixture
def groups_of(tmp_path, monkeypatch):
    """Return a function that says in which groups this process is, and what their files hold."""

    def write(own, files):
        (tmp_path / "own").write_text(own, encoding="ascii")
        for name, text in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n", encoding="ascii")
        monkeypatch.setattr(system, "_OWN_GROUPS", tmp_path / "own")
        monkeypatch.setattr(system, "_GROUPS", tmp_path / "groups")

    return write


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000"}, 8),
        ("0::/\n", {"cpu.max": "250000 100000"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000"}, 8),
        # The limit of a group holds for all groups in it.
        ("0::/pod/box\n", {"pod/cpu.max": "300000 100000", "pod/box/cpu.max": "max 100000"}, 3),
        # A container that sees its group as the root, with the path that it has outside.
        ("0::/docker/abc\n", {"cpu.max": "400000 100000"}, 4),
        (
            "4:cpu,cpuacct:/docker/abc\n3:cpuset:/\n",
            {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("4:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        # Nothing, or nonsense.
        ("", {}, 8),
        ("0::/\nnonsense\n", {"cpu.max": "soon never"}, 8),
        ("0::/\n", {"cpu.max": "100000 0"}, 8),
    ],
)
def test_a_container_has_no_more_cores_than_its_quota(groups_of, monkeypatch, own, files, cores):
    groups_of(own, files)
    monkeypatch.setattr(system, "core_numbers", lambda: list(range(8)))
    assert system.usable_cores() == cores


@pytest.mark.parametrize(
    ("own", "files", "megabytes"),
    [
        ("0::/\n", {"memory.max": "max"}, 8000),
        ("0::/\n", {"memory.max": "512000000"}, 512),
        ("0::/\n", {"memory.max": "64000000000"}, 8000),
        ("0::/pod/box\n", {"pod/memory.max": "300000000", "pod/box/memory.max": "400000000"}, 300),
        ("4:cpu:/\n3:memory:/docker/abc\n", {"memory/memory.limit_in_bytes": "256000000"}, 256),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, 8000),
        ("0::/\nnonsense\n", {"memory.max": "soon"}, 8000),
    ],
)
def test_a_container_has_no_more_memory_than_its_limit(groups_of, monkeypatch, own, files, megabytes):
    groups_of(own, files)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=8_000_000_000))
    assert system.usable_memory() == megabytes * 1_000_000


def test_a_system_that_tells_nothing_still_names_its_processor(tmp_path, monkeypatch):
    for name in ("_CPUINFO", "_NVIDIA"):
        monkeypatch.setattr(system, name, tmp_path / "nothing")
    assert system.processor_name()
    assert (system.processor_features(), system.gpu_name(), system.gpu_driver()) == (frozenset(), None, None)
    (tmp_path / "nothing").write_text("Features\t: asimd bf16\n")
    assert system.processor_features() == {"asimd", "bf16"}, "as Linux writes it on ARM"
    monkeypatch.setattr(system, "_libc", lambda: None)  # nor has it a library that gives memory back
    system.give_memory_back()
    with system.heap_taken():
        pass


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


@pytest.mark.parametrize(
    ("executors", "cores", "each"),
    [({"cpu": 1}, 16, 16), ({"cpu": 3}, 16, 5), ({"cuda": 2, "cpu": 1}, 16, 14), ({"cuda": 2, "cpu": 4}, 2, 1)],
)
def test_executors_get_equal_parts(executors, cores, each):
    assert threads_each(executors, cores) == {"cpu": each}


@pytest.mark.parametrize(
    ("given", "free", "threads", "words"), [({"cpu": 7}, 1, 7, []), ({}, 4, 4, []), ({}, 3, 3, ["3 of 4 cores"])]
)
def test_executors_have_the_users_number_and_fewer_cores_are_said(monkeypatch, given, free, threads, words):
    monkeypatch.setattr(system, "usable_cores", lambda: 4)
    said = []
    assert choose_threads({"cpu": 1}, given, free, said.append) == {"cpu": threads}
    assert [word in sentence for word, sentence in zip(words, said, strict=True)] == [True] * len(words)


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


LARGE = """
import re
from coe.cli.start import use_large_pages
use_large_pages()
import torch
tensor = torch.empty(64 << 20, dtype=torch.uint8)
at = tensor.data_ptr() + (32 << 20)
for mapping in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", open("/proc/self/smaps").read())[1:]:
    start, end = (int(edge, 16) for edge in mapping.split(maxsplit=1)[0].split("-"))
    if start <= at < end:
        print("hg" in re.search("VmFlags:(.*)", mapping)[1].split())
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has no large pages")
@pytest.mark.parametrize(("asked", "large"), [(None, "True"), ("0", "False")])
def test_tensors_of_commands_lie_in_large_pages(asked, large):
    env = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    env |= {} if asked is None else {"THP_MEM_ALLOC_ENABLE": asked}
    run = subprocess.run([sys.executable, "-c", LARGE], check=True, env=env, capture_output=True, text=True)
    assert run.stdout.split() == [large]
