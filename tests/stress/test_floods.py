"""A line that is flooded keeps to its memory; lines that come and go leave nothing behind."""

import ctypes
import gc
import os
import sys
import threading
from typing import NamedTuple

import numpy as np
import psutil
import pytest

from coe import Inspector, Picture
from coe.helpers.system import give_memory_back

IMAGES, PRODUCERS = 6000, 4
REOPENED, WARM = 40, 5
"""How many lines are opened and closed, and how many of them fill caches of the process first."""
MOST_LEAK_BYTES = 50_000
"""What a line may leave on the heap; over 300 lines it was 2 kB a line."""


def test_a_flood_is_answered_to_the_last_image_in_bounded_memory(tiny, chance):
    board, store = tiny
    frames = [
        np.frombuffer(chance.randbytes(side * side * 3), np.uint8).reshape(side, side, 3)
        for side in (24, 48, 300, 1200)
    ]
    answered = [0] * PRODUCERS
    with Inspector(board, store=store, memory="150MB", inbox=10_000, profile=None) as line:
        for _ in line.stream(Picture(frame, "ABC"[number % 3]) for number, frame in enumerate(frames * 20)):
            pass
        before = psutil.Process().memory_info().rss

        def flood(place):
            pictures = (
                Picture(frames[(place + number) % len(frames)], "ABC"[number % 3], serial=f"{place}-{number // 50}")
                for number in range(IMAGES // PRODUCERS)
            )
            answered[place] = sum(result.error is None for result in line.stream(pictures))

        threads = [threading.Thread(target=flood, args=(place,)) for place in range(PRODUCERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        grown = psutil.Process().memory_info().rss - before
    assert answered == [IMAGES // PRODUCERS] * PRODUCERS
    # Experts and images under way have 150 MB in all; a tenth for what Python and the allocator keep.
    assert grown <= 165e6, f"the process grew by {grown / 1e6:.0f} MB"


class _Heap(ctypes.Structure):
    """What glibc's `mallinfo2` says of the heap."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "top",
        )
    ]


class Life(NamedTuple):
    """What the process holds after a line was closed; `left` are its threads and open descriptors."""

    heap_bytes: int
    resident_bytes: int
    left: tuple[int, int]


def held_bytes():
    """Return what somebody holds of the heap. Unlike the process's size it does not waver with what the heap keeps."""
    heap_of = ctypes.CDLL(None).mallinfo2
    heap_of.restype = _Heap
    heap = heap_of()
    return heap.uordblks + heap.hblkhd


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc tells")
def test_lines_that_are_opened_and_closed_leave_no_memory_threads_or_descriptors(tiny, pictures):
    board, store = tiny
    process = psutil.Process()

    def life():
        with Inspector(board, store=store, memory="75MB", profile=None) as line:
            assert sum(result.error is None for result in line.stream(pictures)) == len(pictures)
        del line
        gc.collect()
        give_memory_back()
        left = threading.active_count(), len(os.listdir("/proc/self/fd"))
        return Life(held_bytes(), process.memory_info().rss, left)

    lives = [life() for _ in range(REOPENED)][WARM:]
    assert lives[-1].left == lives[0].left, "threads or descriptors are left"
    # The heap goes up and down in steps of about a megabyte, whatever lines do. A step lies in one half of the lives, a
    # leak of each line in both; the median slope between any two lives shows it as what it is.
    from scipy.stats import theilslopes  # slow to import, and `make test` collects this file

    held = [life.heap_bytes for life in lives]
    leak = min(theilslopes(half).slope for half in (held[: len(held) // 2], held[len(held) // 2 :]))
    assert leak <= MOST_LEAK_BYTES, f"each line left {leak / 1e3:.0f} kB"
    # Buffers of weights are no part of the heap, and one of them is 45 MB.
    grown = lives[-1].resident_bytes - lives[0].resident_bytes
    assert grown <= 45e6, f"the process grew by {grown / 1e6:.1f} MB"


@pytest.fixture(autouse=True)
def _quiet_machine():
    gc.collect()
    give_memory_back()
