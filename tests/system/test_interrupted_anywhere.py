"""Calls that are not seen through: an exception at any bytecode, busy loops, forks, no more threads. The line ends."""

import asyncio
import gc
import os
import sys
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from dis import opname
from functools import cache, partial
from pathlib import Path

import pytest
from quick_line import DARK, LIGHT, QuickDevice, held, quick

import coe
from coe import Picture
from coe.core import Verdict
from coe.errors import LineClosed, LineFull, WouldWaitForItself
from coe.inspector.line_boards import LineBoards
from coe.runtime import line_engine
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
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def struck_at(number, event, call, *, everywhere=True):
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


async def awaited(asked):
    return await asked


WAYS = {
    "submit": lambda line: line.submit(LIGHT, "C"),
    "submit on a full line": lambda line: [line.submit(LIGHT, "C") for _ in range(3)],
    "ready": lambda line: line.ready(60),
    "drain": lambda line: (line.submit(LIGHT, "C"), line.drain(60)),
    "result": lambda line: line.submit(LIGHT, "C").result(60),
    "stream": lambda line: list(line.stream([Picture(LIGHT, "C")] * 2)),
    "inspect": lambda line: asyncio.run(awaited(line.inspect(LIGHT, "C"))),
}


@pytest.mark.parametrize(
    ("way", "event"),
    [
        ("submit", "opcode"),
        ("ready", "opcode"),
        *[pytest.param(way, "opcode", marks=pytest.mark.slow) for way in WAYS if way not in ("submit", "ready")],
        *[(way, "line") if way == "stream" else pytest.param(way, "line", marks=pytest.mark.slow) for way in WAYS],
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
    assert number > 30
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


@pytest.mark.parametrize("event", ["line", "opcode"])
def test_who_waits_hears_that_the_line_closes_after_an_exception_anywhere_in_the_call(event):
    number, is_struck = 1, True
    while is_struck:
        admission = Admission(1, 10)
        inside, waiting = Ticket(admission, 1), Ticket(admission, 1)
        inside.enter()
        waiting.enter()
        is_struck = struck_at(number, event, admission.close)
        assert ends(inside.leave, 5), f"the lock stays taken after {event} {number}"
        assert waiting.answered, f"nobody answers after {event} {number}"
        number += 1
    assert number > 5


@dataclass(frozen=True)
class SomeBoard:
    key: str
    mix: float = 1.0

    @property
    def name(self):
        return self.key


@pytest.mark.parametrize("images", [1, 0])
@pytest.mark.parametrize("event", ["line", "opcode"])
def test_boards_change_wholly_or_not_at_all_after_an_exception_anywhere(event, images):
    number, is_struck = 1, True
    while is_struck:
        told, image = [], object()
        boards = LineBoards([SomeBoard("a")], told.append)
        for _ in range(images):
            boards.accept("a", image)
        switch = partial(boards.switch, [SomeBoard("b")], "both", "b")
        is_struck = struck_at(number, event, partial(recovering, switch, boards.recover))
        assert ends(lambda boards=boards, image=image: boards.answered(image), 5), f"after {event} {number}"
        if boards.present == (SomeBoard("b"),):
            assert (told[0], told[-1]) == ("both" if images else "b", "b")
        else:
            assert boards.accept("a", image) == SomeBoard("a")
            assert told == []
        number += 1
    assert number > 20


def recovering(call, recover):
    try:
        call()
    except BaseException:
        recover()
        raise


def enter_both_and_leave(inside, waiting):
    recovering(lambda: (inside.enter(), waiting.enter(), inside.leave()), inside.recover)


@pytest.mark.parametrize("end", ["close", "with", "submit"])
def test_a_loop_that_is_busy_keeps_no_place_that_the_line_waits_for(tiny, end):
    device = QuickDevice()
    seen = []

    async def work(line):
        device.gate.clear()
        first, *others = [asyncio.ensure_future(line.inspect(LIGHT, "C")) for _ in range(3)]
        await asyncio.sleep(0)
        device.gate.set()
        # The loop stands, as it does while a report is written; meanwhile there is room for the others.
        while line.metrics().images < 3:
            time.sleep(0.001)
        if end == "close":
            line.close()
        elif end == "with":
            line.__exit__(ValueError, ValueError(), None)
        else:
            seen.append(line.submit(DARK, "C").result(60))
        seen.extend(await asyncio.gather(first, *others))

    with quick(tiny, device, inbox=1) as line:
        assert ends(lambda: asyncio.run(work(line)))
    assert {result.verdict for result in seen} >= {Verdict.OK}
    assert len(seen) == 3 + (end == "submit")


def test_what_was_asked_before_a_fork_is_refused_in_the_child(tiny):
    with quick(tiny) as line:
        asked = line.inspect(LIGHT, "C")
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(asyncio.wait_for(asked, 20))
            except LineClosed:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert asyncio.run(awaited(asked)).verdict is Verdict.OK


def test_what_was_asked_elsewhere_is_not_awaited_in_a_callback(tiny):
    said = Future()

    def wait(asked):
        try:
            said.set_result(asyncio.run(asyncio.wait_for(awaited(asked), 20)))
        except BaseException as error:
            said.set_exception(error)

    with quick(tiny) as line:
        asked = line.inspect(LIGHT, "C")
        line.submit(LIGHT, "C").add_done_callback(lambda _: wait(asked))
        with pytest.raises(WouldWaitForItself, match="inspect"):
            said.result(60)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_submit_leaves_nothing_that_the_line_waits_for(tiny, monkeypatch, when):
    line = quick(tiny, inbox=1)
    put = line._engine._inputs.workers.put

    def interrupted(work):
        if when == "after":
            put(work)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(line._engine._inputs.workers, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            line.submit(LIGHT, "C")
    assert line.submit(DARK, "C").result(60).verdict is Verdict.NG
    assert ends(line.close)


def test_a_line_that_got_too_few_threads_does_not_disturb_the_end(tiny, monkeypatch):
    start, started = threading.Thread.start, [0]

    def limited(thread):
        if thread.name.startswith("coe-"):
            started[0] += 1
            if started[0] == 4:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(line_engine, "_OPEN", weakref.WeakSet())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        with pytest.raises(RuntimeError, match="new thread") as failed:
            quick(tiny)
    assert len(line_engine._OPEN) == 1
    line_engine.end_open_lines()
    del failed
    gc.collect()


def test_a_stream_waits_for_room_that_others_have_where_submit_would_raise(tiny):
    with held(tiny, inbox=1, on_full="raise") as (line, device):
        line.submit(LIGHT, "C")
        with pytest.raises(LineFull):
            line.submit(LIGHT, "C")
        with ThreadPoolExecutor(1) as threads:
            streamed = threads.submit(lambda: list(line.stream([Picture(DARK, "C")] * 3)))
            while not line._admission._waiting and not streamed.done():
                time.sleep(0.001)
            device.gate.set()
            assert [result.verdict for result in streamed.result(60)] == [Verdict.NG] * 3
