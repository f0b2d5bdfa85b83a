"""Calls that are not seen through: loops that are busy, forks, interrupts, a system out of threads. The line ends."""

import asyncio
import gc
import os
import threading
import time
import weakref
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from quick_line import DARK, LIGHT, QuickDevice, quick

from coe import Picture
from coe.core import Verdict
from coe.errors import LineClosed, LineFull, WouldWaitForItself
from coe.runtime import line_engine
from coe.runtime.admission import Ticket


def ended(call):
    """Make a call on a thread that may be left behind; return whether it came to an end."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


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
        assert ended(lambda: asyncio.run(work(line)))
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
        assert asyncio.run(_awaited(asked)).verdict is Verdict.OK


async def _awaited(asked):
    return await asked


def test_what_was_asked_elsewhere_is_not_awaited_in_a_callback(tiny):
    said = Future()

    def wait(asked):
        try:
            said.set_result(asyncio.run(asyncio.wait_for(_awaited(asked), 20)))
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
    assert ended(line.close)


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
    line_engine._end_all()
    del failed
    gc.collect()


def test_a_stream_waits_for_room_that_others_have_where_submit_would_raise(tiny):
    device = QuickDevice()
    device.gate.clear()
    with quick(tiny, device, inbox=1, on_full="raise") as line:
        line.submit(LIGHT, "C")
        with pytest.raises(LineFull):
            line.submit(LIGHT, "C")
        with ThreadPoolExecutor(1) as threads:
            streamed = threads.submit(lambda: list(line.stream([Picture(DARK, "C")] * 3)))
            while not line._admission._waiting and not streamed.done():
                time.sleep(0.001)
            device.gate.set()
            assert [result.verdict for result in streamed.result(60)] == [Verdict.NG] * 3


# Tickets after which something follows, which whoever makes room does


def asked(row, then):
    """Enter with a ticket after which `then` follows."""
    ticket = Ticket(row, 1, then)
    ticket.enter()
    return ticket
