"""Memory of a device and pinned memory: runs, moves, and what is still to be read is not overwritten."""

import json
import mmap
import threading
from itertools import groupby

import numpy as np
import pytest
import torch
from fake_gpu import FakeDriver
from hypothesis import given
from hypothesis import strategies as st
from waiting import Halt

from coe.errors import DeviceFull, StoreError
from coe.helpers.system import memory_resizes
from coe.runtime import blob as buffers_module
from coe.runtime.blob import Buffers
from coe.runtime.cuda import blob_memory
from coe.runtime.cuda.blob_memory import BlobMemory, slide
from coe.runtime.cuda.extents import Extents
from coe.runtime.cuda.pinned_memory import Copy, HostMemory
from coe.store.blob_format import PAGE, Content, data_start, decode
from coe.store.blob_writing import encode
from coe.variants.fold import Folded
from coe.variants.layout import lay_out


class Whole:
    """An unpacking whose one step reads the whole blob."""

    def sources(self, blob):
        return [(blob, None)]


UNPACKING = Whole()


def of(value, pages):
    return torch.full((pages * PAGE,), value, dtype=torch.uint8)


def blob(value, pages=1):
    return [of(value, pages)]


def keep(host, **pages):
    for name, count in pages.items():
        host.keep(name, Copy(host.take(count * PAGE), Content(())))


@pytest.fixture
def driver():
    # The lane does everything at once, as far as marks let it; executors come as late as they can.
    return FakeDriver(eager=frozenset({"lane"}))


def test_a_place_that_was_given_away_is_read_before_it_is_filled_again(driver):
    lane, streams, seen = driver.stream("lane"), [driver.stream(name) for name in ("one", "two")], []
    memory = BlobMemory(driver, lane, 2 * PAGE)
    first = memory.put("a", blob(1, 2), UNPACKING)
    for stream in streams:
        memory.read(first, stream.name, stream, lambda found: seen.append(found[0][0].clone()))
    memory.drop(first)
    memory.put("b", blob(2, 2), UNPACKING)
    for stream in streams:
        stream.finish()
    assert all(torch.equal(found, of(1, 2)) for found in seen)
    assert driver.log == ["lane: copy a", "one: activate a", "two: activate a", "lane: copy b"]


def test_what_is_moved_is_read_before_and_where_it_lies_after(driver):
    lane, stream, seen = driver.stream("lane"), driver.stream("one"), []
    memory = BlobMemory(driver, lane, 4 * PAGE)
    first, second = memory.put("a", blob(1), UNPACKING), memory.put("b", blob(2, 2), UNPACKING)
    memory.read(second, "one", stream, lambda found: seen.append(found[0][0].clone()))
    memory.drop(first)
    memory.put("c", blob(3, 2), UNPACKING)
    memory.read(second, "one", stream, lambda found: seen.append(found[0][0].clone()))
    stream.work_until(None)
    assert all(torch.equal(found, of(2, 2)) for found in seen)
    assert driver.log == ["lane: copy a", "lane: copy b", "one: activate b", "lane: move b", *driver.log[4:]]
    with pytest.raises(DeviceFull, match="2 blobs"):
        memory.put("d", blob(4), UNPACKING)
    memory.check()


def test_a_copy_that_lies_in_pieces_arrives_whole_on_the_device_and_comes_down_again():
    driver = FakeDriver()
    lane, host = driver.stream("lane"), HostMemory(driver, 6 * PAGE)
    memory = BlobMemory(driver, lane, 8 * PAGE)
    keep(host, a=1, b=2, c=1, d=2)
    host.forget("a")
    host.forget("c")
    taken = host.take(2 * PAGE)
    assert [(extent.start // PAGE, extent.size // PAGE) for extent in taken.extents] == [(3, 1), (0, 1)]
    assert len(taken) == 2 * PAGE
    with taken.part(PAGE - 2, PAGE + 3) as part:
        assert [len(piece) for piece in part] == [2, 3]
    numbers = torch.arange(2 * PAGE).to(torch.uint8)
    for piece, source in zip(taken.pieces(0, 2 * PAGE), numbers.split(PAGE), strict=True):
        piece.copy_(source)
    resident = memory.put("e", taken.pieces(64, 2 * PAGE), UNPACKING)
    lane.work_until(None)
    assert resident.size == 2 * PAGE - 64
    start = resident.extent.start
    assert torch.equal(memory._memory[start : start + resident.size], numbers[64:])
    host.give(taken)
    host.forget("b")
    # Free are the first four pages, so that it now lies in one piece.
    below = host.take(resident.size)
    assert [extent.start for extent in below.extents] == [0]
    memory.bring_down(resident, below.pieces(0, resident.size)).wait()
    (piece,) = below.pieces(0, resident.size)
    assert torch.equal(piece, numbers[64:])


def test_who_reads_while_the_lane_moves_a_blob_reads_where_it_lies_after(driver, monkeypatch):
    stream, seen = driver.stream("one"), []
    memory = BlobMemory(driver, driver.stream("lane"), 4 * PAGE)
    first, second = memory.put("a", blob(1), UNPACKING), memory.put("b", blob(2, 2), UNPACKING)
    memory.drop(first)
    reads = (second, "one", stream, lambda found: seen.append(found[0][0].clone()))
    reader = threading.Thread(target=memory.read, args=reads)

    def move(*args):
        reader.start()
        reader.join(0.1)  # as far as it comes
        slide(*args)

    monkeypatch.setattr(blob_memory, "slide", move)
    memory.put("c", blob(3, 2), UNPACKING)
    reader.join(60)
    stream.finish()
    assert torch.equal(*seen, of(2, 2))


@pytest.mark.parametrize(
    "act",
    [
        lambda memory, resident, stream: memory.put("b", blob(2), UNPACKING),
        lambda memory, resident, stream: memory.bring_down(resident, blob(0)),
        lambda memory, resident, stream: memory.drop(resident),
        lambda memory, resident, stream: memory.read(resident, "two", stream, lambda found: None),
    ],
)
def test_while_one_thread_puts_work_on_a_place_no_other_has_the_places(driver, act):
    """To launch work takes the host a while: meanwhile the lane must not move the bytes, or give their place away."""
    memory = BlobMemory(driver, driver.stream("lane"), 4 * PAGE)
    resident, launched, halt = memory.put("a", blob(1), UNPACKING), driver.stream("one"), Halt()
    halt.holds_up(
        lambda: memory.read(resident, "one", launched, halt), lambda: act(memory, resident, driver.stream("two"))
    )


def test_memory_that_the_device_still_reads_is_not_lent_again():
    driver = FakeDriver()
    lane, host = driver.stream("lane"), HostMemory(driver, 3 * PAGE)
    memory = BlobMemory(driver, lane, 8 * PAGE)
    copy = Copy(host.take(PAGE), Content(()))
    for piece in copy.buffer.pieces(0, PAGE):
        piece[:] = 1
    copy.buffer.busy = memory.put("a", copy.buffer.pieces(0, PAGE), UNPACKING).written
    host.keep("a", copy)
    host.forget("a")
    assert driver.log == []
    for piece in host.take(3 * PAGE).pieces(0, 3 * PAGE):
        piece[:] = 2
    assert torch.equal(memory._memory[:PAGE], of(1, 1))


def test_copies_go_when_nothing_else_is_left_the_oldest_first_and_make_room_for_their_like():
    host = HostMemory(FakeDriver(), 3 * PAGE)
    keep(host, a=1, b=1, c=1)
    host.take(2 * PAGE)
    assert [host.copy_of(name) is not None for name in "abc"] == [False, False, True]
    for pages in (4, 2):  # two pages are lent
        with pytest.raises(DeviceFull, match="--host-memory"):
            host.take(pages * PAGE)
    host = HostMemory(FakeDriver(), 2 * PAGE)
    for _ in range(5):
        keep(host, a=1)
    assert len(host.take(PAGE)) == PAGE
    assert host.copy_of("a") is not None


@pytest.mark.parametrize(
    "act",
    [
        lambda host: host.take(PAGE),
        lambda host: host.give(host.copy_of("a").buffer),
        lambda host: host.keep("b", host.copy_of("a")),
        lambda host: host.forget("a"),
    ],
)
def test_who_copies_from_pinned_memory_holds_all_others_off(act):
    host = HostMemory(FakeDriver(), 3 * PAGE)
    keep(host, a=1)
    thread = threading.Thread(target=act, args=[host])
    with host.lock:
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
    thread.join(60)
    assert not thread.is_alive()


STATE = {"conv.weight": torch.ones(4, 8, 3, 3), "fc.weight": torch.ones(2, 300)}
HEADER = encode(lay_out(Folded(STATE, ()), "q8", kind="k", labels=2).header)
LENGTH = 8


def changed(change):
    """Return the bytes of the header after a change of what it states."""
    table = json.loads(HEADER[LENGTH:])
    key = next(key for key, text in table["__metadata__"].items() if text.startswith("{"))
    stated = json.loads(table["__metadata__"][key])
    change(stated)
    table["__metadata__"][key] = json.dumps(stated)
    text = json.dumps(table, separators=(",", ":")).encode()
    length = -(-(LENGTH + len(text)) // PAGE) * PAGE - LENGTH
    return length.to_bytes(LENGTH, "little") + text.ljust(length)


BEYOND, OUTSIDE = "beyond the data", "'conv.weight' lies outside"
CLAIMS = {
    "no labels": (lambda of: of.pop("labels"), "header"),
    "scales beyond the end": (lambda of: of["quantised"].update(scales=of["data_bytes"]), BEYOND),
    "more blocks than bytes": (lambda of: of["quantised"].update(blocks=1 << 40), BEYOND),
    "no quantised part": (lambda of: of.pop("quantised"), OUTSIDE),
    "a tensor behind the quantised part": (lambda of: of["tensors"][0].update(offset=1 << 30), OUTSIDE),
    "a tensor between blocks": (lambda of: of["tensors"][0].update(offset=64), "'conv.weight' does not begin a block"),
    "channels of two axes": (lambda of: of["tensors"][1].update(channels_last=True), "'fc.weight' has 2 axes"),
    "one checksum too many": (lambda of: of["checksums"].append("0"), "2 checksums"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_cannot_be_is_refused(claim):
    assert [tensor.name for tensor in decode(changed(lambda header: None), "x").tensors] == list(STATE)
    change, sentence = CLAIMS[claim]
    with pytest.raises(StoreError, match=sentence):
        decode(changed(change), "x")


def test_a_header_that_is_cut_off_is_refused():
    raw = changed(lambda header: header.update(folded=[[f"c{index}", f"n{index}"] for index in range(400)]))
    assert data_start(raw[:PAGE], "x") == len(raw) > PAGE
    with pytest.raises(StoreError, match="x is truncated"):
        decode(raw[:PAGE], "x")


def laid_out(sizes):
    """Return a memory of runs, each letter as many pages as it is repeated, a dot a free page."""
    extents = Extents(len(sizes) * PAGE)
    runs = [(letter, extents.take(len(list(group)) * PAGE, None)) for letter, group in groupby(sizes)]
    for letter, extent in runs:
        if letter == ".":
            extents.give(extent)
    return extents


def moved(layout, pages):
    """Return what moves, and where the new run lies, if `pages` are taken of a memory: pages from and to."""
    extents, log = laid_out(layout), []

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
    assert moved("aa.bb.cc.dd.", 4) == ["2 from 3 to 2", "2 from 6 to 4", "2 from 9 to 6", "new at 8"], "no gap holds"


def scattered(layout, pages):
    """Return the runs, as pages and the first page, that are handed out if `pages` are taken of a memory in runs."""
    extents = laid_out(layout)
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


def test_where_memory_cannot_be_resized_each_buffer_is_new_also_if_the_system_refuses(monkeypatch):
    monkeypatch.delattr(mmap, "MAP_PRIVATE")
    monkeypatch.setattr(buffers_module, "memory_resizes", memory_resizes.__wrapped__)
    buffers = Buffers()
    first = buffers.take(PAGE)
    buffers.give(first)
    assert (buffers.allocated_bytes, buffers.take(2 * PAGE) is first) == (0, False)

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
