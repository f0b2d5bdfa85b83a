"""What is still to be read is not overwritten, on the device and in the pinned memory that copies come from."""

import json
import threading

import pytest
import torch
from fake_gpu import FakeDriver
from waiting import Halt

from coe.errors import DeviceFull, StoreError
from coe.runtime.blob import Structure
from coe.runtime.cuda import blob_memory
from coe.runtime.cuda.blob_memory import BlobMemory, slide
from coe.runtime.cuda.pinned_memory import Copy, HostMemory
from coe.runtime.cuda.unpacking import unpacking_like
from coe.store.blob_format import PAGE, Content, data_start, decode
from coe.store.blob_writing import encode
from coe.variants.fold import Folded
from coe.variants.layout import lay_out

UNPACKING = unpacking_like({}, Structure())


def blob(value, pages=1):
    return [torch.full((pages * PAGE,), value, dtype=torch.uint8)]


def of(value, pages):
    (whole,) = blob(value, pages)
    return whole


@pytest.fixture
def driver():
    # The lane does everything at once, as far as marks let it; executors come as late as they can.
    return FakeDriver(eager=frozenset({"lane"}))


def test_a_place_that_was_given_away_is_read_before_it_is_filled_again(driver):
    lane, streams, seen = driver.stream("lane"), [driver.stream(name) for name in ("one", "two")], []
    memory = BlobMemory(driver, lane, 2 * PAGE)
    first = memory.put("a", blob(1, 2), UNPACKING)
    for stream in streams:
        memory.read(first, stream.name, stream, lambda found: seen.append(found.clone()))
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
    memory.read(second, "one", stream, lambda found: seen.append(found.clone()))
    memory.drop(first)
    memory.put("c", blob(3, 2), UNPACKING)
    memory.read(second, "one", stream, lambda found: seen.append(found.clone()))
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
    for name, pages in (("a", 1), ("b", 2), ("c", 1), ("d", 2)):
        host.keep(name, Copy(host.take(pages * PAGE), Content(())))
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
    reads = (second, "one", stream, lambda found: seen.append(found.clone()))
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
    resident = memory.put("a", copy.buffer.pieces(0, PAGE), UNPACKING)
    copy.buffer.busy = resident.written
    host.keep("a", copy)
    host.forget("a")
    assert driver.log == []
    for piece in host.take(3 * PAGE).pieces(0, 3 * PAGE):
        piece[:] = 2
    assert torch.equal(memory._memory[:PAGE], of(1, 1))


def test_copies_go_when_nothing_else_is_left_the_oldest_first_and_make_room_for_their_like():
    driver = FakeDriver()
    host = HostMemory(driver, 3 * PAGE)
    for name in "abc":
        host.keep(name, Copy(host.take(PAGE), Content(())))
    host.take(2 * PAGE)
    assert [host.copy_of(name) is not None for name in "abc"] == [False, False, True]
    with pytest.raises(DeviceFull, match="give more --host-memory"):
        host.take(4 * PAGE)
    host = HostMemory(FakeDriver(), 2 * PAGE)
    for _ in range(5):
        host.keep("a", Copy(host.take(PAGE), Content(())))
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
    host, ended = HostMemory(FakeDriver(), 3 * PAGE), threading.Event()
    host.keep("a", Copy(host.take(PAGE), Content(())))

    def other():
        act(host)
        ended.set()

    thread = threading.Thread(target=other)
    with host.lock:
        thread.start()
        assert not ended.wait(0.1)
    thread.join(60)
    assert ended.is_set()


# A blob's header that is well-formed and claims what cannot be is refused before any view is made


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


BEYOND, OUTSIDE = "its quantised part ends beyond the data", "'conv.weight' lies outside the quantised part"
CLAIMS = {
    "no labels": (lambda of: of.pop("labels"), "a header that makes no sense"),
    "scales beyond the end": (lambda of: of["quantised"].update(scales=of["data_bytes"]), BEYOND),
    "more blocks than bytes": (lambda of: of["quantised"].update(blocks=1 << 40), BEYOND),
    "no quantised part": (lambda of: of.pop("quantised"), OUTSIDE),
    "a tensor behind the quantised part": (lambda of: of["tensors"][0].update(offset=1 << 30), OUTSIDE),
    "a tensor between blocks": (lambda of: of["tensors"][0].update(offset=64), "'conv.weight' does not begin a block"),
    "channels of two axes": (
        lambda of: of["tensors"][1].update(channels_last=True),
        "'fc.weight' has 2 axes and cannot be channels-last",
    ),
    "one checksum too many": (lambda of: of["checksums"].append("0"), "2 checksums for"),
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
