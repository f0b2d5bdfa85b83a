"""A line that is flooded keeps to its memory; lines that come and go leave nothing behind."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading

import numpy as np
import psutil
import pytest

from coe import Inspector, Picture
from coe.system import give_memory_back

IMAGES, PRODUCERS, REOPENED = 6000, 4, 20


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

        def flood(place: int) -> None:
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


def held_bytes() -> int:
    """Return what somebody holds of the heap. Unlike the process's size it does not waver with what the heap keeps."""
    heap_of = ctypes.CDLL(None).mallinfo2
    heap_of.restype = _Heap
    heap = heap_of()
    return heap.uordblks + heap.hblkhd


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc tells")
def test_lines_that_are_opened_and_closed_leave_no_memory_threads_or_descriptors(tiny, pictures):
    board, store = tiny

    process = psutil.Process()

    def life() -> tuple[int, int, int, int]:
        with Inspector(board, store=store, memory="75MB", profile=None) as line:
            assert sum(result.error is None for result in line.stream(pictures)) == len(pictures)
        del line
        gc.collect()
        give_memory_back()
        return held_bytes(), process.memory_info().rss, threading.active_count(), len(os.listdir("/proc/self/fd"))

    lives = [life() for _ in range(REOPENED)]
    (early, early_rss, *before), (late, late_rss, *after) = lives[4], lives[-1]
    assert after == before, "threads or descriptors are left"
    assert late - early <= 1e6, f"{REOPENED - 5} lines left {(late - early) / 1e6:.1f} MB"
    # Buffers of weights are no part of the heap, and one of them is 45 MB.
    assert late_rss - early_rss <= 45e6, f"the process grew by {(late_rss - early_rss) / 1e6:.1f} MB"


@pytest.fixture(autouse=True)
def _quiet_machine() -> None:
    gc.collect()
    give_memory_back()
