"""The processor of a simulated device, which batches share. Disk and copy lanes are `coe.scheduler.load_queue`."""

from __future__ import annotations

from collections.abc import Sequence


class Processor:
    """Runs several batches at once, at the speeds in `scaling`.

    `scaling[n - 1]` is the speed of n batches together, in units of one batch alone; each batch gets an equal part
    (processor sharing). For larger n the last speed holds. If `scaling` is empty, batches do not slow each other.
    """

    def __init__(self, scaling: Sequence[float] = ()) -> None:
        self._scaling = tuple(scaling)
        self._left_s: dict[str, float] = {}
        """What is left of each running batch, in seconds alone."""
        self._now = 0.0
        self.version = 0
        """Changes with every begin and end: a completion predicted under an older version is void."""

    def begin(self, name: str, work_s: float, now: float) -> None:
        """Begin a batch that would take `work_s` seconds alone."""
        self._advance(now)
        self._left_s[name] = work_s
        self.version += 1

    def end(self, name: str, now: float) -> None:
        """End a batch."""
        self._advance(now)
        del self._left_s[name]
        self.version += 1

    def next_end(self) -> tuple[float, str] | None:
        """Return the time and the name of the next batch to end, if no batch begins before; None if none runs."""
        if not self._left_s:
            return None
        name = min(self._left_s, key=self._left_s.__getitem__)
        return self._now + max(0.0, self._left_s[name]) / self._rate(), name

    def _rate(self) -> float:
        busy = len(self._left_s)
        return self._scaling[min(busy, len(self._scaling)) - 1] / busy if self._scaling else 1.0

    def _advance(self, now: float) -> None:
        if self._left_s:
            done_s = (now - self._now) * self._rate()
            for name in self._left_s:
                self._left_s[name] -= done_s
        self._now = now
