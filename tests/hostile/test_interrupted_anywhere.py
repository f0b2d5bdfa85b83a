"""An exception at any bytecode of a call that hands images in, such as Ctrl-C: no place and no lock stays taken."""

import asyncio
import sys
import threading
from collections.abc import Callable
from dis import opname
from functools import cache, partial
from pathlib import Path

import pytest
from quick_line import LIGHT, QuickDevice, quick

import coe
from coe import Inspector, Picture
from coe.core import Verdict
from coe.runtime.admission import Admission, Ticket

OURS = str(Path(coe.__file__).parent)


class Struck(KeyboardInterrupt):
    """What strikes."""


class Strike:
    """Raises `Struck` at the bytecode or line `number` of what a thread runs while the block is entered.

    With `everywhere` also in what our code calls of the standard library. `came` counts the bytecodes or lines so far.
    """

    def __init__(self, number, event="opcode", *, everywhere=True):
        self.number, self._event, self._everywhere, self.came = number, event, everywhere, 0

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *error):
        sys.settrace(self._before)

    def _called(self, frame, event, argument):
        name = frame.f_code.co_filename
        if name == __file__ or not (self._everywhere or name.startswith(OURS)):
            return None
        frame.f_trace_opcodes = self._event == "opcode"
        return self._met

    def _met(self, frame, event, argument):
        if event == self._event and not (event == "opcode" and _keeps_books(frame)):
            self.came += 1
            if self.came == self.number:
                raise Struck
        return self._met


BOOKS = {"PUSH_EXC_INFO", "POP_EXCEPT", "RERAISE", "WITH_EXCEPT_START", "CLEANUP_THROW", "COPY"}
"""Bytecodes with which handlers keep the interpreter's books. No signal is looked for there, and an exception that a
tracer raises there leaves another exception as the one that is handled, or a wrong value on the stack, for good."""


@cache
def _bytecodes(code):
    return code.co_code


def _keeps_books(frame):
    return opname[_bytecodes(frame.f_code)[frame.f_lasti]] in BOOKS


def ends(call, seconds=20.0):
    """Make a call on another thread; return whether it comes to an end."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def struck_at(number, event, call, *, everywhere=True):
    """Make a call that is struck once; return whether it came to that."""
    strike = Strike(number, event, everywhere=everywhere)
    try:
        with strike:
            call()
    except Struck:
        pass
    except RuntimeError as error:  # a condition of the standard library that is struck as it begins to wait
        if not isinstance(error.__context__, Struck):
            raise
    return strike.came >= number


async def awaited(line):
    await line.inspect(LIGHT, "C")


WAYS: dict[str, Callable[[Inspector], object]] = {
    "submit": lambda line: line.submit(LIGHT, "C"),
    "submit on a full line": lambda line: [line.submit(LIGHT, "C") for _ in range(3)],
    "drain": lambda line: (line.submit(LIGHT, "C"), line.drain(60)),
    "result": lambda line: line.submit(LIGHT, "C").result(60),
    "stream": lambda line: list(line.stream([Picture(LIGHT, "C")] * 2)),
    "inspect": lambda line: asyncio.run(awaited(line)),
}


@pytest.mark.parametrize(
    ("way", "event"),
    [
        *[(way, "line") for way in WAYS],
        ("submit", "opcode"),
        *[pytest.param(way, "opcode", marks=pytest.mark.slow) for way in WAYS if way != "submit"],
    ],
)
# A coroutine that is struck as it is dropped says so to nobody.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_line_goes_on_and_ends_after_an_exception_anywhere_in_a_call(tiny, way, event):
    """Only two places, so that a place that stays taken stops the line after the second."""
    call = WAYS[way]
    line = quick(tiny, QuickDevice(), inbox=2)
    call(line)
    number = 1
    while struck_at(number, event, lambda: call(line), everywhere=way != "inspect"):
        assert ends(lambda: line.drain(15), 16), f"a lock stays taken after {event} {number}"
        assert line.drain(0), f"a place stays taken after {event} {number}"
        number += 1
    assert number > 50
    assert line.submit(LIGHT, "C").result(60).verdict is Verdict.OK
    assert ends(line.close)
    assert sys.exc_info()[0] is None, "the interpreter itself is as it was"


@pytest.mark.parametrize("event", ["line", "opcode"])
def test_room_for_decoding_is_given_back_after_an_exception_anywhere(event):
    admission, number = Admission(1, 10), 1
    while struck_at(number, event, lambda: admission.within(3, lambda: None)):
        assert ends(lambda: admission.within(10, lambda: None), 5), f"after {event} {number}"
        assert repr(admission) == "<Admission 0/1 inside, 0 bytes, 0 waiting>"
        number += 1
    assert number > 10


@pytest.mark.parametrize("event", ["line", "opcode"])
def test_who_waits_in_the_queue_is_let_in_after_an_exception_anywhere_in_the_call_of_who_leaves(event):
    number, is_struck = 1, True
    while is_struck:
        admission = Admission(1, 10)
        inside, waiting = Ticket(admission, 1), Ticket(admission, 1)
        is_struck = struck_at(number, event, partial(enter_both_and_leave, inside, waiting))
        if "1 waiting" in repr(admission) or "1/1" in repr(admission):
            assert ends(waiting.wait, 5), f"after {event} {number}"
        waiting.recover()
        assert repr(admission) == "<Admission 0/1 inside, 0 bytes, 0 waiting>"
        number += 1


def enter_both_and_leave(inside, waiting):
    """Let the second of two tickets in by leaving with the first."""
    try:
        inside.enter()
        waiting.enter()
        inside.leave()
    except BaseException:
        inside.recover()
        raise
