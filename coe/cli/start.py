"""Entry points of the commands, and how a command ends. Law: this file imports fast, so that a signal ends it properly.

A command imports libraries for a second or more before its own code runs. Until then there is no work that could be
left half done, and an interruption (Ctrl-C, SIGTERM) ends the process at once.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import partial
from importlib import import_module
from typing import Any, TextIO, cast

from coe.helpers.ending import EndingSignals

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


_M_ARENA_MAX = -8  # malloc.h of glibc


class Exit(IntEnum):
    """Exit statuses of all commands: each has one meaning, whether the output could be written or not."""

    OK = 0
    NOT_GOOD = 1
    USAGE = 2
    NOT_INSPECTED = 3
    NOT_WRITTEN = 4
    INTERRUPTED = 130


MODULES = {
    "inspect": "coe.cli.inspect",
    "experts": "coe.cli.experts_command",
    "board": "coe.cli.board_command",
    "profile": "coe.cli.profile_command",
    "bench": "coe.lab.cli.bench",
    "serve": "coe.serve.command",
}


def _start(command: str) -> None:
    use_one_heap()
    use_large_pages()
    # A shell that puts a command into the background ignores SIGINT; it stays ignored.
    usual = (signal.default_int_handler, signal.SIG_DFL)
    interrupting = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) in usual]
    for number in interrupting:
        signal.signal(number, _end_at_once)
    try:
        with steady():
            try:
                os.getcwd()
            except FileNotFoundError:  # a library of torch would end the process
                sys.stderr.write("error: the current folder no longer exists; change into another one\n")
                sys.exit(Exit.USAGE)
            try:
                module = import_module(MODULES[command])
            except ImportError as error:
                sys.stderr.write(f"error: a library that coe needs cannot be imported: {error}{way_out(error)}\n")
                sys.exit(Exit.USAGE)
            signals = EndingSignals()
            for number in interrupting:
                signal.signal(number, partial(_interrupt, signals))
            module.main()
    finally:
        # Only the end of the interpreter is left; an interruption there would show a traceback.
        for number in interrupting:
            signal.signal(number, signal.SIG_DFL)


inspect = partial(_start, "inspect")
experts = partial(_start, "experts")
board = partial(_start, "board")
bench = partial(_start, "bench")
profile = partial(_start, "profile")
serve = partial(_start, "serve")


def use_one_heap() -> None:
    """Let all threads of this process, and of those it starts, share one heap, unless the environment says otherwise.

    glibc gives each thread a heap of its own, and keeps free memory in each, some MB. Another C
    library is left as it is.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    os.environ["MALLOC_ARENA_MAX"] = "1"
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def use_large_pages() -> None:
    """Let PyTorch ask for pages of 2 MB for tensors of 2 MB and more, unless the environment says otherwise.

    A large batch allocates its activations anew, which costs a page fault for each page. PyTorch reads the variable
    when it makes its first tensor. Without large pages in the system, the variable has no effect.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def way_out(error: ImportError) -> str:
    """Return how a library that is missing is installed, if it belongs to an extra of this package."""
    from importlib.metadata import PackageNotFoundError, requires

    name = (error.name or "?").partition(".")[0].replace("_", "-")
    try:
        wanted = [each for each in requires("coe-vision") or () if re.match(rf"{re.escape(name)}\b.*extra ==", each)]
    except PackageNotFoundError:  # a checkout that was never installed
        wanted = []
    extra = wanted[0].split('"')[-2] if wanted else ""
    return f"; get it with: pip install 'coe-vision[{extra}]'" if extra else ""


def _interrupt(signals: EndingSignals, number: int, frame: object) -> None:
    """End as Ctrl-C does, once for signals that are the same: another would break off how the first one ends it."""
    if signals.take():
        raise KeyboardInterrupt


def _end_at_once(number: int, frame: object) -> None:
    """End without unwinding: a library that is being imported may swallow an exception, or show it."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(Exit.INTERRUPTED)
