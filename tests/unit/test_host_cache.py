"""Copies in host memory: read through, the least recently read leaves."""

from __future__ import annotations

from coe.costs import Tier
from coe.host_cache import HostCache
from coe.plan import CacheSpec


def test_a_copy_stays_until_room_is_needed() -> None:
    cache = HostCache(CacheSpec(capacity_bytes=10))
    assert [cache.fetch(expert, 4) for expert in "abab"] == [Tier.DISK, Tier.DISK, Tier.HOST, Tier.HOST]
    assert cache.fetch("a", 4) is Tier.HOST
    # b was read longer ago than a.
    assert cache.fetch("c", 4) is Tier.DISK
    assert [expert in cache for expert in "abc"] == [True, False, True]
    assert repr(cache) == "<HostCache 2 copies, 8 B of 10 B>"
    cache.check()


def test_what_is_larger_than_the_cache_passes_by_and_drives_nothing_out() -> None:
    cache = HostCache(CacheSpec(10))
    cache.fetch("a", 10)
    assert [cache.fetch("huge", 11), cache.fetch("huge", 11)] == [Tier.DISK, Tier.DISK]
    assert cache.fetch("a", 10) is Tier.HOST
    cache.check()


def test_filling_drives_nothing_out() -> None:
    cache = HostCache(CacheSpec(10))
    assert [cache.fill("a", 6), cache.fill("b", 6), cache.fill("c", 4), cache.fill("a", 6)] == [
        True,
        False,
        True,
        False,
    ]
    cache.forget("a")
    cache.forget("a")
    assert len(cache) == 1
    cache.check()
