"""Entry points of the commands. Law: this file imports fast, so that a signal ends a command properly from the start.

A command imports libraries for a second or more before its own code runs. Until then there is no work that could be
left half done, and an interruption (Ctrl-C, SIGTERM) ends the process at once.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
from contextlib import suppress
from enum import IntEnum
from functools import partial
from importlib import import_module

from coe.cli.signals import EndingSignals
from coe.cli.streams import steady

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
                sys.stderr.write("error: the folder in which this command starts is gone; change into another one\n")
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

    glibc gives each thread a heap of its own, and keeps free memory in each, some MB (docs/results.md). Another C
    library is left as it is.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    os.environ["MALLOC_ARENA_MAX"] = "1"
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


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
