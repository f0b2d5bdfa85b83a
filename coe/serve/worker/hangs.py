"""All that can hang on a line. Law: whatever a board waits for on a thread is watched here, or has its own end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from coe.serve.worker.board_batches import Batches, Hang, Loads

if TYPE_CHECKING:
    from coe.inspector.line import Line


class HangWatch(Protocol):
    """Finds out whether a part of the line hangs."""

    def hanging(self, line: Line | None) -> Hang | None:
        """Return the part that hangs; None if none does. `line` is the open line, or the line that is being opened."""


class Hangs:
    """Batches, loads, and threads that read pictures; nothing hangs before `after_s`."""

    def __init__(self, now_s: Callable[[], float], after_s: float) -> None:
        self.after_s = after_s
        self.batches, self.loads = Batches(now_s, after_s), Loads(now_s, after_s)
        # Batches come last: a batch may wait for a picture that is read again.
        self._watches: list[HangWatch] = [Decodings(after_s), self.loads, self.batches]

    @property
    def watchers(self) -> tuple[Batches, Loads]:
        """Those that see each step of the line."""
        return self.batches, self.loads

    def watch(self, further: HangWatch) -> None:
        """Watch a further part of the line."""
        self._watches.append(further)

    def hanging(self, line: Line | None) -> Hang | None:
        """Return a part that hangs."""
        hangs = (watch.hanging(line) for watch in self._watches)
        return next((hang for hang in hangs if hang is not None), None)


class Decodings:
    """Watches the threads that decode pictures: a picture hangs if one of them has been at it for `hangs_after_s`.

    No forecast is needed: the largest picture is read and prepared in seconds, and no picture waits for its turn on
    these threads.
    """

    def __init__(self, hangs_after_s: float) -> None:
        self._hangs_after_s = hangs_after_s

    def hanging(self, line: Line | None) -> Hang | None:
        """Return a picture that is read for ever, as from a disk that does not answer: its board would wait."""
        return None if line is None else picture_hang(line.longest_decoding_s(), self._hangs_after_s)


def picture_hang(age_s: float, hangs_after_s: float) -> Hang | None:
    """Return that a picture hangs if it has been read for so long."""
    words = f"a picture has been read for {age_s:.0f} s: its disk, or the code of a kind, does not answer"
    return Hang("", words) if age_s > hangs_after_s else None
