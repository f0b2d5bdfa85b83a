"""Standard output and standard error whose `write` never fails.

The reader may be gone, the disk full, a letter missing in the encoding, the stream closed from the start. None of that
ends a run or changes the meaning of its exit status: a text that cannot be written is dropped, and the command checks
`lost` at its end.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

_NOBODY_READS = (errno.EPIPE, errno.ECONNRESET, errno.ESHUTDOWN)


class Steady(io.TextIOBase):
    """A text stream in front of another, whose `write` and `flush` never raise.

    Characters that the other's encoding lacks are written as `\\xNN`. Once the other fails, nothing is written to it.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.lost: str | None = None
        """Why a text could not be written; None if all texts were written, or if no reader is there."""

    def write(self, text: str, /) -> int:
        """Write a text if possible; return its length in any case."""
        if self._stream is not None:
            try:
                self._stream.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))
            except (OSError, ValueError) as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Write buffered text, if possible."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._give_up(error)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the other stream."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Tell whether the stream is a terminal that can still be written to."""
        try:
            return self._stream is not None and self._stream.isatty()
        except (OSError, ValueError):
            return False

    def fileno(self) -> int:
        """Return the descriptor; raises OSError if there is none, as for streams in memory."""
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()

    def writable(self) -> bool:
        """Tell that the stream is writable."""
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self, error: OSError | ValueError) -> None:
        stream, self._stream = self._stream, None
        if not (isinstance(error, OSError) and error.errno in _NOBODY_READS):
            self.lost = (error.strerror if isinstance(error, OSError) else None) or str(error)
        # At its end the interpreter would write the buffered text, fail, and exit with status 120.
        with suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, cast(TextIO, stream).fileno())
            os.close(nowhere)


@contextmanager
def steady() -> Iterator[Steady]:
    """Replace standard output and standard error by steady streams; yield that of standard output.

    Within another `steady` nothing changes: the outermost counts.
    """
    if isinstance(sys.stdout, Steady):
        yield sys.stdout
        return
    _fill_descriptors()
    before = sys.stdout, sys.stderr
    out, err = Steady(sys.stdout), Steady(sys.stderr)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    try:
        yield out
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before


def _fill_descriptors() -> None:
    """Open those of the first three descriptors that are closed: a file that took the number would get stray output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
