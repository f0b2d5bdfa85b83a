"""Wrong and rough uses of the API: each ends in a sentence or a result, and the line goes on."""

import asyncio
import json
import math
import os
import subprocess
import sys
import threading
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from quick_line import DARK, LIGHT, QuickDevice, held, quick

from coe import Picture, config
from coe.core import Batch, FailureKind, Verdict
from coe.errors import ConfigError, DeviceLost, LineClosed, LineFull, WouldWaitForItself
from coe.inspector import line as line_module
from coe.inspector.line_devices import decoding
from coe.pictures.image_source import ImageSource
from coe.scheduler.controller import Controller
from coe.scheduler.events import Reply, Run, Stopped


@pytest.fixture
def line(tiny):
    """A line that must still inspect when a test is done with it."""
    with quick(tiny) as line:
        yield line
        assert line.submit(LIGHT, "C").result(60).verdict is Verdict.OK


def by_submit(line, *arguments, **words):
    return line.submit(*arguments, **words).result(60)


def by_inspect(line, *arguments, **words):
    async def ask():
        return await line.inspect(*arguments, **words)

    return asyncio.run(ask())


def by_stream(line, *arguments, **words):
    (result,) = line.stream([Picture(*arguments, **words)])
    return result


WAYS = pytest.mark.parametrize("ask", [by_submit, by_inspect, by_stream])


TEXT, ORDER, TIME = "a text, not", "'BGR'", "within"
WRONG = [
    *(({"component": value}, TEXT) for value in (None, ["C"], 3)),
    *(({"serial": 7}, TEXT), ({"refdes": b"R1"}, TEXT), ({"name": Path("x.png")}, TEXT)),
    *(({"order": value}, ORDER) for value in ("rgb", "", 0, "GRB", ["BGR"])),
    *(({"within_s": value}, TIME) for value in (0, -1.5, math.nan, math.inf, "5s", True, 1e308)),
]


@WAYS
@pytest.mark.parametrize(("words", "says"), WRONG, ids=str)
def test_a_word_that_is_none_is_said(line, ask, words, says):
    (word,) = words
    with pytest.raises(ConfigError, match=f"{word}=.*{says}|{says}"):
        ask(line, LIGHT, **{"component": "C"} | words)


def test_what_is_asked_wrongly_is_said_at_once_and_a_source_that_fails_after_the_results_under_way(line):
    with pytest.raises(TypeError, match="not int"):
        line.inspect(3, "C")
    assert by_submit(line, b"no picture", "C").failure.kind is FailureKind.UNSUPPORTED

    def source():
        yield from (Picture(LIGHT, "C"), Picture(DARK, "C"))
        raise OSError("the camera was unplugged")

    results, found = line.stream(source()), []
    with pytest.raises(OSError, match="unplugged"):
        found.extend(iter(results))  # what came before it fails is kept
    assert len(found) == 2


@pytest.mark.parametrize("item", [LIGHT, None, ("x.png", "C"), "x.png"], ids=lambda item: type(item).__name__)
def test_a_stream_says_what_is_no_picture_after_the_results_before_it(line, item):
    results = line.stream([Picture(LIGHT, "C"), Picture(DARK, "C"), item])
    assert {next(results).verdict, next(results).verdict} == {Verdict.OK, Verdict.NG}
    with pytest.raises(TypeError, match=f"a line takes pictures .* not {type(item).__name__}"):
        next(results)


def seen(frame, part=lambda frame: frame):
    return part(frame), lambda: frame.fill(20)


def encoded(form):
    """Return a picture in a buffer, and what overwrites that: by another picture, or by zeros."""
    buffer, other = (bytearray(cv2.imencode(".png", pixels)[1].tobytes()) for pixels in (LIGHT, DARK))
    if form is memoryview:
        return memoryview(buffer), lambda: buffer.__setitem__(slice(8, None), bytes(len(buffer) - 8))
    return buffer, lambda: buffer.__setitem__(slice(len(other)), other[: len(buffer)])


CAMERAS = {
    "array": lambda: seen(LIGHT.copy()),
    "window": lambda: seen(np.full((120, 100, 3), 200, np.uint8), lambda ring: ring[::2, ::2]),
    "columns first": lambda: seen(np.asfortranarray(LIGHT)),
    "grey": lambda: seen(np.full((50, 50), 200, np.uint8)),
    "encoded": lambda: encoded(bytes),
    "viewed": lambda: encoded(memoryview),
}


@pytest.mark.parametrize("camera", CAMERAS.values(), ids=CAMERAS)
@pytest.mark.parametrize("way", ["submit", "call", "task", "full"])
def test_a_verdict_is_of_the_pixels_at_the_moment_of_the_call(tiny, camera, way):
    device = QuickDevice()

    async def ask(line):
        device.gate.clear()
        frame, overwrite = camera()
        others = [line.submit(LIGHT, "C") for _ in range(2)] if way == "full" else []
        if way == "submit":
            found = asyncio.ensure_future(asyncio.wrap_future(line.submit(frame, "C")))
        else:
            asked = line.inspect(frame, "C")
            if way == "call":
                overwrite()
            found = asyncio.ensure_future(asked)
        overwrite()
        await asyncio.sleep(0)
        device.gate.set()
        assert all(other.result(60).verdict is Verdict.OK for other in others)
        return await found

    with quick(tiny, device, inbox=2) as line:
        result = asyncio.run(ask(line))
    assert (result.error, result.verdict) == (None, Verdict.OK)


class Rude(BaseException):
    def __str__(self):
        raise Rude


RAISED = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Rude(), ValueError("x"), asyncio.CancelledError()]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_what_a_callback_raises_reaches_neither_other_callbacks_nor_the_line(tiny, error):
    device, heard = QuickDevice(), threading.Event()
    device.gate.clear()

    def fail(future):
        raise error

    with quick(tiny, device) as line:
        first, second = line.submit(LIGHT, "C"), line.submit(DARK, "C")
        first.add_done_callback(fail)
        first.add_done_callback(lambda _: heard.set())
        device.gate.set()
        assert heard.wait(60)
        assert (first.result(60).verdict, second.result(60).verdict) == (Verdict.OK, Verdict.NG)
        assert line.drain(60)


@pytest.mark.parametrize("call", ["set_result", "set_exception", "cancel"])
def test_nobody_but_the_line_answers_an_image(tiny, call):
    with held(tiny) as (line, device):
        future = line.submit(LIGHT, "C")
        if call == "cancel":
            assert not future.cancel()
        else:
            with pytest.raises(InvalidStateError, match="only the line may set the result"):
                getattr(future, call)(None)
        device.gate.set()
        assert future.result(60).verdict is Verdict.OK


CALLS = {
    "submit": lambda line, later: line.submit(LIGHT, "C"),
    "inspect": lambda line, later: line.inspect(LIGHT, "C"),
    "stream": lambda line, later: list(line.stream([Picture(LIGHT, "C")])),
    "drain": lambda line, later: line.drain(5),
    "ready": lambda line, later: line.ready(),
    "result": lambda line, later: later.result(),
    "exception": lambda line, later: later.exception(),
    "close": lambda line, later: line.close(),
    "stop": lambda line, later: line.stop(),
    "enter": lambda line, later: line.__enter__(),
    "exit": lambda line, later: line.__exit__(None, None, None),
    "submit many": lambda line, later: [line.submit(LIGHT, "C") for _ in range(5)],
}


def said_in_a_callback(line, device, call):
    device.gate.clear()
    outcome = Future()

    def act(_):
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_result(error)

    line.submit(LIGHT, "C").add_done_callback(act)
    device.gate.set()
    return outcome.result(60)


@pytest.mark.parametrize("call", ["drain", "close", "ready", "stream", "inspect", "submit many", "result", "exception"])
def test_a_call_that_waits_is_refused_on_the_thread_that_it_waits_for(tiny, call):
    device = QuickDevice()

    def act(line):
        # Something is under way for as long as the callback runs.
        device.gate.clear()
        try:
            return CALLS[call](line, line.submit(DARK, "C"))
        finally:
            device.gate.set()

    with quick(tiny, device, inbox=4) as line:
        outcome = said_in_a_callback(line, device, lambda: act(line))
        assert isinstance(outcome, WouldWaitForItself)
        assert f"{call.removesuffix(' many')}()" in str(outcome)
        assert line.drain(60)
        assert line.submit(LIGHT, "C").result(60).verdict is Verdict.OK


def test_a_callback_may_submit_where_there_is_room_and_stop_the_line(tiny):
    device = QuickDevice()
    # The place of the image whose callback it is, is free by then.
    with quick(tiny, device, inbox=1) as line:
        again = said_in_a_callback(line, device, lambda: line.submit(DARK, "C"))
        assert isinstance(again, Future)
        assert again.result(60).verdict is Verdict.NG
        assert said_in_a_callback(line, device, line.stop) is None
        with pytest.raises(LineClosed):
            line.submit(LIGHT, "C")


PLACES = ("enter", "load", "run", "trim", "evict")


@pytest.mark.parametrize(
    ("where", "error"),
    [
        *((place, error) for error in RAISED for place in (*PLACES, "preprocess")),
        *((place, DeviceLost("it fell off the bus")) for place in PLACES),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_whatever_is_raised_every_image_gets_its_reply(tiny, monkeypatch, where, error):
    device = QuickDevice(**{where: [error] * 9})
    # Room for one expert: the others have to leave.
    with quick(tiny, device, memory="1.4MB") as line:
        if where == "preprocess":
            for kind in {type(kind) for kind in line.kinds.values()}:
                monkeypatch.setattr(kind, "preprocess", lambda *_: _raise(error))
        results = [future.result(60) for future in [line.submit(LIGHT, component) for component in "ABCABC"]]
        assert line.drain(60)
    assert any(result.error for result in results)
    said = "cpu was lost: it fell off the bus" if isinstance(error, DeviceLost) else type(error).__name__
    for result in results:
        assert (result.verdict is None) == (result.error is not None)
        assert result.error is None or said in result.error


def _raise(error):
    raise error


def test_a_line_is_closed_as_often_and_from_as_many_threads_as_anybody_likes(tiny):
    line = quick(tiny)
    futures = [line.submit(LIGHT, "C") for _ in range(20)]
    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(line.close) for _ in range(16)]:
            done.result(60)
    assert all(future.result(0).verdict is Verdict.OK for future in futures)
    line.stop()
    line.close()
    assert line.drain(0)
    assert line.metrics().images == 20
    assert not [thread for thread in line._engine._threads if thread.is_alive()]


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        ("a batch that never ends", FailureKind.LINE),
        ("a watcher that fails after the stop", FailureKind.LINE),
        ("a load that never ends", FailureKind.STOPPED),
    ],
)
def test_a_line_whose_time_to_close_is_over_answers_whatever_holds_it_up(tiny, monkeypatch, trouble, kind):
    class Watcher:
        def observe(self, event, commands, now, control_s=0.0):
            if isinstance(event, Stopped) and "watcher" in trouble:
                device.gate.set()
                raise ValueError("a watcher failed")

    def hang():
        device.reached.set()
        assert device.gate.wait(60)

    monkeypatch.setattr(line_module, "LONGEST_END_S", 0.2)
    released = threading.Event()
    device = QuickDevice(close=[released.set], load=[hang] * ("load" in trouble))
    device.gate.clear()
    line = quick(tiny, device, watchers=[Watcher()])
    future, threads = line.submit(LIGHT, "C"), line._engine.line_threads.threads
    assert device.reached.wait(60)
    assert not line.close(timeout_s=0)
    line.close()  # as a `with` block does
    assert future.done()
    assert future.result().failure.kind is kind
    device.gate.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), thread.name
    assert released.is_set()


def test_a_watcher_that_empties_what_it_is_shown_takes_nothing_from_the_line(tiny):
    class Greedy:
        def observe(self, event, commands, now, control_s=0.0):
            commands.clear()

    with quick(tiny, watchers=[Greedy()]) as line:
        assert line.submit(LIGHT, "C").result(60).verdict is Verdict.OK


@pytest.mark.parametrize("number", [np.float16, np.float32, np.float64, np.int32])
def test_a_time_of_numpy_is_a_number_of_python_in_the_result(tiny, number):
    with quick(tiny) as line:
        result = line.submit(LIGHT, "C", within_s=number(60)).result(60)
    assert (type(result.request.due_s), type(result.late)) == (float, bool)
    json.dumps(result.to_dict())


def test_a_line_that_is_stopped_decodes_no_more_pictures(tiny, monkeypatch):
    gate, decoded, decode = threading.Event(), [0], ImageSource.decode

    def slow(source):
        decoded[0] += 1
        assert gate.wait(60)
        return decode(source)

    monkeypatch.setattr(ImageSource, "decode", slow)
    with quick(tiny) as line:
        futures = [line.submit(LIGHT, "C") for _ in range(40)]
        line.stop()
        gate.set()
        results = [future.result(60) for future in futures]
    assert {result.failure.kind for result in results if result.failure} == {FailureKind.STOPPED}
    assert None not in {result.failure for result in results}
    assert decoded[0] <= decoding(1 << 30).threads


@pytest.mark.parametrize("call", ["submit", "inspect", "stream", "enter"])
@pytest.mark.parametrize("end", ["close", "stop", "stop and close"])
def test_a_line_that_has_ended_takes_nothing(tiny, call, end):
    line = quick(tiny)
    for step in end.split(" and "):
        getattr(line, step)()
    with pytest.raises(LineClosed):
        CALLS[call](line, None)
    line.close()


def _submit_many(line, start, accepted, refused):
    start.wait(60)
    for number in range(20):
        try:
            accepted.append(line.submit(LIGHT, "C"))
        except LineClosed:
            refused.append(number)


@pytest.mark.parametrize("end", ["close", "stop"])
def test_a_submit_that_races_an_end_is_answered_or_refused(tiny, end):
    for _ in range(10):
        line = quick(tiny, inbox=3)
        accepted = []
        refused = []
        work = partial(_submit_many, line, start := threading.Barrier(9), accepted, refused)
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        start.wait(60)
        getattr(line, end)()
        for thread in threads:
            thread.join(60)
        line.close()
        assert len(accepted) + len(refused) == 8 * 20
        assert {future.result(0).error for future in accepted} <= {None, config.STOPPED}


@pytest.mark.parametrize("end", ["close", "stop"])
@pytest.mark.parametrize("way", ["submit", "inspect", "stream"])
def test_who_waits_for_room_wakes_when_the_line_ends(tiny, end, way):
    ask = {"submit": by_submit, "inspect": by_inspect, "stream": by_stream}[way]
    with held(tiny, inbox=1) as (line, device), ThreadPoolExecutor(2) as threads:
        under_way = line.submit(LIGHT, "C")
        waiting = threads.submit(ask, line, DARK, "C")
        while not line._admission._waiting:
            assert not waiting.done()
        ended = threads.submit(getattr(line, end))
        with pytest.raises(LineClosed):
            waiting.result(60)
        device.gate.set()
        ended.result(60)
        assert under_way.result(60).error in (None, config.STOPPED)


def test_waiting_for_room_takes_no_thread_full_is_full_and_what_is_never_awaited_takes_no_place(tiny):
    async def work(line):
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        tasks = [asyncio.ensure_future(line.inspect(LIGHT, "C")) for _ in range(40)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "unrelated"), 60) == "unrelated"
        device.gate.set()
        return list(await asyncio.gather(*tasks))

    with held(tiny, inbox=1) as (line, device):
        assert [result.verdict for result in asyncio.run(work(line))] == [Verdict.OK] * 40
    for limit in ("inbox", "inbox_bytes"):
        with held(tiny, on_full="raise", **{limit: 1}) as (line, device):
            line.submit(LIGHT, "C")
            for ask in (by_submit, by_inspect):
                with pytest.raises(LineFull, match="1 images"):
                    ask(line, LIGHT, "C")
            device.gate.set()
    with quick(tiny, inbox=1) as line:
        for _ in range(5):
            line.inspect(LIGHT, "C").close()
        assert line.submit(LIGHT, "C").result(60).verdict is Verdict.OK
        assert line.drain(60)


def test_who_is_cancelled_while_waiting_or_whose_loop_ends_gives_the_place_back(tiny):
    async def work(line):
        running, waiting, behind = (asyncio.ensure_future(line.inspect(LIGHT, "C")) for _ in range(3))
        await asyncio.sleep(0)
        waiting.cancel()
        # One that is inspected already goes on without whoever asked.
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        device.gate.set()
        return await behind

    async def give_up(line):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(line.inspect(LIGHT, "C"), 0.01)

    with held(tiny, inbox=1) as (line, device):
        assert asyncio.run(work(line)).verdict is Verdict.OK
        assert line.drain(60)
        assert line.metrics().images == 2
        device.gate.clear()
        asyncio.run(give_up(line))
        device.gate.set()
        assert line.drain(60)


def test_a_coroutine_that_is_dropped_while_its_thread_holds_a_lock_of_the_line_ends(tiny):

    def start(line):
        waiting = line.inspect(LIGHT, "C")
        waiting.send(None)
        return waiting

    async def work(line):
        first = line.submit(LIGHT, "C")
        waiting = start(line)
        # As a collection of garbage in the middle of another call of this thread.
        with line._admission._lock:
            waiting.close()
            assert "1 waiting" in repr(line._admission)
        device.gate.set()
        await asyncio.wrap_future(first)

    with held(tiny, inbox=1) as (line, device):
        asyncio.run(work(line))
        assert line.drain(60)
        assert line.metrics().images == 1


def in_a_child(call):
    """Return what `call` returns or raises in a forked child, as text; fails if the child does not come to an end."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(into, repr(call()).encode())
        except BaseException as error:
            os.write(into, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(into)
    killer = threading.Timer(60, os.kill, (child, 9))
    killer.start()
    with os.fdopen(out, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    killer.cancel()
    return said


IDLE = {"close": "False", "stop": "None", "exit": "None", "collected": "None", "joined at the end": "None"}
AT_EXIT = {
    "collected": lambda line, later: line._engine.abandon(),
    "joined at the end": lambda line, later: line._engine.join(),
}


@pytest.mark.parametrize("call", ["submit", "inspect", "stream", "drain", "ready", "result", "exception", *IDLE])
def test_a_forked_child_is_told_and_the_parents_line_goes_on(tiny, call):
    with held(tiny) as (line, device):
        later = line.submit(LIGHT, "C")
        assert device.reached.wait(60)
        said = in_a_child(lambda: (CALLS | AT_EXIT)[call](line, later))
        device.gate.set()
        assert later.result(60).verdict is Verdict.OK
    if call in IDLE:
        assert said == IDLE[call]
    else:
        assert (said.startswith("LineClosed: "), str(os.getpid()) in said) == (True, True)


EXIT = """
import os, sys
from pathlib import Path
from quick_line import LIGHT, QuickDevice, quick

device = QuickDevice()
line = quick((Path(sys.argv[1]), Path(sys.argv[2])), device)
line.submit(LIGHT, "C").result(60)
child = os.fork()
if child == 0:
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
device.gate.clear()
device.reached.clear()
line.submit(LIGHT, "C").add_done_callback(lambda future: print(f" {future.result().verdict} ", flush=True))
device.reached.wait(60)
device.gate.set()
print(" end ", flush=True)
"""


@pytest.mark.slow
def test_a_program_that_leaves_a_line_open_ends_and_so_does_its_forked_child(tiny):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EXIT, *map(str, tiny)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == ["OK", "end"]


class _FailsAtReply:
    def observe(self, event, commands, now, control_s=0.0):
        if any(isinstance(command, Reply) for command in commands):
            raise SystemExit("no")


class _RunsNowhere(Controller):
    """A decider that orders a batch on an executor which is not there, before its replies."""

    def handle(self, event, now):
        commands = super().handle(event, now)
        replies = any(isinstance(command, Reply) for command in commands)
        return [Run("nowhere", Batch("joint", ())), *commands] if replies else commands


@pytest.mark.parametrize("options", [{"watchers": [_FailsAtReply()]}, {"make_decider": _RunsNowhere}])
def test_what_is_decided_is_answered_whatever_a_plug_in_does_in_that_step(tiny, options):
    with quick(tiny, **options) as line:
        assert line.submit(LIGHT, "C").result(60).verdict is Verdict.OK
        assert line.submit(LIGHT, "C").result(60).failure.kind is FailureKind.LINE
