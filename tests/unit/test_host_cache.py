"""Copies in host memory: read through, the least recently read leaves."""

import pytest

from coe.scheduler.costs import Tier
from coe.scheduler.host_cache import HostCache, Passage
from coe.scheduler.plan import CacheSpec


def fetched(cache, expert, size):
    """Let a load of an expert begin and end."""
    passage = cache.fetch(expert, size)
    cache.landed(expert)
    return passage


def test_a_copy_stays_until_room_is_needed_and_what_is_larger_or_filled_drives_nothing_out():
    cache = HostCache(CacheSpec(capacity_bytes=10))
    assert [fetched(cache, expert, 4).source for expert in "abab"] == [Tier.DISK, Tier.DISK, Tier.HOST, Tier.HOST]
    assert fetched(cache, "a", 4) == Passage(Tier.HOST)
    # b was read longer ago than a.
    assert fetched(cache, "c", 4) == Passage(Tier.DISK, keep_copy=True, drops=("b",))
    assert [expert in cache for expert in "abc"] == [True, False, True]
    assert repr(cache) == "<HostCache 2 copies, 8 B of 10 B>"
    cache.check()
    cache = HostCache(CacheSpec(10))
    cache.fetch("a", 10)
    assert [cache.fetch("huge", 11), cache.fetch("huge", 11)] == [Passage(Tier.DISK)] * 2
    assert cache.fetch("a", 10).source is Tier.HOST
    cache.check()
    cache = HostCache(CacheSpec(10))
    held = [cache.hold(expert, size) for expert, size in (("a", 6), ("b", 6), ("c", 4), ("a", 6))]
    assert held == [True, False, True, False]
    cache.forget("a")
    cache.forget("a")
    assert len(cache) == 1
    cache.check()
    cache = HostCache(CacheSpec(10))
    cache.fetch("a", 4)
    assert [cache.leave("a", 4), cache.leave("b", 4)] == [Passage(Tier.DISK)] * 2
    assert len(cache) == 1


def test_a_cache_that_demotes_holds_what_the_devices_do_not():
    cache = HostCache(CacheSpec(10, frozenset({"cuda"}), demotes=True))
    assert [cache.serves(device) for device in ("cuda", "cpu")] == [True, False]
    # On its way up a copy stays as long as nobody needs the room.
    assert fetched(cache, "a", 4) == Passage(Tier.DISK, keep_copy=True)
    assert fetched(cache, "b", 4) == Passage(Tier.DISK, keep_copy=True)
    assert fetched(cache, "c", 4) == Passage(Tier.DISK)
    # Who leaves is kept; a copy of who is still up goes for it, and one that is there is not made again.
    assert cache.leave("a", 4) == Passage(Tier.HOST)
    assert cache.leave("c", 4) == Passage(Tier.HOST, keep_copy=True, drops=("b",))
    assert fetched(cache, "c", 4) == Passage(Tier.HOST)
    assert cache.leave("d", 4) == Passage(Tier.HOST, keep_copy=True, drops=("c",))
    assert [expert in cache for expert in "abcd"] == [True, False, False, True]
    cache.check(idle=True)


@pytest.mark.parametrize("source", Tier)
def test_a_copy_that_a_load_counts_on_is_not_dropped_before_that_has_ended(source):
    cache = HostCache(CacheSpec(8, frozenset({"cuda"}), demotes=True))
    if source is Tier.HOST:
        cache.leave("a", 4)
    assert cache.fetch("a", 4).source is source
    assert cache.leave("b", 4) == Passage(Tier.HOST, keep_copy=True)
    # Else the lane would find no copy of a, and read the disk while other copies wait for the lane.
    assert cache.leave("c", 4) == Passage(Tier.HOST, keep_copy=True, drops=("b",))
    assert cache.leave("d", 5) == Passage(Tier.HOST)
    cache.check()
    with pytest.raises(AssertionError, match="loads of a"):
        cache.check(idle=True)
    cache.landed("a")
    assert cache.leave("d", 4) == Passage(Tier.HOST, keep_copy=True, drops=("a",))
    cache.check(idle=True)


def test_among_filled_copies_the_least_likely_leaves_first_but_never_one_that_is_being_read():
    cache = HostCache(CacheSpec(12, frozenset({"cuda"}), demotes=True))
    cache.leave("left", 4)
    for expert in ("likely", "unlikely"):
        assert cache.begin_fill(expert, 4)
        assert cache.is_filling()
        cache.end_fill()
    assert not cache.begin_fill("third", 4)
    assert not cache.is_filling()
    assert [cache.leave(expert, 4).drops for expert in "abc"] == [("unlikely",), ("likely",), ("left",)]
    cache.check()
    cache = HostCache(CacheSpec(10, frozenset({"cuda"}), demotes=True))
    assert cache.begin_fill("coming", 6)
    assert cache.leave("a", 4) == Passage(Tier.HOST, keep_copy=True)
    # Neither a larger expert nor an equal one takes the place of the copy that is not there yet.
    assert cache.leave("b", 5) == Passage(Tier.HOST)
    assert cache.leave("b", 4) == Passage(Tier.HOST, keep_copy=True, drops=("a",))
    cache.end_fill()
    assert cache.leave("c", 6) == Passage(Tier.HOST, keep_copy=True, drops=("coming",))
    cache.check()
