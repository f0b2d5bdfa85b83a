"""Where the commands begin. Law: nothing here takes time to import, so that Ctrl-C ends a command in order at once.

The commands import libraries for a second or more before a line of theirs is run. Until then nothing was done that
could be left half done, and an interruption ends the process on the spot.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module

from coe.cli.exits import Exit
from coe.cli.streams import steady


def inspect() -> None:
    """Run `coe-inspect`."""
    _start("inspect")


def experts() -> None:
    """Run `coe-experts`."""
    _start("experts")


def bench() -> None:
    """Run `coe-bench`."""
    _start("bench")


def profile() -> None:
    """Run `coe-profile`."""
    _start("profile")


def _start(command: str) -> None:
    # Where a shell put the command into the background, SIGINT is ignored, and stays so.
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, _end_at_once)
    try:
        with steady():
            try:
                module = import_module(f"coe.cli.{command}")
            except ImportError as error:
                sys.stderr.write(f"error: a library that coe needs cannot be imported: {error}\n")
                sys.exit(Exit.USAGE)
            if interruptible:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            module.main()
    finally:
        # What is left is the interpreter's own end: interrupted there, it would show a traceback.
        if interruptible:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_at_once(number: int, frame: object) -> None:
    """End without unwinding: a library under import may swallow an exception, or show it."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(Exit.INTERRUPTED)
