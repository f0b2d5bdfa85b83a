"""The live line of a run: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

from coe.cli.common import err
from coe.cli.console import Progress, words
from coe.results.metrics import Metrics

_PLAIN_EVERY_S = 10.0


class RunProgress:
    """Shows done/total, images/s, switches, hit ratio, NG so far and the time left; with `quiet`, nothing."""

    def __init__(self, total: int, metrics: Callable[[], Metrics], *, quiet: bool) -> None:
        self._total, self._metrics = total, metrics
        self._done = self._ng = 0
        self._live = not quiet and sys.stderr.isatty()
        self._plain = not quiet and not self._live
        self._spoken_s = time.monotonic()
        self._bar = Progress(
            words("inspecting", "bold"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            words("{task.fields[figures]}"),
            words("left", "dim"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=err,
            disable=not self._live,
        )
        self._task = self._bar.add_task("", total=total, figures="")

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, *, ng: bool) -> None:
        """Count one result."""
        self._done += 1
        self._ng += ng
        if self._live:
            self._bar.update(self._task, completed=self._done, figures=self._figures())
        elif self._plain and time.monotonic() - self._spoken_s > _PLAIN_EVERY_S:
            self._spoken_s = time.monotonic()
            err.print(f"{self._done}/{self._total} images, {self._figures()}")

    def _figures(self) -> str:
        now = self._metrics()
        return f"{now.images_per_s:.1f} images/s, {now.switches} switches, {now.hit_ratio:.0%} hits, {self._ng} NG"
