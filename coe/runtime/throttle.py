"""A disk of a given bandwidth, as arithmetic: loads are read one after another, and idle time earns no credit."""

from __future__ import annotations

from coe.errors import ConfigError


class Throttle:
    """A token bucket without depth: a load takes at least its bytes divided by the bandwidth.

    It does not sleep, lock or read a clock. The loader waits for `delay_s` less the time that the load itself took.
    """

    def __init__(self, bytes_per_s: float) -> None:
        if not bytes_per_s > 0:
            raise ConfigError(f"a disk bandwidth of {bytes_per_s} bytes a second loads nothing; give more than 0")
        self.bytes_per_s = bytes_per_s
        self._free_s = float("-inf")

    def __repr__(self) -> str:
        return f"<Throttle {self.bytes_per_s / 1e6:g} MB/s>"

    def delay_s(self, size: int, now: float) -> float:
        """Begin a load of `size` bytes at `now` (seconds that never decrease); return the least time that it takes."""
        self._free_s = max(self._free_s, now) + size / self.bytes_per_s
        return self._free_s - now
