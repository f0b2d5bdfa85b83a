"""What `coe-inspect` shows of a run while it lasts: how far it is, and what happens."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

from coe.cli.common import err, point_out
from coe.cli.console import COLOURS, Progress, styled, words
from coe.config import counted
from coe.errors import list_few
from coe.results.closing_boards import ClosedBoard
from coe.results.metrics import Metrics

_PLAIN_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class RunView:
    """A `coe.runs.inspection.RunView` on the terminal; a quiet one shows only notices, and what went wrong."""

    quiet: bool = False

    def say(self, sentence: str) -> None:
        """Say how the run goes on."""
        if not self.quiet:
            err.print(styled((sentence, "dim")))

    def point_out(self, word: str, sentence: str) -> None:
        """Say what went wrong, behind a word."""
        point_out(word, sentence)

    def closed(self, board: ClosedBoard) -> None:
        """Say that a board is closed."""
        if not self.quiet:
            err.print(styled((f"{board.verdict} ", COLOURS[board.verdict]), _sentence(board)))

    def progress(self, total: int, metrics: Callable[[], Metrics]) -> RunProgress:
        """Show how far a run of so many images is."""
        return RunProgress(total, metrics, quiet=self.quiet)


def _sentence(board: ClosedBoard) -> str:
    lacking = f", no picture of {list_few(board.lacking, 10)}" if board.lacking else ""
    errors = f", {board.not_inspected} not inspected" if board.not_inspected else ""
    return f"{board.serial}: {counted(board.pictures, 'picture')}, {board.closed}{lacking}{errors}"


class RunProgress:
    """Shows done/total, images/s, switches, hit ratio, NG so far and the time left; with `quiet`, nothing."""

    def __init__(self, total: int, metrics: Callable[[], Metrics], *, quiet: bool) -> None:
        self._total, self._metrics = total, metrics
        self._done = self._ng = 0
        self._live = not quiet and sys.stderr.isatty()
        self._plain = not quiet and not self._live
        self._spoken_s = time.monotonic()
        self._bar = Progress(
            words("inspecting", style="bold"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            words("{task.fields[figures]}"),
            words("left", style="dim"),
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

    def expect(self, more: int) -> None:
        """Raise the number of images that are to come."""
        self._total += more
        if self._live:
            self._bar.update(self._task, total=self._total)

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
