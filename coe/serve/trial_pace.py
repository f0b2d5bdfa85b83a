"""How fast a trial inspects pictures beside the line: while the line works, a trial rests most of the time.

The least priority alone sets no bound: a trial would take whole cores that the line leaves free for a moment, and with
them the caches and the memory's speed that the line needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

REST_S = 1.0
"""How often a trial that rests looks whether the line still works."""


class TrialPace:
    """Gives processor time to a trial: as much as it likes, but `share` of a core while the line works.

    `line_works` says whether it does, and `wait` waits for so many seconds at most.
    """

    def __init__(
        self,
        share: float,
        line_works: Callable[[], bool],
        wait: Callable[[float], None],
        now_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._share, self._line_works, self._wait = share, line_works, wait
        self._now_s, self._cpu_s = now_s, cpu_s
        self.begin()

    def begin(self) -> None:
        """Count the time from now on."""
        self._began_s, self._began_cpu_s = self._now_s(), self._cpu_s()

    def rest(self) -> None:
        """Rest for the processor time that was taken since the last rest, or until the line does not work."""
        until_s = self._began_s + (self._cpu_s() - self._began_cpu_s) / self._share
        while (left_s := until_s - self._now_s()) > 0 and self._line_works():
            self._wait(min(left_s, REST_S))
        self.begin()
