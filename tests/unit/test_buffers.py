"""Memory for weights is taken again, and never more of it is held than was once needed."""

from __future__ import annotations

import mmap

from hypothesis import given
from hypothesis import strategies as st

from coe.runtime import buffers as buffers_module
from coe.runtime.buffers import Buffers
from coe.store.blob_format import PAGE
from coe.system import memory_resizes


def test_the_memory_of_one_is_taken_by_the_next():
    buffers = Buffers()
    first = buffers.take(100_000)
    with first.part(0, len(first)) as (data,):
        data[:3] = b"abc"
    buffers.give(first)
    second = buffers.take(100_000)
    assert second is first
    with second.part(0, len(second)) as (data,):
        assert bytes(data[:3]) == b"abc"


def test_the_nearest_is_cut_or_grown_and_others_make_room():
    buffers = Buffers()
    lent = [buffers.take(pages * PAGE) for pages in (2, 5, 9)]
    for buffer in lent:
        buffers.give(buffer)
    assert buffers.take(4 * PAGE) is lent[1]
    assert (len(lent[1]), buffers.idle_bytes) == (4 * PAGE, 11 * PAGE)
    assert buffers.take(10 * PAGE) is lent[2]
    assert (buffers.allocated_bytes, buffers.idle_bytes) == (14 * PAGE, 0)


def test_where_memory_cannot_be_resized_each_buffer_is_new(monkeypatch):
    monkeypatch.delattr(mmap, "MAP_PRIVATE")
    monkeypatch.setattr(buffers_module, "memory_resizes", memory_resizes.__wrapped__)
    buffers = Buffers()
    first = buffers.take(PAGE)
    buffers.give(first)
    assert (buffers.allocated_bytes, buffers.take(2 * PAGE) is first) == (0, False)


def test_a_system_that_refuses_to_resize_is_known(monkeypatch):
    class Rigid(mmap.mmap):
        def resize(self, newsize: int) -> None:
            raise SystemError("mmap: resizing not available--no mremap()")

    monkeypatch.setattr(mmap, "mmap", Rigid)
    assert not memory_resizes.__wrapped__()


def test_a_buffer_that_somebody_looks_at_is_not_lent_again():
    buffers = Buffers()
    first = buffers.take(PAGE)
    with first.part(0, len(first)):
        buffers.give(first)
    assert (buffers.allocated_bytes, buffers.take(PAGE) is first) == (0, False)


def test_idle_memory_makes_room_for_what_is_taken_elsewhere():
    buffers = Buffers()
    for buffer in [buffers.take(2 * PAGE), buffers.take(3 * PAGE), buffers.take(4 * PAGE)]:
        buffers.give(buffer)
    buffers.make_room(5 * PAGE)
    assert buffers.idle_bytes == 4 * PAGE


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
