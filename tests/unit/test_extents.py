"""Memory is handed out whenever as many bytes are free: in several runs, or in one, for which others are moved."""

import mmap
from itertools import groupby

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coe.helpers.system import memory_resizes
from coe.runtime import blob as buffers_module
from coe.runtime.blob import Buffers
from coe.runtime.cuda.blob_memory import slide
from coe.runtime.cuda.extents import Extents
from coe.store.blob_format import PAGE


def still(extent, to):
    raise AssertionError("nothing had to move")


def laid_out(sizes):
    """Return a memory of runs, each letter as many pages as it is repeated, a dot a free page, and the log of moves."""
    extents, log, gone = Extents(len(sizes) * PAGE), list[str](), []
    runs = [(key, len(list(group))) for key, group in groupby(sizes)]
    for letter, pages in runs:
        extent = extents.take(pages * PAGE, still)
        assert extent is not None
        gone += [extent] if letter == "." else []
    for extent in gone:
        extents.give(extent)
    return extents, log


def moved(layout, pages):
    """Return what moves, and where the new run lies, if `pages` are taken of a memory: pages from and to."""
    extents, log = laid_out(layout)

    def move(extent, to):
        log.append(f"{extent.size // PAGE} from {extent.start // PAGE} to {to // PAGE}")

    extent = extents.take(pages * PAGE, move)
    extents.check()
    return log if extent is None else [*log, f"new at {extent.start // PAGE}"]


def test_gaps_are_the_smallest_and_few_bytes_are_moved_to_make_one():
    assert moved("aaa....bb..c...", 2) == ["new at 9"]
    assert moved("aaa....bb..c...", 3) == ["new at 12"]
    assert moved("aaa....bb..c...", 4) == ["new at 3"]
    assert moved("aaa....bb..c...", 10) == [], "more than is free"
    assert moved(".aaaab.cccc.", 2) == ["1 from 5 to 0", "new at 5"], "into another gap"
    assert moved("aaaa.b.cccc.ddd", 2) == ["1 from 5 to 4", "new at 5"], "down, to the gap before it"
    assert moved("aaaa..bbb..cccc", 3) == ["3 from 6 to 4", "new at 7"], "down, over its own bytes: no gap holds it"
    assert moved("..aaaab.cccc.dddd", 2)[0] == "new at 0", "nothing, if a gap holds it"
    assert moved("..aaaabb..cccc.eeee.", 4) == ["2 from 6 to 0", "new at 6"], "the gap that holds it"
    assert moved("a.b.c.d.", 4) == ["1 from 0 to 5", "1 from 2 to 7", "new at 0"], "all there is"
    assert moved("aa.bb.cc.dd.", 4) == ["2 from 3 to 2", "2 from 6 to 4", "2 from 9 to 6", "new at 8"], (
        "no gap holds them"
    )


def scattered(layout, pages):
    """Return the runs, as pages and the first page, that are handed out if `pages` are taken of a memory in runs."""
    extents, _ = laid_out(layout)
    runs = extents.take_scattered(pages * PAGE)
    extents.check()
    return runs and [f"{run.size // PAGE} at {run.start // PAGE}" for run in runs]


def test_in_runs_nothing_moves_and_the_runs_are_few():
    assert scattered("aaa....bb..c...", 2) == ["2 at 9"], "the smallest gap that holds all"
    assert scattered("aaa....bb..c...", 5) == ["4 at 3", "1 at 9"], "the largest gap, and the smallest for the rest"
    assert scattered("aaa....bb..c...", 9) == ["4 at 3", "3 at 12", "2 at 9"], "all there is"
    assert scattered("aaa....bb..c...", 10) is None, "more than is free"


SIZES = st.sampled_from((1, PAGE, 2 * PAGE - 5, 3 * PAGE, 6 * PAGE))
TURNS = st.lists(st.tuples(st.sampled_from((False, False, True)), SIZES), min_size=20, max_size=60)


@given(TURNS)
def test_in_runs_what_is_free_can_be_had_and_no_byte_is_lent_twice(turns):
    extents, lent = Extents(16 * PAGE + 5), []
    for gives, size in turns:
        if gives and lent:
            for run in lent.pop(size % len(lent)):
                extents.give(run)
            continue
        free, pages = extents.free, -(-size // PAGE)
        runs = extents.take_scattered(size)
        assert (runs is None) == (pages * PAGE > free)
        if runs is not None:
            assert sum(run.size for run in runs) == pages * PAGE
            lent.append(runs)
        extents.check()


@given(TURNS)
def test_what_is_free_can_be_had_and_nothing_is_lost_on_the_way(turns):
    extents, memory = Extents(16 * PAGE + 5), np.zeros(16 * PAGE, np.uint8)
    held = []

    def move(extent, to):
        apart = abs(to - extent.start) >= extent.size
        assert to < extent.start or apart
        here = range(to, to + extent.size)
        for other, _ in held:
            assert other is extent or other.start + other.size <= to or other.start >= here.stop, "only into free bytes"
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
@pytest.mark.parametrize(
    ("start", "to", "size"), [(10, 0, 500), (300, 0, 300), (300, 1, 3000), (299, 298, 2000), (0, 2000, 2000)]
)
def test_bytes_are_moved_down_over_themselves_and_up_to_free_places(start, to, size, scratch):
    memory = torch.arange(5000).to(torch.uint8)
    expected = memory[start : start + size].clone()
    slide(memory, start, to, size, torch.zeros(scratch, dtype=torch.uint8))
    assert torch.equal(memory[to : to + size], expected)


# Memory for weights is taken again, and never more of it is held than was once needed


def test_buffers_are_taken_again_the_nearest_first_but_not_those_that_somebody_looks_at():
    buffers = Buffers()
    first = buffers.take(100_000)
    with first.part(0, len(first)) as (data,):
        data[:3] = b"abc"
    buffers.give(first)
    second = buffers.take(100_000)
    assert second is first
    with second.part(0, len(second)) as (data,):
        assert bytes(data[:3]) == b"abc"
    buffers = Buffers()
    lent = [buffers.take(pages * PAGE) for pages in (2, 5, 9)]
    for buffer in lent:
        buffers.give(buffer)
    assert buffers.take(4 * PAGE) is lent[1]
    assert (len(lent[1]), buffers.idle_bytes) == (4 * PAGE, 11 * PAGE)
    assert buffers.take(10 * PAGE) is lent[2]
    assert (buffers.allocated_bytes, buffers.idle_bytes) == (14 * PAGE, 0)
    buffers = Buffers()
    first = buffers.take(PAGE)
    with first.part(0, len(first)):
        buffers.give(first)
    assert (buffers.allocated_bytes, buffers.take(PAGE) is first) == (0, False)
    buffers = Buffers()
    for buffer in [buffers.take(2 * PAGE), buffers.take(3 * PAGE), buffers.take(4 * PAGE)]:
        buffers.give(buffer)
    buffers.make_room(5 * PAGE)
    assert buffers.idle_bytes == 4 * PAGE


def test_where_memory_cannot_be_resized_each_buffer_is_new(monkeypatch):
    monkeypatch.delattr(mmap, "MAP_PRIVATE")
    monkeypatch.setattr(buffers_module, "memory_resizes", memory_resizes.__wrapped__)
    buffers = Buffers()
    first = buffers.take(PAGE)
    buffers.give(first)
    assert (buffers.allocated_bytes, buffers.take(2 * PAGE) is first) == (0, False)


def test_a_system_that_refuses_to_resize_is_known(monkeypatch):
    class Rigid(mmap.mmap):
        def resize(self, newsize):
            raise SystemError("mmap: resizing not available--no mremap()")

    monkeypatch.setattr(mmap, "mmap", Rigid)
    assert not memory_resizes.__wrapped__()


@given(st.integers(8, 60), st.lists(st.tuples(st.booleans(), st.integers(1, 20), st.integers(0, 9)), max_size=60))
def test_no_more_is_held_than_the_pool_has_and_no_buffer_is_lent_twice(capacity, steps):
    """A pool of `capacity` pages loads experts only where there is room, as its books say."""
    buffers = Buffers()
    lent = []
    for is_load, pages, which in steps:
        while is_load and lent and sum(map(len, lent)) + pages * PAGE > capacity * PAGE:
            buffers.give(lent.pop(which % len(lent)))
        if is_load and pages <= capacity:
            taken = buffers.take(pages * PAGE - 7)
            assert len(taken) == pages * PAGE
            assert all(taken is not other for other in lent)
            lent.append(taken)
        elif lent:
            buffers.give(lent.pop(which % len(lent)))
        assert buffers.allocated_bytes - buffers.idle_bytes == sum(map(len, lent))
        assert buffers.allocated_bytes <= capacity * PAGE
