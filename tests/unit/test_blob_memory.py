"""What is still to be read is not overwritten, on the device and in the pinned memory that copies come from."""

from __future__ import annotations

import threading

import pytest
import torch
from fake_gpu import FakeDriver

from coe.errors import DeviceFull
from coe.runtime.blob import Content, Structure
from coe.runtime.cuda.blob_memory import BlobMemory
from coe.runtime.cuda.host import Copy, HostMemory
from coe.runtime.cuda.unpacking import unpacking_like
from coe.store.blob_format import PAGE

UNPACKING = unpacking_like({}, Structure())


def blob(value, pages=1):
    return torch.full((pages * PAGE,), value, dtype=torch.uint8)


@pytest.fixture
def driver():
    # The lane does everything at once, as far as marks let it; executors come as late as they can.
    return FakeDriver(eager=frozenset({"lane"}))


def test_a_place_that_was_given_away_is_read_before_it_is_filled_again(driver):
    lane, stream, seen = driver.stream("lane"), driver.stream("one"), []
    memory = BlobMemory(driver, lane, 2 * PAGE)
    first = memory.put("a", blob(1, 2), UNPACKING)
    memory.read(first, "one", stream, lambda found: seen.append(found.clone()))
    memory.drop(first)
    memory.put("b", blob(2, 2), UNPACKING)
    stream.work_until(None)
    assert torch.equal(seen[0], blob(1, 2))
    assert driver.log == ["lane: copy a", "one: activate a", "lane: copy b"]


def test_what_is_moved_is_read_before_and_where_it_lies_after(driver):
    lane, stream, seen = driver.stream("lane"), driver.stream("one"), []
    memory = BlobMemory(driver, lane, 4 * PAGE)
    first, second = memory.put("a", blob(1), UNPACKING), memory.put("b", blob(2, 2), UNPACKING)
    memory.read(second, "one", stream, lambda found: seen.append(found.clone()))
    memory.drop(first)
    memory.put("c", blob(3, 2), UNPACKING)
    memory.read(second, "one", stream, lambda found: seen.append(found.clone()))
    stream.work_until(None)
    assert all(torch.equal(found, blob(2, 2)) for found in seen)
    assert driver.log == ["lane: copy a", "lane: copy b", "one: activate b", "lane: move b", *driver.log[4:]]
    with pytest.raises(DeviceFull, match="more than is free in <BlobMemory 2 blobs"):
        memory.put("d", blob(4), UNPACKING)
    memory.check()


def test_pinned_memory_is_moved_only_when_nothing_is_on_its_way_from_it():
    driver = FakeDriver()
    lane, host = driver.stream("lane"), HostMemory(driver, 4 * PAGE)
    memory = BlobMemory(driver, lane, 8 * PAGE)
    copies = {}
    for name, value, pages in (("a", 1, 1), ("b", 2, 2)):
        copy = copies[name] = Copy(host.take(pages * PAGE), Content(()))
        copy.buffer.tensor()[:] = value
        copy.buffer.busy = memory.put(name, copy.buffer.tensor(), UNPACKING).written
        host.keep(name, copy)
    assert driver.log == []
    host.forget("a")
    # Free are a page before b and one behind it.
    taken = host.take(2 * PAGE)
    taken.tensor()[:] = 3
    lane.work_until(None)
    assert [int(memory._memory[at]) for at in (0, PAGE, 3 * PAGE - 1)] == [1, 2, 2]
    assert torch.equal(copies["b"].buffer.tensor(), blob(2, 2))


def test_copies_go_when_nothing_else_is_left_and_the_oldest_first():
    driver = FakeDriver()
    host = HostMemory(driver, 3 * PAGE)
    for name in "abc":
        host.keep(name, Copy(host.take(PAGE), Content(())))
    host.take(2 * PAGE)
    assert [host.copy_of(name) is not None for name in "abc"] == [False, False, True]
    with pytest.raises(DeviceFull, match="give more --host-memory"):
        host.take(4 * PAGE)


def test_memory_that_a_file_is_read_into_is_moved_between_two_parts_of_the_file():
    host = HostMemory(FakeDriver(), 4 * PAGE)
    host.keep("a", Copy(host.take(PAGE), Content(())))
    filled = host.take(2 * PAGE)
    host.forget("a")
    taken = []
    mover = threading.Thread(target=lambda: taken.append(host.take(2 * PAGE)))
    with filled.part(0, PAGE) as part:
        # Free are a page before it and one behind it.
        mover.start()
        mover.join(0.2)
        part[:] = bytes([1]) * PAGE
    mover.join(60)
    with filled.part(PAGE, 2 * PAGE) as part:
        part[:] = bytes([2]) * PAGE
    assert filled.extent.start == 0
    assert filled.tensor().tolist() == [1] * PAGE + [2] * PAGE
    assert taken[0].extent.start == 2 * PAGE
