"""How a line ends, and the times that it tells."""

import gc
import itertools
import math
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from quick_line import LIGHT, QuickDevice, quick

from coe import Inspector, config
from coe.core import Expert
from coe.errors import CoeError
from coe.lab.rows import Latencies
from coe.pictures.image_source import ImageSource
from coe.runtime import cpu, line_engine
from coe.runtime.cpu import CpuDevice
from coe.runtime.processor import on_fresh_thread
from coe.runtime.trial import MeasuredOnce
from coe.store import kinds
from coe.store.store import Store

PICTURE = np.zeros((32, 32, 3), np.uint8)
AT_DEVICES = ("coe-executor", "coe-answers", "coe-lane", "coe-disk")


def ended(threads):
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), thread.name


@pytest.fixture
def closed(monkeypatch):
    """For each device that was closed: which threads of its line still worked at devices then."""
    seen = []
    close = CpuDevice.close

    def recorded(device):
        seen.append({thread.name for thread in threading.enumerate() if thread.name.startswith(AT_DEVICES)})
        close(device)

    monkeypatch.setattr(CpuDevice, "close", recorded)
    return seen


def test_a_line_that_is_dropped_answers_what_is_under_way_and_closes_its_devices(tiny, closed):
    line = Inspector(tiny[0], store=tiny[1], profile=None)
    line.submit(PICTURE, "A").result()
    threads = line._engine.line_threads.threads
    del line
    gc.collect()
    ended(threads)
    assert closed == [set()]
    device = QuickDevice()
    device.gate.clear()
    line = quick(tiny, device)
    futures = [line.submit(LIGHT, "C") for _ in range(40)]
    assert device.reached.wait(60)
    threads, engine = line._engine.line_threads.threads, weakref.ref(line._engine)
    del line
    gc.collect()
    device.gate.set()
    assert {future.result(60).error for future in futures} <= {None, config.STOPPED}
    ended(threads)
    del futures
    gc.collect()
    assert engine() is None


def test_a_line_that_is_open_at_exit_closes_its_devices(tiny, closed, monkeypatch):
    monkeypatch.setattr(line_engine, "_OPEN", weakref.WeakSet())
    line = Inspector(tiny[0], store=tiny[1], profile=None)
    threads, futures = line._engine.line_threads.threads, [line.submit(PICTURE, "A") for _ in range(4)]
    line_engine.end_open_lines()
    ended(threads)
    assert closed == [set()]
    assert all(future.done() for future in futures)
    line.close()
    assert closed == [set()], "a device is closed once"


def test_a_line_that_is_closed_closes_its_devices_for_its_caller(tiny, closed, monkeypatch):
    line = Inspector(tiny[0], store=tiny[1], profile=None)

    def lost(device):
        raise CoeError("the device fell off")

    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "close", lost)
        with pytest.raises(CoeError, match="fell off"):
            line.close()
    ended(line._engine.line_threads.threads)
    assert not line._engine.devices
    with Inspector(tiny[0], store=tiny[1], profile=None):
        pass
    assert closed == [set()]


MEMORY = "17MB"
"""Enough for each line, and far less than what all of them grow by."""


@pytest.fixture
def measured(measures_itself, monkeypatch):
    """What nobody has measured yet."""
    fresh = MeasuredOnce()
    monkeypatch.setattr(cpu.CpuDevice.__init__, "__kwdefaults__", {"measured": fresh})
    return fresh


def test_what_a_line_measures_is_kept_for_the_next(tiny, measured):
    with Inspector(tiny[0], store=tiny[1], memory=MEMORY):
        assert repr(measured) == "<MeasuredOnce 2 results>"


@pytest.mark.slow
def test_a_line_opens_while_another_runs(tiny, pictures, measured):
    board, store = tiny
    ended = threading.Event()

    def endless():
        for picture in itertools.cycle(pictures):
            if ended.is_set():
                return
            yield picture

    with Inspector(board, store=store, memory=MEMORY, inbox=4) as busy, ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: sum(result.error is None for result in busy.stream(endless())))
        try:
            measured._results.clear()
            with Inspector(board, store=store, memory=MEMORY) as line:
                assert all(result.error is None for result in line.stream(pictures[:3]))
        finally:
            ended.set()
        assert running.result() > 0


@pytest.mark.usefixtures("measures_itself")
def test_measuring_and_preparing_run_on_threads_that_end(tmp_path, monkeypatch):
    kind = kinds.resolve("narrow")
    expert = Expert("e", "narrow", ("ok", "bad"), 32, "e")
    store = Store(tmp_path)
    store.put(
        "e", kind="narrow", labels=expert.labels, input_size=32, state=kind.skeleton(expert).state_dict(), source="test"
    )
    threads = set()

    def noting(method):
        def call(*arguments):
            threads.add(threading.current_thread())
            return method(*arguments)

        return call

    monkeypatch.setattr(type(kind), "forward", noting(type(kind).forward))
    monkeypatch.setattr(type(kind), "skeleton", noting(type(kind).skeleton))
    device = CpuDevice(store, {"narrow": kind}, threads=2)
    device.measure(expert)
    device.prepare([expert])
    assert threads
    assert threading.main_thread() not in threads
    assert not any(thread.is_alive() for thread in threads)


def test_an_executor_keeps_its_threads_whatever_another_sets_before_its_first_batch(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_THREAD_LIMIT", raising=False)

    def executor():
        CpuDevice(Store(tmp_path), {}, threads=3).enter("one")
        on_fresh_thread(lambda: torch.set_num_threads(1))
        return torch.get_num_threads()

    before = torch.get_num_threads()
    try:
        assert on_fresh_thread(executor) == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("image", "within_s", "late"), [(LIGHT, None, False), (LIGHT, 1.0, True), (b"bad", 1.0, True), (b"bad", 9.0, False)]
)
def test_latency_and_lateness_count_from_submit(tiny, monkeypatch, image, within_s, late):
    latencies, clock, decode = Latencies(), [10.0], ImageSource.decode

    def slow(source):
        clock[0] = 12.0  # decoding takes two seconds, and nothing else takes any time
        return decode(source)

    monkeypatch.setattr(ImageSource, "decode", slow)
    with quick(tiny, watchers=[latencies]) as line:
        line._engine.now = lambda: clock[0]
        result = line.submit(image, "C", within_s=within_s).result(60)
    assert (result.latency_s, result.late, result.request.submitted_s) == (2.0, late, 10.0)
    assert result.request.due_s == (math.inf if within_s is None else 10.0 + within_s)
    assert latencies.quantile_s(0.99) == 2.0
