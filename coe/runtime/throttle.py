"""A disk of a given bandwidth, as arithmetic: bytes are read one load after another, and idle time earns nothing."""

from __future__ import annotations

from coe.errors import ConfigError


class Throttle:
    """A token bucket without depth: a load takes at least its bytes over the bandwidth from when it began.

    It neither sleeps nor locks nor looks at a clock; whoever loads waits for `delay_s` less what the load took itself.
    """

    def __init__(self, bytes_per_s: float) -> None:
        if not bytes_per_s > 0:
            raise ConfigError(f"a disk bandwidth of {bytes_per_s} bytes a second loads nothing; give more than 0")
        self.bytes_per_s = bytes_per_s
        self._free_s = float("-inf")

    def __repr__(self) -> str:
        return f"<Throttle {self.bytes_per_s / 1e6:g} MB/s>"

    def delay_s(self, size: int, now: float) -> float:
        """Begin a load of `size` bytes at `now` (seconds that never go back); return how long it takes at least."""
        self._free_s = max(self._free_s, now) + size / self.bytes_per_s
        return self._free_s - now
