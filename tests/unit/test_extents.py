"""Runs of memory are handed out whenever as many bytes are free, and what lies in the way is moved, bytes and all."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coe.runtime.cuda.blob_memory import slide
from coe.runtime.cuda.extents import Extents
from coe.store.blob_format import PAGE


def still(extent, to):
    raise AssertionError("nothing had to move")


def test_the_first_gap_that_is_large_enough_is_taken():
    extents = Extents(10 * PAGE)
    a, b, _ = (extents.take(size * PAGE, still) for size in (3, 2, 3))
    extents.give(a)
    assert [extents.take(size, still).start for size in (2 * PAGE, 1, PAGE)] == [0, 2 * PAGE, 8 * PAGE]
    assert extents.take(2 * PAGE, still) is None
    assert b.start == 3 * PAGE
    assert repr(extents) == f"<Extents 5 in {9 * PAGE:,} of {10 * PAGE:,} bytes>"
    extents.check()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9 * PAGE)), max_size=60))
def test_what_is_free_can_be_had_and_nothing_is_lost_on_the_way(turns):
    extents, memory = Extents(16 * PAGE + 5), np.zeros(16 * PAGE, np.uint8)
    held = []

    def move(extent, to):
        assert to < extent.start
        memory[to : to + extent.size] = memory[extent.start : extent.start + extent.size].copy()

    for number, (gives, size) in enumerate(turns):
        if gives and held:
            extents.give(held.pop(size % len(held))[0])
            continue
        free = extents.free
        extent = extents.take(size, move)
        assert (extent is None) == (-(-size // PAGE) * PAGE > free)
        if extent is not None:
            held.append((extent, number % 256))
            memory[extent.start : extent.start + extent.size] = number % 256
        extents.check()
        for one, mark in held:
            assert (memory[one.start : one.start + one.size] == mark).all()


@pytest.mark.parametrize("scratch", [64, 1000])
@pytest.mark.parametrize(("start", "to", "size"), [(10, 0, 500), (300, 0, 300), (300, 1, 3000), (299, 298, 2000)])
def test_bytes_slide_down_over_themselves(start, to, size, scratch):
    memory = torch.arange(5000).to(torch.uint8)
    expected = memory[start : start + size].clone()
    slide(memory, start, to, size, torch.zeros(scratch, dtype=torch.uint8))
    assert torch.equal(memory[to : to + size], expected)
